"""What an evaluation counts: how far a unit moves it, by search, with all its rows, groups and tables; planted bugs."""

from __future__ import annotations

from collections.abc import Callable
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
from kinfolk.privacy.clipping import GRID_STEPS, Sum, rows
from kinfolk.privacy.tables import GAINS, Board, Unit, at_most_one, between, counts
from kinfolk.types import Model
from kinfolk.verify.attack import attack
from kinfolk.verify.evaluation_attack import private_evaluation

UNITS, ROWS, FEATURES = 3, 4, 2
search = settings(max_examples=15, deadline=None, database=None, derandomize=True)
any_float = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
values_of = numbers.arrays(np.float32, (UNITS, ROWS, FEATURES + 3), elements=any_float)
ODD = [np.full((UNITS, ROWS, FEATURES + 3), value, np.float32) for value in (0, 3e38, 1e-42, np.nan, np.inf, -np.inf)]
EDGES = jnp.asarray([-1, -0.2, 0, 0.4], jnp.float32)


def params_of(model: Model, scale: float = 1.0) -> object:
    return jax.tree.map(lambda leaf: leaf + jnp.float32(scale), model.init(jax.random.key(0)))


def board(model: Model, *, own: bool = False, gains: bool = False, labels: int = 0) -> Board:
    """With two groups; `own`: units bring models of their own."""
    shared = params_of(model, -1.0) if gains else None
    return Board(EDGES, None if own else params_of(model), shared, model, labels, 2)


BOARDS = {
    "scores": board(models.logistic(FEATURES)),
    "misses": board(models.linear(FEATURES)),
    "labels": board(models.softmax(FEATURES, 3), labels=3),
    "many labels": board(models.softmax(FEATURES, 12), labels=12),
    "courses": board(models.generalized_linear(FEATURES, "survival", 3), labels=3),
    "counts": board(models.generalized_linear(FEATURES, "count")),
    "levels": board(models.generalized_linear(FEATURES, "ordinal", 3), labels=3),
    "several labels": board(models.generalized_linear(FEATURES, "labels", 3), labels=3),
    "clients": board(models.logistic(FEATURES), own=True),
    "clients and gains": board(models.linear(FEATURES), own=True, gains=True),
}
SUM = counts()
CLIPPED = {name: jax.jit(lambda *args, q=own: SUM.clipped(q, *args)) for name, own in BOARDS.items()}
ON_GRID = {name: jax.jit(lambda *args, q=own: SUM.on_grid(q, *args)) for name, own in BOARDS.items()}
ONE = jnp.float32(1)


def units(name: str, values: np.ndarray) -> Unit:
    """Features, targets, groups and which rows are real, all from the same numbers."""
    finite = np.nan_to_num(values, nan=0, posinf=1, neginf=-1)
    own = BOARDS[name]
    labels = own.model.outcome not in ("number", "count")
    y = np.abs(finite[..., FEATURES]).clip(0, 2).astype(np.int32) if labels else values[..., FEATURES]
    if own.model.outcome in ("binary", "labels"):
        y = y.clip(0, 1)
    if own.model.outcome == "labels":
        y = np.stack([y, 1 - y, y], axis=-1)
    group = (finite[..., FEATURES + 1] > 0).astype(np.int32)
    keep = finite[..., FEATURES + 2] >= 0
    params = params_of(own.model) if own.params is None else None
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * UNITS), params)
    return Unit(jnp.asarray(values[..., :FEATURES]), jnp.asarray(y), jnp.asarray(group), jnp.asarray(keep), stacked)


def alone(name: str, made: Unit, place: int, total: Callable[..., Array]) -> np.ndarray:
    weights = jnp.zeros(UNITS, jnp.float32).at[place].set(1)
    return np.asarray(total(made, weights, ONE), float)


QUICK = ("scores", "clients and gains")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BOARDS]
)
@search
@given(values_of)
@example(ODD[0])
@example(ODD[1])
@example(ODD[2])
@example(ODD[3])
@example(ODD[4])
@example(ODD[5])
def test_a_unit_with_all_its_rows_moves_all_tables_by_at_most_one(name: str, values: np.ndarray) -> None:
    """Rows, people and clients alike: in L1, so in L2 too; replaced by at most two; and on the grid in whole steps."""
    made = units(name, values)
    own = [alone(name, made, place, CLIPPED[name]) for place in range(UNITS)]
    assert np.isfinite(own).all()
    assert max(np.abs(one).sum() for one in own) <= 1 + 1e-5
    assert max(np.linalg.norm(one) for one in own) <= 1 + 1e-5
    assert np.abs(own[0] - own[1]).sum() <= 2 + 1e-5
    assert np.linalg.norm(own[0] - own[1]) <= 2**0.5 + 1e-5  # no cell is negative
    both = np.asarray(CLIPPED[name](made, jnp.asarray([1, 1, 0], jnp.float32), ONE), float)
    np.testing.assert_allclose(both, own[0] + own[1], atol=1e-5)
    for place in range(UNITS):
        steps = np.asarray(ON_GRID[name](made, jnp.zeros(UNITS, jnp.float32).at[place].set(1), ONE))
        assert np.abs(steps.astype(int)).sum() <= GRID_STEPS


def test_a_row_is_where_its_score_and_its_outcome_say() -> None:
    own = BOARDS["scores"]
    x = jnp.zeros((1, 2, FEATURES), jnp.float32).at[0, 1].set(-5)
    made = Unit(x, jnp.asarray([[1, 0]]), jnp.asarray([[0, 1]]), jnp.ones((1, 2), bool))
    table = np.asarray(SUM.exact(own, made, jnp.ones(1, jnp.float32))).reshape(own.shape)
    assert table[0, 4, 1] == pytest.approx(0.5)  # the bias alone, 1, is beyond the last edge
    assert table[1, 0, 0] == pytest.approx(0.5)
    assert table.sum() == pytest.approx(1)


def test_a_miss_keeps_its_value_and_its_size_between_nodes() -> None:
    nodes = jnp.asarray([-1, -0.5, 0, 0.5, 1], jnp.float32)
    for value in (-7.0, -1.0, -0.3, 0.0, 0.2, 0.9, 5.0):
        place = np.asarray(between(jnp.float32(value), nodes))
        assert place.sum() == pytest.approx(1)
        assert place @ np.asarray(nodes) == pytest.approx(np.clip(value, -1, 1), abs=1e-6)
        assert place @ np.abs(np.asarray(nodes)) == pytest.approx(min(abs(value), 1), abs=1e-6)


@pytest.mark.slow
def test_a_client_says_whether_its_own_model_is_better() -> None:
    own = BOARDS["clients and gains"]
    values = np.zeros((UNITS, ROWS, FEATURES + 3), np.float32)
    made = units("clients and gains", values)
    good = jax.tree.map(jnp.zeros_like, made.params)
    table = np.asarray(SUM.exact(own, replace(made, params=good), jnp.ones(UNITS, jnp.float32)))
    assert table[-GAINS:] == pytest.approx([0.6, 0, 0], abs=1e-5)


def every_row(board: Board, unit: Unit) -> Array:
    """A person's rows are each counted."""
    return board.contribution(unit) * unit.keep.sum().astype(jnp.float32)


def two_tables(board: Board, unit: Unit) -> Array:
    """A table for the AUC and one for calibration, each at the whole budget."""
    return jnp.concatenate([board.contribution(unit)] * 2)


BUGS = {"rows of a person each counted": every_row, "one table each at full budget": two_tables}


def planted(bug: Callable[[Board, Unit], Array]) -> Sum:
    """The sum without what sees to its bound."""
    wrong = rows(bug)
    unclipped = lambda board, units, weights, _: wrong.exact(board, units, weights)  # noqa: E731
    return Sum("planted", wrong.exact, unclipped, wrong.on_grid, within_l1=True)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen_by_search_and_by_attack(bug: str) -> None:
    made = units("scores", np.ones((UNITS, ROWS, FEATURES + 3), np.float32))
    found = np.asarray(BUGS[bug](BOARDS["scores"], jax.tree.map(lambda leaf: leaf[0], made)))
    assert np.abs(found).sum() >= 2
    assert np.abs(np.asarray(at_most_one(jnp.asarray(found)))).sum() <= 1 + 1e-5  # which is why the real sum sees to it
    caught = attack(private_evaluation(what=planted(BUGS[bug])), runs=20_000, confidence=0.9999, with_power=False)
    assert caught.exceeded


@pytest.mark.slow
def test_an_attack_on_the_real_release_stays_below_its_claim_and_near_it() -> None:
    found = attack(private_evaluation(), runs=20_000, confidence=0.9999, with_power=False)
    assert not found.exceeded
    assert found.lower_bound > 0.5 * found.claim
