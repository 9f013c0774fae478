"""What one person, with all rows, can move: gradients, statistics and choices, searched for counterexamples."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinfolk import models
from kinfolk.privacy import clipping, statistics
from kinfolk.privacy.choice import NoisyMin
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.release import new_meter
from kinfolk.privacy.statistics import RowMoments
from kinfolk.types import Model
from kinfolk.units import Several, over_rows

UNITS, PLACES = 3, 4
search = settings(max_examples=40, deadline=None, database=None, derandomize=True)
any_float = st.floats(width=32, allow_nan=True, allow_infinity=True)
rows = numbers.arrays(np.float32, (UNITS, PLACES, 3), elements=any_float)
MODEL = models.linear(3)
PARAMS = MODEL.init(jax.random.key(0))
GRADIENTS = clipping.gradients(MODEL)
CLIPPED, ON_GRID = jax.jit(GRADIENTS.clipped), jax.jit(GRADIENTS.on_grid)
SHARES = np.array([[0.25] * 4, [0.5, 0.5, 0, 0], [1, 0, 0, 0]], np.float32)
MOMENTS = statistics.bounded()
SUMMED = jax.jit(MOMENTS.clipped)


def norm(tree: object) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(tree))))


def only(index: int) -> jax.Array:
    return jnp.asarray(np.arange(UNITS) == index, jnp.float32)


def units(x: Any, y: float = 1e3) -> tuple[Several, np.ndarray]:
    return Several(x, SHARES), np.full((UNITS, PLACES), y, np.float32)


@search
@given(rows, any_float)
@example(np.full((UNITS, PLACES, 3), 1.0, np.float32), 1e4)
@example(np.full((UNITS, PLACES, 3), 1e19, np.float32), 1e-19)
def test_one_person_moves_a_gradient_by_at_most_the_clip(x: np.ndarray, y: float) -> None:
    for index in range(UNITS):
        assert norm(CLIPPED(PARAMS, units(x, y), only(index), jnp.float32(1))) <= 1 + 1e-5
        steps = jax.tree.leaves(ON_GRID(PARAMS, units(x, y), only(index), jnp.float32(1)))
        assert sum(int(step) ** 2 for leaf in steps for step in np.ravel(leaf)) <= GRID_STEPS**2


@search
@given(rows)
@example(np.full((UNITS, PLACES, 3), 3.0, np.float32))
def test_one_person_moves_a_statistic_by_at_most_the_clip(x: np.ndarray) -> None:
    query = RowMoments(jnp.zeros(3), jnp.float32(1))
    for index in range(UNITS):
        assert norm(SUMMED(query, units(x), only(index), jnp.float32(1))) <= 1 + 1e-5


def test_a_person_has_one_vote_in_a_choice() -> None:
    """Two people with one row each outweigh one with four, at a noise that is next to nothing."""
    chooser = NoisyMin(jnp.float32(1), jnp.float32(1e-6))
    wishes = Several(np.array([[0.0] * 4, [1.0] * 4, [1.0] * 4], np.float32), SHARES)

    def scores(candidates: Any, unit: Any) -> jax.Array:
        return over_rows(lambda c, x, y: jnp.abs(c - x))(candidates, *unit)

    found, _ = chooser("choice", new_meter(jax.random.key(0), ("choice",)), scores, jnp.arange(2.0), (wishes, SHARES),
                       jnp.ones(3, bool))  # fmt: skip
    assert int(found) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape"), [(models.mlp(3, 2, (4,)), (3,)), (models.cnn(6, 2, (2,)), (6, 6, 1))], ids=["mlp", "cnn"]
)
def test_bookkeeping_of_people_gives_the_sum_of_clipped_means(model: Model, shape: tuple[int, ...]) -> None:
    """Norms of sums over a person's rows, cross terms included: neither sums of norms nor roots of squares."""
    generator = np.random.default_rng(2)
    params = model.init(jax.random.key(0))
    x = Several(generator.normal(size=(UNITS, PLACES, *shape)).astype(np.float32), SHARES)
    y = generator.integers(0, 2, (UNITS, PLACES))
    plain = clipping.rows(lambda params, one: jax.grad(over_rows(model.loss))(params, *one))
    for clip in (0.05, 1.0, 100.0):
        a, b = (
            jax.jit(f)(params, (x, y), jnp.ones(UNITS), jnp.float32(clip))
            for f in (clipping.gradients(model).clipped, plain.clipped)
        )
        jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=2e-4, atol=1e-6), a, b)


def test_places_that_do_not_count_have_no_effect() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(UNITS, PLACES, 3)).astype(np.float32)
    other = np.where(SHARES[..., None] > 0, x, 5.0).astype(np.float32)
    a, b = (CLIPPED(PARAMS, units(values), jnp.ones(UNITS), jnp.float32(1)) for values in (x, other))
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_person_with_one_row_is_a_row() -> None:
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(UNITS, 1, 3)).astype(np.float32), generator.normal(size=(UNITS, 1)).astype(np.float32)
    people, weights = (Several(x, np.ones((UNITS, 1), np.float32)), y), jnp.ones(UNITS)
    a, b = (CLIPPED(PARAMS, one, weights, jnp.float32(1)) for one in (people, (x[:, 0], y[:, 0])))
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-6), a, b)
