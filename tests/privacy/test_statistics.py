"""Statistics of rows: how far one row moves them, by search, on the grid too; their values and their noise."""

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

from kinfolk import models
from kinfolk.accounting.pairs import distance
from kinfolk.privacy import statistics
from kinfolk.privacy.choice import NoisyMin
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import STATISTIC, DataGate
from kinfolk.privacy.mechanisms import ExactSum, GaussianSum, Mechanism
from kinfolk.privacy.release import Cost, new_meter
from kinfolk.privacy.statistics import (
    FeatureLook,
    FeatureSpread,
    FirstLook,
    Line,
    LogisticGradient,
    Losses,
    OneOf,
    Query,
    Residuals,
    RowMoments,
)
from kinfolk.types import Rows

FEATURES, COUNT = 3, 4
search = settings(max_examples=60, deadline=None, database=None, derandomize=True)
any_float = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
rows_of = numbers.arrays(np.float32, (COUNT, FEATURES + 1), elements=any_float)
near = numbers.arrays(np.float32, (2, FEATURES + 1), elements=st.floats(-3, 3, width=32))
clips = st.floats(-3, 3).map(lambda power: np.float32(10**power))
ODD = [np.full((COUNT, FEATURES + 1), value, np.float32) for value in (0, 3e38, 1e-42, np.nan, np.inf, -np.inf)]


def f(*values: float) -> Array:
    return jnp.asarray(values, jnp.float32)


LINE = Line(f(0.1, -0.2, 0), 2 * jnp.eye(FEATURES), f(0.5, 1, -1, 2), jnp.float32(0.8), jnp.float32(0.05))
ALONE: dict[str, Query] = {
    "first look": FirstLook(jnp.float32(0.7), jnp.float32(0.9), f(0.5, 0.3, 0.2), 7),
    "row moments": RowMoments(f(0.3, -0.1, 0.2), jnp.float32(0.4)),
    "residuals": Residuals(LINE, f(0.5, 2), jnp.float32(3), f(0.2, 0.7, 0.1)),
    "losses": Losses(replace(LINE, weights=jnp.stack([LINE.weights, 0 * LINE.weights])), jnp.float32(2)),
    "feature look": FeatureLook(jnp.float32(0.7), f(0.7, 0.3)),
    "feature spread": FeatureSpread(f(0.3, -0.1, 0.2), jnp.float32(0.4), jnp.float32(0.1)),
    "logistic gradient": LogisticGradient(f(0.5, 1, -1, 2), jnp.float32(0.6)),
}
QUERIES: dict[str, Query] = ALONE | {"one of them": OneOf(jnp.int32(2), tuple(ALONE.values()))}
SUM = statistics.bounded()
CLIPPED = {name: jax.jit(lambda *args, q=query: SUM.clipped(q, *args)) for name, query in QUERIES.items()}
ON_GRID = {name: jax.jit(lambda *args, q=query: SUM.on_grid(q, *args)) for name, query in QUERIES.items()}
ONE = {name: jax.jit(query.contribution) for name, query in QUERIES.items()}


def of(values: np.ndarray) -> tuple[Array, Array]:
    return jnp.asarray(values[:, :-1]), jnp.asarray(values[:, -1])


@pytest.mark.parametrize("name", QUERIES)
@search
@given(rows_of, clips)
@example(ODD[0], np.float32(1))
@example(ODD[1], np.float32(1))
@example(ODD[2], np.float32(1))
@example(ODD[3], np.float32(1))
@example(ODD[4], np.float32(1))
@example(ODD[5], np.float32(1))
def test_one_row_moves_a_sum_by_at_most_the_clip(name: str, values: np.ndarray, clip: np.float32) -> None:
    """Left out, it moves it by its contribution; replaced, by the difference of two; padding moves nothing."""
    own = [np.asarray(CLIPPED[name](of(values), jnp.asarray(w, jnp.float32), clip), float) for w in np.eye(COUNT)]
    both = np.asarray(CLIPPED[name](of(values), f(1, 1, 0, 0), clip), float)
    assert np.isfinite(own).all()
    assert max(np.linalg.norm(one) for one in own) <= clip * (1 + 1e-5)
    np.testing.assert_allclose(both, own[0] + own[1], atol=1e-4 * float(clip))
    replaced = float(clip) * distance(Cost("gaussian", 1.0, relation="replace_one"))
    assert np.linalg.norm(own[0] - own[1]) <= replaced * (1 + 1e-5)
    for weight in np.eye(COUNT):
        steps = np.asarray(ON_GRID[name](of(values), jnp.asarray(weight, jnp.float32), clip)).ravel().tolist()
        assert sum(step * step for step in steps) <= GRID_STEPS**2


@pytest.mark.parametrize("name", QUERIES)
@search
@given(near)
def test_a_query_bounds_itself_so_that_the_clip_cuts_nothing(name: str, values: np.ndarray) -> None:
    x, y = of(values)
    first, second = (np.asarray(ONE[name](x[k], y[k]), float) for k in range(2))
    assert np.linalg.norm(first) <= 1 + 1e-5
    if name == "row moments":  # charged as 2 all the same
        assert np.linalg.norm(first - second) <= 1.5 * (1 + 1e-5)


def gate(mechanism: Mechanism, x: Array, y: Array, key: Array) -> DataGate:
    rows, count = Rows(x, y, jnp.ones(len(y), bool)), jnp.float32(len(y))
    chooser = NoisyMin(jnp.float32(1), jnp.float32(1))
    public = (count, jnp.int32(1), jnp.int32(0), 1, models.linear(FEATURES))
    return DataGate(rows, new_meter(key, (STATISTIC,)), mechanism, chooser, *public)


@pytest.mark.slow
def test_values_are_means_and_noise_is_what_the_gate_says() -> None:
    generator = np.random.default_rng(0)
    x, y = (
        jnp.asarray(v, jnp.float32) for v in (generator.uniform(-1, 1, (50, FEATURES)), generator.uniform(-1, 1, 50))
    )
    query = ALONE["row moments"]
    plain, _ = gate(ExactSum(), x, y, jax.random.key(0)).statistic(query)
    centred = np.asarray(x) - np.asarray([0.3, -0.1, 0.2])
    kept = centred * np.minimum(1, 0.4 / np.linalg.norm(centred, axis=1))[:, None]
    moments = np.concatenate([np.einsum("ni,nj->ij", kept, kept).ravel(), 0.4 * kept.sum(0)]) / (2**0.5 * 0.16 * 50)
    np.testing.assert_allclose(plain, moments, atol=1e-5)
    noisy = GaussianSum(jnp.float32(3), jnp.float32(2))
    drawn = jax.jit(jax.vmap(lambda key: gate(noisy, x, y, key).statistic(query)[0]))
    found = np.asarray(drawn(jax.random.split(jax.random.key(1), 4000)))
    noise = float(gate(noisy, x, y, jax.random.key(0)).relative_noise)
    assert noise == pytest.approx(2 / 50)
    np.testing.assert_allclose(found.std(axis=0), noise, rtol=0.08)
    np.testing.assert_allclose(found.mean(axis=0), moments, atol=5 * noise / 4000**0.5)
    nothing, after = gate(noisy, x, y, jax.random.key(0)).statistic(query, active=False)
    assert not np.asarray(nothing).any()
    assert after._meter.uses[STATISTIC] == 0


def test_a_soft_place_keeps_the_mean_and_stays_in_the_range() -> None:
    nodes = np.linspace(-1, 1, 7)
    for value in (-5.0, -1.0, -0.31, 0.0, 0.5, 0.99, 7.0):
        place = np.asarray(statistics.hats(jnp.float32(value), 7))
        assert place.sum() == pytest.approx(1)
        assert place @ nodes == pytest.approx(np.clip(value, -1, 1), abs=1e-6)
