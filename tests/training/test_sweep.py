"""A figure as one program: the same numbers as one simulation after the other, and refusals that say what to do."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import Experiment, Federation, Phase, example_level, from_rows, simulate, sweep
from kinfolk.toml import ConfigError

ROUNDS, STRENGTHS = 3, (0.2, 2.0)
EXPERIMENT = Experiment(
    seed=0, seeds=2, privacy=example_level(epsilon=4.0, delta=1e-3), phases=(Phase("mean_regularized", ROUNDS),)
)


def federation(seed: int) -> Federation:
    x = np.random.default_rng(seed).uniform(-1, 1, size=(60, 2)).astype(np.float32)
    return from_rows(x, x.sum(axis=1), np.repeat(list("abc"), [14, 20, 26]), name="three")


@pytest.mark.slow
def test_every_point_and_seed_is_a_simulation_of_its_own() -> None:
    figure = sweep(EXPERIMENT, {"strength": STRENGTHS}, data=[federation(0), federation(1)])
    states = figure.rounds(figure.init(range(2)), 0, ROUNDS)
    found = np.asarray(figure.errors(states)["error"])
    for point, strength in enumerate(STRENGTHS):
        options = {"strength": strength}
        sim = simulate(federation(1), "mean_regularized", EXPERIMENT.privacy, rounds=ROUNDS, options=options)
        alone = sim.evaluate(sim.step(sim.init(1), ROUNDS))["error"]
        np.testing.assert_allclose(found[point, 1], alone, rtol=1e-4)
    assert not np.allclose(found[0], found[1])
    rows = np.asarray(federation(0).test.sizes, float)
    np.testing.assert_allclose(
        figure.pooled(jnp.asarray(found))[:, 0], (found[:, 0] * rows).sum(axis=1) / rows.sum(), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("experiment", "over", "words"),
    [
        (Experiment(phases=EXPERIMENT.phases), {}, "seed=None and phases=1: a sweep is a simulation"),
        (EXPERIMENT, {"strength": (1.0,), "step_size": (0.1, 0.2)}, "every option needs one for every point"),
        (EXPERIMENT, {"rule": ("increment",)}, "over='rule' is not a number of mean_regularized"),
        (EXPERIMENT, {"strength": (-1.0,)}, "strength=-1"),
    ],
)
def test_what_cannot_be_swept_is_refused(experiment: Experiment, over: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sweep(experiment, over, data=[federation(0), federation(1)])
