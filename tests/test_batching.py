"""Clients in turns: the same results as all together."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import batching, models
from kinfolk.data.federation import from_rows
from kinfolk.engines import resident, results
from kinfolk.privacy import clipping
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.privacy.mechanisms import shuffled_batch
from kinfolk.training.build import as_sweep
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import Job, prepare

pytestmark = pytest.mark.usefixtures("own_programs")

SIZES = (4, 5, 8, 8, 9)


def images_job(level: PrivacyLevel, seeds: int = 1, batches: str = "poisson", model: str = "cnn_small") -> Job:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(sum(SIZES), 10, 10, 1)).astype(np.float32)
    y = generator.integers(0, 3, sum(SIZES)).astype(np.int32)
    data = from_rows(x, y, np.repeat([f"c{k}" for k in range(len(SIZES))], SIZES), outcome="classes", classes=3)
    experiment = Experiment(
        seed=0,
        seeds=seeds,
        model=ModelChoice(model),
        training=Training(batch_size=3, batches=batches),
        privacy=level,
        phases=(Phase("mean_regularized", 2, {"strength": 0.5}),),
    )
    return prepare(experiment, [data] * seeds)


def run(job: Job) -> list[np.ndarray]:
    """The final state and errors, compiled anew."""
    jax.clear_caches()
    algorithm, terms = as_sweep(job.algorithms[0], 2), as_sweep(job.terms, 2)
    keys = jax.vmap(jax.random.key)(jnp.arange(job.experiment.seeds, dtype=jnp.uint32))
    state = resident.start_all(job.plan, algorithm, keys)
    state = resident.run_rounds(job.plan, algorithm, terms, job.clients, state, jnp.int32(0), jnp.int32(2))
    errors = results.errors(job.plan, algorithm, job.tests, state)
    kept = (state.shared, state.personal, state.meters.uses, state.meters.draws, errors)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(kept)]


LEVELS = {
    "example": PrivacyLevel(Level.EXAMPLE, noise_multiplier=1.0, delta=1e-3),
    "client": PrivacyLevel(Level.CLIENT, noise_multiplier=1.0, delta=1e-3, cohort=2.0),
}


@pytest.mark.parametrize("model", ["cnn_small", "softmax"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.slow
def test_in_turns_equals_together(name: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CNN's clients one at a time, others two at a time; those with one of two steps in a shorter loop."""
    monkeypatch.setattr(batching, "MOST_TOGETHER", 0)
    monkeypatch.setattr(batching, "MOST_AT_A_TIME", 700)
    job = images_job(LEVELS[name], seeds=2, model=model)
    assert set(np.asarray(job.clients.steps).ravel().tolist()) == {1, 2}
    assert batching.takes_turns(job.plan.model)
    assert not any(check.violations for check in job.checks)
    if name == "client":  # places for a part of the clients, some of them empty
        inbox = replace(job.terms.inbox, sampling=replace(job.terms.inbox.sampling, capacity=4))
        job = job.with_terms(replace(job.terms, inbox=inbox))
    in_turns = run(job)
    monkeypatch.setattr(batching, "takes_turns", lambda model: False)
    for a, b in zip(in_turns, run(job), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_who_takes_turns() -> None:
    assert not batching.takes_turns(models.linear(28))
    assert batching.takes_turns(models.softmax(784, 62))
    assert batching.takes_turns(models.cnn_small(10, 3))


def test_an_absent_client_costs_nothing() -> None:
    seen: list[float] = []

    def noted(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda value: seen.append(float(value)), x)
        return 2 * x

    present, x = jnp.array([True, False, True]), jnp.arange(3.0)
    out = batching.over_clients(models.cnn_small(10, 3), lambda _, own: noted(own), (), present, x)
    jax.effects_barrier()
    assert sorted(seen) == [0, 2]
    np.testing.assert_array_equal(out, [0, 0, 4])


@pytest.mark.parametrize(("together", "at_a_time"), [(0, 1), (0, 2), (0, 10), (10**6, 1)])
def test_rows_are_changed_where_they_are(together: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five places for four clients: rows of absent clients stay, whoever sits in them."""
    monkeypatch.setattr(batching, "MOST_TOGETHER", together)
    monkeypatch.setattr(batching, "MOST_AT_A_TIME", 5 * at_a_time)
    model, kept, fixed = models.linear(4), jnp.arange(12.0).reshape(4, 3, 1), jnp.arange(1.0, 5)
    places = jnp.zeros(4, int), jnp.array([True, True, True, False, False]), jnp.array([3, 0, 1, 4, 4])
    found, after = batching.at_places(model, [lambda k, f: (k.sum() * f, k + 100)], *places, kept, fixed)
    np.testing.assert_array_equal(found, [30 * 4, 3, 12 * 2, 0, 0])
    np.testing.assert_array_equal(after, kept + 100 * jnp.array([1.0, 1, 0, 1]).reshape(4, 1, 1))


@pytest.mark.parametrize(
    ("at_a_time", "found", "after"),
    [
        (1, [60, 50, 40, 30, 0, 10], [2, 0, 2, 2, 2, 2]),
        (2, [6, 50, 4, 30, 0, 10], [2, 0, 2, 1, 2, 1]),
        (10, [60, 50, 40, 30, 0, 10], [2, 0, 2, 2, 2, 2]),
    ],
)
def test_a_turn_takes_the_quickest_function_that_is_right_for_all_in_it(
    at_a_time: int, found: list[int], after: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients 0, 2 and 4 need the second function; the others come first, so two at a time they are by themselves. One
    at a time, nobody needs a quicker one."""
    monkeypatch.setattr(batching, "MOST_TOGETHER", 0)
    monkeypatch.setattr(batching, "MOST_AT_A_TIME", 5 * at_a_time)
    functions = [lambda kept, fixed: (fixed, kept + 1), lambda kept, fixed: (10 * fixed, kept + 2)]
    least = jnp.array([1, 0, 1, 0, 1, 0])
    places = jnp.array([1, 1, 1, 1, 0, 1], bool), jnp.array([5, 4, 3, 2, 9, 0])
    out = batching.at_places(models.linear(4), functions, least, *places, jnp.zeros(6), jnp.arange(1.0, 7))
    np.testing.assert_array_equal(out[0], found)
    np.testing.assert_array_equal(out[1], after)


@pytest.mark.parametrize("at_a_time", [1, 2, 10])
@pytest.mark.parametrize("here", [[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
def test_everybodys_row_is_their_own(here: list[int], at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MOST_TOGETHER", 0)
    monkeypatch.setattr(batching, "MOST_AT_A_TIME", 5 * at_a_time)
    present, x = jnp.array(here, bool), jnp.arange(1.0, 6)
    found = batching.over_clients(models.linear(4), lambda by, a, b: (by * a, b[:1]), 2, present, x, jnp.ones((5, 3)))
    np.testing.assert_array_equal(found[0], 2 * x * jnp.array(here, x.dtype))
    np.testing.assert_array_equal(found[1], present[:, None])


@pytest.mark.slow
def test_shuffled_batches_are_passes() -> None:
    """Every batch is full of real rows, no row comes twice in a pass, and the next pass has another order."""
    mask = jnp.arange(12) < 10
    key = jax.random.key(1)
    drawn = [shuffled_batch(3, key, jnp.int32(n), jnp.arange(12), mask) for n in range(6)]
    assert all(bool(filled.all()) and len(rows) == 3 for rows, filled in drawn)
    passes = [np.concatenate([rows for rows, _ in drawn[k : k + 3]]).tolist() for k in (0, 3)]
    assert all(len(set(rows)) == 9 and max(rows) < 10 for rows in passes)
    assert passes[0] != passes[1]
    rows, filled = shuffled_batch(3, key, jnp.int32(5), jnp.arange(4), jnp.array([True, True, False, False]))
    assert int(filled.sum()) == 2
    assert set(np.asarray(rows)[np.asarray(filled)].tolist()) == {0, 1}


@pytest.mark.slow
def test_every_row_is_as_likely_to_be_first() -> None:
    keys = jax.random.split(jax.random.key(0), 4000)
    first = jax.vmap(lambda key: shuffled_batch(1, key, jnp.int32(0), jnp.arange(5), jnp.ones(5, bool))[0][0])(keys)
    assert np.abs(np.bincount(np.asarray(first), minlength=5) / 4000 - 0.2).max() < 0.03


@pytest.mark.slow
def test_shuffled_batches_have_no_account_at_example_level() -> None:
    with pytest.raises(ValueError, match="batches='shuffled' has no account"):
        images_job(LEVELS["example"], batches="shuffled")
    job = images_job(LEVELS["client"], batches="shuffled")
    assert job.terms.data.shuffled == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("at_a_time", [1, 4, 10])
def test_a_sum_in_turns_equals_one_at_once(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    units = jax.random.normal(jax.random.key(0), (6, 7)).at[2].set(jnp.nan)
    weights, what = jnp.array([1.0, 1, 1, 0, 1, 1]), clipping.rows(lambda public, unit: public * unit)
    together = what.clipped(jnp.float32(2), units, weights, jnp.float32(1.5))
    on_grid = what.on_grid(jnp.float32(2), units, weights, jnp.float32(1.5))
    monkeypatch.setattr(batching, "MOST_TOGETHER", 0)
    monkeypatch.setattr(batching, "MOST_AT_A_TIME", 7 * at_a_time)
    np.testing.assert_allclose(what.clipped(jnp.float32(2), units, weights, jnp.float32(1.5)), together, rtol=1e-5)
    np.testing.assert_array_equal(what.on_grid(jnp.float32(2), units, weights, jnp.float32(1.5)), on_grid)


@pytest.mark.parametrize("together", [0, 10**6])
def test_what_is_left_out_spoils_no_exact_sum(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MOST_TOGETHER", together)
    units = jnp.ones((3, 7)).at[1].set(jnp.nan)
    found = clipping.rows(lambda public, unit: unit).exact((), units, jnp.array([1.0, 0, 1]))
    np.testing.assert_array_equal(found, np.full(7, 2.0))


def test_a_release_takes_as_long_whatever_the_coins_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silo's answer says when it was ready, and its coins are secret: nothing is left out by a coin."""
    monkeypatch.setattr(batching, "MOST_TOGETHER", 0)
    what, clip = clipping.rows(lambda public, unit: public * unit), jnp.float32(1.5)
    arguments = (jnp.float32(2), jnp.ones((6, 7)), jnp.ones(6), clip)
    assert "cond[" in str(jax.make_jaxpr(what.clipped)(*arguments))
    assert "cond[" not in str(jax.make_jaxpr(what.on_grid)(*arguments))
