"""School at epsilon 3: the learned strength is no worse than the best single one, which saw the test data."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.algorithms.mean_regularized_auto import MeanRegularizedAuto
from kinfolk.data.choice import DataChoice
from kinfolk.engines import resident, results
from kinfolk.privacy.levels import example_level
from kinfolk.training.build import as_sweep
from kinfolk.training.experiment import Experiment, Phase, Training
from kinfolk.training.prepare import prepare

pytestmark = pytest.mark.slow

STRENGTHS = (0.3, 1.0, 3.0, 10.0)
STEP, ROUNDS = 0.2, 30


@pytest.mark.parametrize("scaling", ["as_published", "bounds"])
@pytest.mark.filterwarnings("ignore:delta")
@pytest.mark.usefixtures("school_data")
def test_learned_strength_on_school(scaling: str) -> None:
    """Two seeds that were used neither for the design nor for the page; pooled test MSE."""
    experiment = Experiment(
        seed=200,
        seeds=2,
        data=DataChoice("school", scaling),
        training=Training(None),
        privacy=example_level(3.0, 1e-3, allow_large_delta=True),
        phases=(Phase("mean_regularized", ROUNDS, {"strength": "auto", "step_size": STEP}),),
    )
    job = prepare(experiment)
    single = [MeanRegularizedAuto(STEP, start=s, learning=0.0, scaling=0.0) for s in STRENGTHS]
    points = [MeanRegularizedAuto(STEP), *single]
    algorithms = jax.tree.map(lambda *leaves: jnp.asarray(leaves, jnp.float32), *points)
    keys = jax.vmap(jax.random.key)(jnp.arange(2, dtype=jnp.uint32))
    states = resident.start_all(job.plan, algorithms, keys)
    terms = as_sweep(job.terms, len(points))
    states = resident.run_rounds(job.plan, algorithms, terms, job.clients, states, jnp.int32(0), jnp.int32(ROUNDS))
    errors = np.asarray(results.errors(job.plan, algorithms, job.tests, states)["error"])
    rows = np.concatenate([np.asarray(block.mask).sum(axis=-1) for block in job.tests], axis=1)
    pooled = ((errors * rows).sum(axis=-1) / rows.sum(axis=-1)).mean(axis=-1)
    assert pooled[0] <= 1.02 * pooled[1:].min()
