"""Clients in turns: the same results as all together."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models
from kinfolk.building import as_sweep
from kinfolk.data.federation import from_rows
from kinfolk.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.jobs import Job, prepare
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.simulation import engine, mapping

SIZES = (4, 5, 8, 8, 9)


def images_job(level: PrivacyLevel, seeds: int = 1) -> Job:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(sum(SIZES), 10, 10, 1)).astype(np.float32)
    y = generator.integers(0, 3, sum(SIZES)).astype(np.int32)
    data = from_rows(x, y, np.repeat([f"c{k}" for k in range(len(SIZES))], SIZES), outcome="classes", classes=3)
    experiment = Experiment(
        seed=0,
        seeds=seeds,
        model=ModelChoice("cnn_small"),
        training=Training(batch_size=3),
        privacy=level,
        phases=(Phase("mean_regularized", 2, {"strength": 0.5}),),
    )
    return prepare(experiment, [data] * seeds)


def run(job: Job) -> list[np.ndarray]:
    """The final state and errors, compiled anew."""
    jax.clear_caches()
    algorithm, terms = as_sweep(job.algorithms[0], 2), as_sweep(job.terms, 2)
    keys = jax.vmap(jax.random.key)(jnp.arange(job.experiment.seeds, dtype=jnp.uint32))
    state = engine.start_all(job.plan, algorithm, keys)
    state = engine.run_rounds(job.plan, algorithm, terms, job.clients, state, jnp.int32(0), jnp.int32(2))
    errors = engine.errors(job.plan, algorithm, job.tests, state)
    kept = (state.shared, state.personal, state.meters.uses, state.meters.draws, errors)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(kept)]


LEVELS = {
    "example": PrivacyLevel("example", noise_multiplier=1.0, delta=1e-3),
    "client": PrivacyLevel("client", noise_multiplier=1.0, delta=1e-3, cohort=2.0),
}


@pytest.mark.parametrize("name", LEVELS)
def test_in_turns_equals_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = images_job(LEVELS[name], seeds=2)
    assert mapping.takes_turns(job.plan.model)
    if name == "client":  # places for a part of the clients, some of them empty
        inbox = replace(job.terms.inbox, sampling=replace(job.terms.inbox.sampling, capacity=4))
        job = replace(job, terms=replace(job.terms, inbox=inbox))
    in_turns = run(job)
    monkeypatch.setattr(mapping, "takes_turns", lambda model: False)
    for a, b in zip(in_turns, run(job), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_who_takes_turns() -> None:
    assert not mapping.takes_turns(models.linear(28))
    assert mapping.takes_turns(models.softmax(784, 62))
    assert mapping.takes_turns(models.cnn_small(10, 3))


def test_an_absent_client_costs_nothing() -> None:
    seen: list[float] = []

    def noted(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda value: seen.append(float(value)), x)
        return 2 * x

    present, x = jnp.array([True, False, True]), jnp.arange(3.0)
    out = mapping.over_clients(models.cnn_small(10, 3), noted, present, x)
    jax.effects_barrier()
    assert sorted(seen) == [0, 2]
    np.testing.assert_array_equal(out, [0, 0, 4])
