"""Releases of second moments: sensitivity by search, noise, grid, Laplace, and who may use them."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.extra.numpy as numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import Array
from scipy import stats

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.privacy import clipping, moments
from kinfolk.privacy import exact_noise as exact
from kinfolk.privacy.choice import NoisyMin
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import SECOND_MOMENT, SQUARES, Inbox
from kinfolk.privacy.mechanisms import Cost, ExactSum, GaussianSum, LaplaceSum
from kinfolk.privacy.release import PrivacyError, Tape, new_meter

CLIENTS, FEATURES, OUTPUTS = 3, 4, 2
search = settings(max_examples=60, deadline=None, database=None, derandomize=True)
any_float = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
messages = numbers.arrays(np.float32, (CLIENTS, FEATURES, OUTPUTS), elements=any_float)
weights = numbers.arrays(np.float32, CLIENTS, elements=st.floats(0, 1e6, width=32))
clips = st.floats(-3, 3).map(lambda power: np.float32(10**power))
ODD = [np.full((CLIENTS, FEATURES, OUTPUTS), value, np.float32) for value in (0, 3e38, 1e-42, np.nan, np.inf, -np.inf)]
SUMS = {"second_moment": moments.second_moments(), "squares": moments.squares()}
CLIPPED = {name: jax.jit(found.clipped) for name, found in SUMS.items()}
ON_GRID = {name: jax.jit(found.on_grid) for name, found in SUMS.items()}
ONES = np.ones(CLIENTS, np.float32)


def alone(name: str, values: np.ndarray, weight: np.ndarray, index: int, clip: np.float32, grid: bool = False) -> Array:
    present = jnp.asarray(np.arange(CLIENTS) == index, jnp.float32)
    units = (jnp.asarray(values), jnp.asarray(weight), jnp.arange(CLIENTS))
    return np.asarray((ON_GRID if grid else CLIPPED)[name]((), units, present, clip))  # type: ignore[return-value]


@pytest.mark.parametrize("name", SUMS)
@search
@given(messages, weights, clips)
@example(ODD[0], ONES, np.float32(1))
@example(ODD[1], ONES, np.float32(1))
@example(ODD[2], ONES, np.float32(1))
@example(ODD[3], ONES, np.float32(1))
@example(ODD[4], ONES, np.float32(1))
@example(ODD[5], ONES, np.float32(1))
def test_one_client_moves_a_moment_by_at_most_the_squared_clip(
    name: str, values: np.ndarray, weight: np.ndarray, clip: np.float32
) -> None:
    for index in range(CLIENTS):
        moved = np.asarray(alone(name, values, weight, index, clip), np.float64)
        assert np.isfinite(moved).all()
        assert np.sqrt(np.square(moved).sum()) <= float(clip) ** 2 * (1 + 1e-5)
        if SUMS[name].within_l1:
            assert np.abs(moved).sum() <= float(clip) ** 2 * (1 + 1e-5)


@pytest.mark.parametrize("name", SUMS)
@search
@given(messages, clips)
@example(ODD[1], np.float32(1))
@example(np.full((CLIENTS, FEATURES, OUTPUTS), 0.35355339, np.float32), np.float32(1))
def test_on_the_grid_the_bound_holds_in_exact_arithmetic(name: str, values: np.ndarray, clip: np.float32) -> None:
    for index in range(CLIENTS):
        steps = [int(v) for v in np.ravel(alone(name, values, ONES, index, clip, grid=True))]
        assert sum(step * step for step in steps) <= GRID_STEPS**2
        if SUMS[name].within_l1:
            assert sum(abs(step) for step in steps) <= GRID_STEPS


def inbox(mechanism: object, key: Array, values: Array, tape: Tape | None = None) -> Inbox:
    meter = replace(new_meter(key, (SECOND_MOMENT, SQUARES)), tape=tape)
    count = values.shape[0]
    slots, present = jnp.arange(count, dtype=jnp.int32), jnp.ones(count, bool)
    return Inbox(values, jnp.ones(count), slots, present, meter, mechanism, jnp.ones(count), jnp.int32(0), False)  # type: ignore[arg-type]


@pytest.mark.slow
def test_values_are_the_moments_of_clipped_models() -> None:
    values = jnp.asarray(np.random.default_rng(0).normal(size=(5, FEATURES, OUTPUTS)), jnp.float32)
    kept = np.stack([w * min(1, 1.5 / np.linalg.norm(w)) for w in np.asarray(values)])
    exact = np.einsum("mdo,meo->de", kept, kept)
    quiet = inbox(GaussianSum(jnp.float32(1.5), jnp.float32(0), sampled_here=False), jax.random.key(0), values)
    np.testing.assert_allclose(quiet.second_moment()[0], exact, rtol=1e-5)
    np.testing.assert_allclose(quiet.squares()[0], np.diag(exact), rtol=1e-5)
    plain = inbox(ExactSum(sampled_here=False), jax.random.key(0), values)
    np.testing.assert_allclose(plain.second_moment()[0], np.einsum("mdo,meo->de", values, values), rtol=1e-5)
    assert plain.deviation == 0


def noise_of(mechanism: object, query: str, count: int = 4000) -> np.ndarray:
    empty = jnp.zeros((2, 3, 1), jnp.float32)
    draw = jax.vmap(lambda key: getattr(inbox(mechanism, key, empty), query)()[0])
    return np.asarray(draw(jax.random.split(jax.random.key(3), count)), np.float64)


@pytest.mark.slow
def test_noise_has_the_stated_deviations_and_shape() -> None:
    gaussian = GaussianSum(jnp.float32(2), jnp.float32(1.5), sampled_here=False)
    noise = noise_of(gaussian, "second_moment")
    np.testing.assert_array_equal(noise, noise.transpose(0, 2, 1))
    expected = np.full((3, 3), 6 / np.sqrt(2))
    np.fill_diagonal(expected, 6)
    np.testing.assert_allclose(noise.std(axis=0), expected, rtol=0.06)
    assert float(inbox(gaussian, jax.random.key(0), jnp.zeros((2, 3, 1))).deviation) == 6
    assert stats.kstest(noise_of(gaussian, "squares").ravel() / 6, "norm").pvalue > 1e-4
    laplace = LaplaceSum(jnp.float32(2), jnp.float32(1.5))
    assert stats.kstest(noise_of(laplace, "squares").ravel() / 6, "laplace").pvalue > 1e-4


@pytest.mark.parametrize(
    "mechanism",
    [GaussianSum(np.float32(2), np.float32(1), sampled_here=False), LaplaceSum(np.float32(2), np.float32(1))],
)
def test_exact_noise_is_added_on_the_grid(mechanism: object) -> None:
    tape = Tape({SQUARES: jnp.asarray([[5, -3, 0, 1]], jnp.int32)}, "noise")
    values = jnp.zeros((1, FEATURES, 1)).at[0, 1].set(30.0)
    total, _ = inbox(mechanism, jax.random.key(0), values, tape).squares()
    steps = np.asarray(total, np.float64) * GRID_STEPS / 4 - [5, -3, 0, 1]
    np.testing.assert_allclose(steps, [0, GRID_STEPS * (1 - 2**-14), 0, 0], atol=2)


def test_laplace_noise_refuses_what_is_not_bounded_in_l1() -> None:
    values = jnp.ones((2, 3, 1), jnp.float32)
    own = inbox(LaplaceSum(jnp.float32(1), jnp.float32(1)), jax.random.key(0), values)
    with pytest.raises(PrivacyError, match="second_moment"):
        own.second_moment()
    plain, present = clipping.rows(lambda _, unit: unit), jnp.ones(2, bool)
    with pytest.raises(PrivacyError, match="Laplace"):
        LaplaceSum(jnp.float32(1), jnp.float32(1))("sum", own._meter, plain, (), values, present)


def test_exact_noise_follows_the_mechanism_and_has_its_limits() -> None:
    count, scale = 20_000, 3.0
    for mechanism, law in ((GaussianSum(1.0, 3.0), "norm"), (LaplaceSum(1.0, 3.0), "laplace")):
        noise = exact.integers(mechanism, np.array(scale), (count,)) / (GRID_STEPS * scale)
        assert stats.kstest(noise, law).pvalue > 1e-4
    exact.check_grid(LaplaceSum(1.0, 400.0), 2**14)
    with pytest.raises(PrivacyError, match="epsilon"):
        exact.check_grid(LaplaceSum(1.0, 450.0), 10)
    with pytest.raises(PrivacyError, match=r"16385 units exactly.*smaller samples"):
        exact.check_grid(LaplaceSum(1.0, 1.0), 2**14 + 1)
    exact.check_grid(NoisyMin(1.0, 2e4), 10)
    with pytest.raises(PrivacyError, match="choice_epsilon"):
        exact.check_grid(NoisyMin(1.0, 3e4), 10)
    with pytest.raises(PrivacyError, match="all of a client's examples"):
        exact.check_grid(NoisyMin(1.0, 1.0), 2**20 + 1)


def test_laplace_and_group_costs() -> None:
    """A single release is pure epsilon: never more, and hardly less at a small delta."""
    for relation, distance in (("zero_out", 1), ("replace_one", 2)):
        cost = Cost("laplace", noise_for_budget.laplace_multiplier(0.5, 1, relation), relation=relation)
        assert cost.noise_multiplier == pytest.approx(2 * distance)
        assert 0.499 < composition.epsilon([(cost, 1)], 1e-6) <= 0.5
    assert composition.epsilon([(Cost("laplace", 8.0), 4)], 1e-9) <= 0.5
    three, one = Cost("gaussian", 9.0, group=3), Cost("gaussian", 3.0)
    assert composition.epsilon([(three, 2)], 1e-5) == pytest.approx(composition.epsilon([(one, 2)], 1e-5))
    mixed = [(Cost("laplace", 4.0), 1), (Cost("gaussian", 4.0, group=2), 1)]
    assert composition.epsilon(mixed, 1e-5) > composition.epsilon(mixed[:1], 1e-5)
    alone, pair, always = (Cost("gaussian", 4.0, rate, group=n) for rate, n in ((0.5, 1), (0.5, 2), (1.0, 2)))
    low, middle, high = (composition.epsilon([(cost, 1)], 1e-5) for cost in (alone, pair, always))
    assert low < middle < high
