"""What a mechanism promises, searched for counterexamples: sensitivity, masks, weights, capacity, noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.extra.numpy as numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import Array
from scipy import stats

from kinfolk import models, trees
from kinfolk.accounting import composition
from kinfolk.privacy import clipping
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import Inbox
from kinfolk.privacy.mechanisms import ExactSum, GaussianSum, Sampling
from kinfolk.privacy.release import Tape, new_meter
from kinfolk.types import Model
from kinfolk.verify.attack import at_most
from kinfolk.verify.covariance_mechanisms import SECOND_MOMENT, SymmetricGaussian, matrix_of, outer_vector

UNITS, WIDTH = 4, 5
search = settings(max_examples=80, deadline=None, database=None, derandomize=True)
any_float = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
units = numbers.arrays(np.float32, (UNITS, WIDTH), elements=any_float)
clips = st.floats(-4, 4).map(lambda power: np.float32(10**power))
ROWS = clipping.rows(lambda _, unit: unit)
SUM = jax.jit(ROWS.clipped)
ON_GRID = jax.jit(ROWS.on_grid)
HUGE = np.full((UNITS, WIDTH), 3e38, np.float32)
DENORMAL = np.full((UNITS, WIDTH), 1e-42, np.float32)
MLP, CNN = models.mlp(3, 2, (4,)), models.cnn(6, 2, (2,))


def norm(tree: object) -> float:
    """In double precision, so that the check does not share the rounding of what it checks."""
    return float(np.sqrt(sum(np.square(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(tree))))


def only(index: int, count: int = UNITS) -> Array:
    return jnp.asarray(np.arange(count) == index, jnp.float32)


@search
@given(units, clips)
@example(HUGE, np.float32(1))
@example(DENORMAL, np.float32(1))
@example(np.full((UNITS, WIDTH), np.nan, np.float32), np.float32(1))
@example(np.full((UNITS, WIDTH), -np.inf, np.float32), np.float32(1))
def test_one_unit_moves_a_sum_of_rows_by_at_most_the_clip(values: np.ndarray, clip: np.float32) -> None:
    everyone = jnp.ones(UNITS, jnp.float32)
    total = SUM((), values, everyone, clip)
    assert np.isfinite(total).all()
    for index in range(UNITS):
        assert norm(SUM((), values, only(index), clip)) <= clip * (1 + 1e-6)
        moved = np.asarray(total, np.float64) - np.asarray(SUM((), values, everyone - only(index), clip), np.float64)
        assert norm(moved) <= clip * (1 + 1e-5)


@search
@given(units, clips)
@example(HUGE, np.float32(1))
@example(np.full((UNITS, WIDTH), 0.4472136, np.float32), np.float32(1))
def test_on_the_grid_the_clip_holds_in_exact_arithmetic(values: np.ndarray, clip: np.float32) -> None:
    for index in range(UNITS):
        steps = [int(v) for v in np.asarray(ON_GRID((), values, only(index), clip))]
        assert sum(step * step for step in steps) <= GRID_STEPS**2


@pytest.mark.parametrize("width", [10_000, 1_000_000])
def test_on_the_grid_the_clip_holds_for_long_vectors(width: int) -> None:
    """Rounding errors of a norm grow with the number of coordinates."""
    generator = np.random.default_rng(0)
    for value in (np.full(width, 0.1), generator.normal(size=width), np.abs(generator.standard_cauchy(width))):
        steps = np.asarray(jax.jit(ROWS.on_grid)((), value[None].astype(np.float32), jnp.ones(1), jnp.float32(3)))
        assert int(np.square(steps.astype(np.int64)).sum()) <= GRID_STEPS**2


def test_zero_and_small_contributions_are_left_alone() -> None:
    small = np.zeros((UNITS, WIDTH), np.float32)
    np.testing.assert_array_equal(SUM((), small, jnp.ones(UNITS), jnp.float32(1)), np.zeros(WIDTH))
    small[0] = 0.3
    np.testing.assert_array_equal(SUM((), small, only(0), jnp.float32(1)), small[0])


@pytest.mark.parametrize("clip", [1e-35, 1e-10, 1.0, 1e10, 1e35])
def test_what_is_far_too_long_counts_as_zero(clip: float) -> None:
    values = np.zeros((UNITS, WIDTH), np.float32)
    values[0, 0] = np.float32(min(clip * 1e18, 3e38))
    found = float(SUM((), values, only(0), jnp.float32(clip))[0])
    np.testing.assert_allclose(found, min(clip, 3e38), rtol=1e-6)
    values[0, 0] = np.float32(min(clip * 1e25, 3e38))
    assert float(SUM((), values, only(0), jnp.float32(clip))[0]) == (0.0 if clip < 1e30 else found)


def bookkeeping(model: Model) -> tuple[Callable[..., Any], Callable[..., Any]]:
    own = clipping.gradients(model)
    assert own.strategy == "book-keeping"
    plain = clipping.rows(lambda params, one: jax.grad(model.loss)(params, *one))
    return jax.jit(own.clipped), jax.jit(plain.clipped)


@search
@given(numbers.arrays(np.float32, (2, 3), elements=any_float), any_float, clips)
@example(np.array([[1.8e19, 0, 0], [0, 0, 0]], np.float32), 9e-20, np.float32(1))
@example(np.zeros((2, 3), np.float32), 3e38, np.float32(1))
@example(np.array([[1e18, 0, 0], [0, 0, 0]], np.float32), 1e-19, np.float32(1e-3))
def test_one_example_moves_a_bookkeeping_sum_by_at_most_the_clip(x: np.ndarray, y: float, clip: np.float32) -> None:
    """A linear model's gradient can be a tiny residual times a huge input: its norm must not be lost on the way."""
    params = models.linear(3).init(jax.random.key(0))
    one = LINEAR(params, (x, np.full(2, y, np.float32)), only(0, 2), clip)
    assert norm(one) <= clip * (1 + 1e-5)


@pytest.mark.slow
@search
@given(numbers.arrays(np.float32, (3, 3), elements=any_float), clips)
@example(np.full((3, 3), 1e30, np.float32), np.float32(1))
def test_one_example_moves_a_deep_bookkeeping_sum_by_at_most_the_clip(x: np.ndarray, clip: np.float32) -> None:
    params = MLP.init(jax.random.key(1))
    for index in range(3):
        assert norm(DEEP(params, (x, np.array([0, 1, 1])), only(index, 3), clip)) <= clip * (1 + 1e-4)


LINEAR, DEEP = bookkeeping(models.linear(3))[0], bookkeeping(MLP)[0]


@pytest.mark.parametrize(
    ("model", "shape"), [(MLP, (3,)), pytest.param(CNN, (6, 6, 1), marks=pytest.mark.slow)], ids=["mlp", "cnn"]
)
def test_bookkeeping_gives_the_sum_of_clipped_rows(model: Model, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(2)
    own, plain = bookkeeping(model)
    params = model.init(jax.random.key(0))
    x, y = generator.normal(size=(6, *shape)).astype(np.float32), generator.integers(0, 2, 6)
    weights = jnp.asarray([1, 1, 0, 1, 1, 1], jnp.float32)
    for clip in (0.05, 1.0, 100.0):
        a, b = (f(params, (x, y), weights, jnp.float32(clip)) for f in (own, plain))
        jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=2e-4, atol=1e-6), a, b)


@search
@given(
    numbers.arrays(np.int32, (3, 4), elements=st.integers(-2, 6)),
    numbers.arrays(np.float32, (3, 4), elements=any_float),
    clips,
)
@example(np.zeros((3, 4), np.int32), np.array([[1e8, 1, -1e8, 0]] * 3, np.float32), np.float32(1))
def test_one_example_moves_a_sparse_sum_by_at_most_the_clip(
    indices: np.ndarray, values: np.ndarray, clip: np.float32
) -> None:
    """Equal indices, and indices out of range, included."""
    x = {"indices": indices, "values": values}
    for index in range(3):
        assert norm(SPARSE(WORDS.init(jax.random.key(0)), (x, np.array([0, 1, 2])), only(index, 3), clip)) <= clip * (
            1 + 1e-5
        )


def test_bookkeeping_of_sparse_rows_gives_the_sum_of_clipped_rows() -> None:
    generator = np.random.default_rng(3)
    own, plain = bookkeeping(WORDS)
    params = jax.tree.map(lambda leaf: leaf + 0.1, WORDS.init(jax.random.key(0)))
    x = {"indices": generator.integers(0, 5, (6, 4)), "values": generator.normal(size=(6, 4)).astype(np.float32)}
    for clip in (0.05, 1.0, 100.0):
        a, b = (f(params, (x, np.arange(6) % 3), jnp.ones(6), jnp.float32(clip)) for f in (own, plain))
        jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=2e-4, atol=1e-6), a, b)


WORDS = models.generalized_linear(5, "classes", 3, sparse=True)
SPARSE = bookkeeping(WORDS)[0]


@search
@given(units, numbers.arrays(bool, UNITS))
def test_masked_rows_have_no_effect(values: np.ndarray, mask: np.ndarray) -> None:
    """Whatever stands in a masked row, NaN included, and however many of them there are."""
    clean = np.where(mask[:, None], values, 0).astype(np.float32)
    weights, clip = jnp.asarray(mask, jnp.float32), jnp.float32(1)
    np.testing.assert_array_equal(SUM((), values, weights, clip), SUM((), clean, weights, clip))
    padded = np.concatenate([clean, np.full((2, WIDTH), np.nan, np.float32)])
    longer = jnp.concatenate([weights, jnp.zeros(2)])
    np.testing.assert_allclose(SUM((), padded, longer, clip), SUM((), clean, weights, clip), atol=1e-6)


@search
@given(units, numbers.arrays(np.float32, UNITS, elements=st.floats(0, 1e6, width=32)))
def test_weights_do_not_raise_the_sensitivity_of_an_inbox(values: np.ndarray, weights: np.ndarray) -> None:
    present = np.ones(UNITS, bool)
    for index in range(UNITS):
        moved = np.subtract(*(INBOX(values, weights, present & keep) for keep in (True, np.arange(UNITS) != index)))
        assert norm(moved) <= 1 + 1e-5


@jax.jit
def INBOX(messages: Array, weights: Array, present: Array) -> Array:
    """An inbox's sum without noise, clip norm 1."""
    mechanism = GaussianSum(jnp.float32(1), jnp.float32(0), sampled_here=False)
    meter = new_meter(jax.random.key(0), ("update",))
    slots = jnp.arange(UNITS, dtype=jnp.int32)
    inbox = Inbox(messages, weights, slots, present, meter, mechanism, jnp.ones(UNITS), jnp.int32(0), False)
    return inbox.sum()[0]


@pytest.mark.slow
def test_what_overflows_a_batch_is_left_out_as_often_as_is_charged() -> None:
    size, rate, capacity, draws = 20, 0.3, 7, 40_000
    sampling = Sampling(jnp.float32(rate), capacity)
    places = jnp.arange(size, dtype=jnp.int32)

    @jax.vmap
    def draw(key: Array) -> tuple[Array, Array, Array]:
        index, filled = sampling.batch(key, places, jnp.ones(size, bool))
        return sampling.coins(key, jnp.ones(size, bool)), index, filled

    chosen, index, filled = (np.asarray(v) for v in draw(jax.random.split(jax.random.key(0), draws)))
    assert (filled.sum(axis=1) == np.minimum(chosen.sum(axis=1), capacity)).all()
    for coins, places_taken, real in zip(chosen[:500], index[:500], filled[:500], strict=True):
        assert places_taken[real].tolist() == np.flatnonzero(coins)[:capacity].tolist()
    full = int((np.delete(chosen, 3, axis=1).sum(axis=1) >= capacity).sum())
    charged = composition.overflow_probability(size, rate, capacity)
    assert full / draws == pytest.approx(charged, rel=0.05)
    kept = np.array([3 in places_taken[real] for places_taken, real in zip(index, filled, strict=True)])
    last = np.array([size - 1 in places_taken[real] for places_taken, real in zip(index, filled, strict=True)])
    for dropped in (chosen[:, 3] & ~kept, chosen[:, -1] & ~last):
        assert dropped.mean() <= at_most(round(charged * draws), draws, 1e-4)
    assert (chosen[:, -1] & ~last).any(), "nothing overflowed: the test shows nothing"


def test_capacity_keeps_overflow_to_a_thousandth_of_delta() -> None:
    for size, rate, uses, delta in ((50, 0.1, 100, 1e-5), (1000, 0.01, 1000, 1e-6), (8, 0.5, 3, 1e-2)):
        capacity = composition.capacity(size, rate, uses, delta)
        assert capacity == size or uses * composition.overflow_probability(size, rate, capacity) <= 1e-3 * delta
        assert capacity == 1 or uses * composition.overflow_probability(size, rate, capacity - 1) > 1e-3 * delta


def noise_of(mechanism: GaussianSum, kind: str, uses: int, count: int) -> np.ndarray:
    """Noise of `count` parties in `uses` uses each, of 16 coordinates: sums over units that are all masked."""

    @jax.vmap
    def party(key: Array) -> Array:
        meter, seen = new_meter(key, ("gradient", "update", "gram")), []
        for _ in range(uses):
            value, meter = mechanism(kind, meter, ROWS, (), jnp.ones((3, 16), jnp.float32), jnp.zeros(3, bool))
            seen.append(value)
        return jnp.stack(seen)

    return np.asarray(jax.jit(party)(jax.random.split(jax.random.key(7), count)), np.float64)


def test_noise_has_the_moments_and_tails_of_a_normal_variable() -> None:
    noise = noise_of(GaussianSum(jnp.float32(4), jnp.float32(1.5)), "update", 2, 8192) / 6
    flat = noise.ravel()
    assert abs(flat.mean()) < 4.5 / np.sqrt(flat.size)
    assert flat.std() == pytest.approx(1, abs=4.5 / np.sqrt(2 * flat.size))
    assert stats.kurtosis(flat) == pytest.approx(0, abs=4.5 * np.sqrt(24 / flat.size))
    assert stats.kstest(flat, "norm").pvalue > 1e-4
    for far in (2, 3, 4):
        expected = 2 * float(stats.norm.sf(far))
        assert (np.abs(flat) > far).mean() == pytest.approx(expected, abs=4.5 * float(np.sqrt(expected / flat.size)))


def test_noise_is_independent_of_other_uses_parties_coordinates_and_kinds() -> None:
    mechanism = GaussianSum(jnp.float32(1), jnp.float32(1))
    noise, other = (noise_of(mechanism, kind, 2, 4096) for kind in ("gradient", "gram"))
    pairs = [
        (noise[:, 0], noise[:, 1]),
        (noise[:-1], noise[1:]),
        (noise[..., :-1], noise[..., 1:]),
        (noise, other),
    ]
    for a, b in pairs:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4.5 / np.sqrt(a.size)


def test_inactive_releases_cost_nothing_and_show_nothing() -> None:
    mechanism, meter = GaussianSum(jnp.float32(1), jnp.float32(1)), new_meter(jax.random.key(0), ("sum",))
    values, mask = jnp.ones((3, 2), jnp.float32), jnp.ones(3, bool)
    released, after = mechanism("sum", meter, ROWS, (), values, mask, False)
    assert not np.asarray(released).any()
    assert int(after.uses["sum"]) == 0
    released, after = mechanism("sum", after, ROWS, (), values, mask, True)
    assert np.asarray(released).any()
    assert int(after.uses["sum"]) == 1


def test_noise_from_a_tape_is_added_on_the_grid_and_never_twice() -> None:
    mechanism = GaussianSum(jnp.float32(2), jnp.float32(1))
    tape = Tape({"sum": jnp.asarray([[5, -3], [1, 1]], jnp.int32)}, "noise")
    meter = replace(new_meter(jax.random.key(0), ("sum",)), tape=tape)
    values, mask = jnp.asarray([[30.0, 40.0]], jnp.float32), jnp.ones(1, bool)
    first, meter = mechanism("sum", meter, ROWS, (), values, mask)
    steps = np.asarray(first, np.float64) * GRID_STEPS / 2 - [5, -3]
    np.testing.assert_allclose(steps, np.trunc(np.array([0.6, 0.8]) * GRID_STEPS * (1 - 2**-14)), atol=1)
    _, meter = mechanism("sum", meter, ROWS, (), values, mask)
    third, _ = mechanism("sum", meter, ROWS, (), values, mask)
    assert np.isnan(np.asarray(third)).all(), "a tape that has run out must not start again"


@search
@given(numbers.arrays(np.float32, 3, elements=any_float), st.sampled_from([0.5, 1.0, 2.0]))
def test_one_model_moves_a_second_moment_by_at_most_the_squared_clip(w: np.ndarray, clip: float) -> None:
    moved = SECOND(jnp.asarray(w)[None], jnp.float32(clip))
    assert norm(moved) <= clip**2 * (1 + 1e-5)
    if np.isfinite(w).all() and 1e-3 < norm(w) < 1e6:
        kept = w.astype(np.float64) * min(1, clip / norm(w))
        np.testing.assert_allclose(moved, np.outer(kept, kept), rtol=1e-4, atol=1e-5)


@jax.jit
def SECOND(models: Array, clip: Array) -> Array:
    meter = new_meter(jax.random.key(0), (SECOND_MOMENT,))
    return SymmetricGaussian(clip, jnp.float32(0))(SECOND_MOMENT, meter, models, jnp.ones(1, bool))[0]


@pytest.mark.slow
def test_noise_of_a_second_moment_is_symmetric_with_the_stated_deviations() -> None:
    def one(key: Array) -> Array:
        meter = new_meter(key, (SECOND_MOMENT,))
        release = SymmetricGaussian(jnp.float32(2), jnp.float32(1.5))
        return release(SECOND_MOMENT, meter, jnp.zeros((1, 3), jnp.float32), jnp.ones(1, bool))[0]

    noise = np.asarray(jax.vmap(one)(jax.random.split(jax.random.key(0), 20_000)))
    np.testing.assert_array_equal(noise, noise.transpose(0, 2, 1))
    deviations = np.full((3, 3), 6 / np.sqrt(2))
    np.fill_diagonal(deviations, 6)
    np.testing.assert_allclose(noise.std(axis=0), deviations, rtol=0.03)
    w = jnp.asarray([1.0, -2.0, 3.0], jnp.float32)
    np.testing.assert_allclose(matrix_of(outer_vector(w), 3), jnp.outer(w, w), rtol=1e-6)


def test_an_exact_sum_draws_a_fresh_batch_at_every_use() -> None:
    mechanism, meter = ExactSum(Sampling(jnp.float32(0.5))), new_meter(jax.random.key(0), ())
    values, mask, seen = jnp.eye(16, dtype=jnp.float32), jnp.ones(16, bool), []
    for _ in range(3):
        batch, meter = mechanism("sum", meter, ROWS, (), values, mask)
        seen.append(tuple(np.asarray(batch).tolist()))
    assert len(set(seen)) == 3
    assert trees.size(meter.uses) == 0
