"""Prediction sets of a run: free where they stay with clients, one more release where they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.accounting.ledger import LedgerError, read_lines
from kinfolk.data.federation import from_rows
from kinfolk.data.tables.schema import Column
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.release import PrivacyError, Tape
from kinfolk.privacy.tables import counts
from kinfolk.toml import ConfigError
from kinfolk.training import loop, prediction_sets, published, run_directory, sets_format
from kinfolk.training.evaluation_units import models_of
from kinfolk.training.prepare import prepare
from tests.training.public_files import nothing_else_is_public
from tests.training.test_published import CLIENT, EXAMPLE, experiment, wards

ROOM = replace(EXAMPLE, promise=5.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> run_directory.Run:
    return loop.run(experiment(ROOM), tmp_path_factory.mktemp("runs"), data=wards())


def test_at_example_level_they_are_released_paid_for_and_in_the_statement(run: run_directory.Run) -> None:
    with pytest.raises(PrivacyError, match="epsilon"):
        prediction_sets.prediction_sets(run.path, 0.8, data=wards())
    spent = run.statement()["epsilon"]
    found = prediction_sets.prediction_sets(run.path, 0.8, epsilon=1.0, data=wards())
    assert run.statement()["epsilon"] > spent
    assert [one["rows"] for one in found["clients"]] == [48, 48, 48]
    assert {one["of"] for one in found["clients"]} == {"everybody"}, "48 rows are too few: decided by public numbers"
    lines = [line for line in read_lines(run.public / "ledger.jsonl") if line.kind == EVALUATION]
    assert {(line.run, line.uses, round(line.cost.noise_multiplier, 5)) for line in lines} == {
        (f"{run.name}+sets-1", 1, 1.0)
    }
    assert "Prediction sets that hold with a chance of at least 80%" in (run.public / "statement.txt").read_text()
    assert sets_format.read(run) == found
    nothing_else_is_public(run)
    before = (run.public / "ledger.jsonl").read_bytes()
    with pytest.raises(LedgerError, match="beyond"):
        prediction_sets.prediction_sets(run.path, 0.8, epsilon=9.0, data=wards())
    assert (run.public / "ledger.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_row_moves_its_table_by_one_and_with_it_held_nothing_else_changes(run: run_directory.Run) -> None:
    """Sensitivity by search, in simulation and on the grid; replay; the flow check in both modes."""
    data = wards()
    job = prepare(experiment(ROOM), data)
    own, _ = models_of(job, run)
    question = prediction_sets.asked(job, own)
    mechanism = published.account_of(job, 1.0)[1]
    for exact in (False, True):
        published.checked(question, mechanism, exact)
    board = jax.tree.map(lambda leaf: leaf[0], question.boards())
    units = jax.tree.map(lambda leaf: np.asarray(leaf)[0], question.units)
    total, one = counts(), jnp.float32(1)
    for place in range(3):
        weights = jnp.zeros(len(units.keep), jnp.float32).at[place].set(1)
        for x in (units.x, np.full_like(units.x, np.nan), np.full_like(units.x, 3e38)):
            changed = replace(units, x=x)
            cells = np.asarray(total.clipped(board, changed, weights, one), float)
            assert cells.sum() == pytest.approx(1)
            assert np.abs(np.asarray(total.on_grid(board, changed, weights, one)).astype(int)).sum() <= GRID_STEPS
    size = {EVALUATION: jnp.zeros((3, 1, question.cells), jnp.float32)}
    meter = replace(published.meters(jax.random.key(3), 3), tape=Tape(size, "record"))
    tables, after = published.each(question, meter, mechanism)
    assert after.tape is not None
    changed = replace(data, test=replace(data.test, x=-data.test.x, y=1 - data.test.y))
    other = prediction_sets.asked(prepare(experiment(ROOM), changed), own)
    recorded = replace(published.meters(jax.random.key(3), 3), tape=Tape(after.tape.values, "replay"))
    replayed, _ = published.each(other, recorded, mechanism)
    np.testing.assert_array_equal(replayed, tables)
    first, second = (prediction_sets.of_tables(job, q, t, 1.0, 0.8) for q, t in ((question, tables), (other, replayed)))
    assert first == second


@pytest.mark.slow
def test_at_client_level_they_are_free_private_and_of_own_rows(tmp_path: Path) -> None:
    where = loop.run(experiment(CLIENT), tmp_path, data=wards())
    before = (where.public / "ledger.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="costs nothing"):
        prediction_sets.prediction_sets(where.path, 0.8, epsilon=1.0, data=wards())
    found = prediction_sets.prediction_sets(where.path, 0.8, data=wards())
    assert found["epsilon"] is None
    assert {one["of"] for one in found["clients"]} == {"own"}
    assert found["everybody"] is None, "nobody else may have it"
    assert (where.public / "ledger.jsonl").read_bytes() == before
    assert not (where.public / run_directory.SETS).exists()
    job = prepare(where.experiment(), wards())
    scores = prediction_sets.scores_of(job.plan.model, models_of(job, where)[0], wards())
    for one, own in zip(found["clients"], scores, strict=True):
        assert one["score"] is not None
        assert (own <= one["score"] + 1e-6).mean() >= 0.8


def test_of_a_person_one_row_counts() -> None:
    from kinfolk import models

    people = [1, 1, 2, 2, 3, 3]
    data = from_rows(np.ones((6, 1)), np.arange(6.0), ["a"] * 6, person_ids=people, test=[False] * 2 + [True] * 4)
    model = models.linear(1)
    own = jax.tree.map(lambda leaf: leaf[None], model.init(jax.random.key(0)))
    (found,) = prediction_sets.scores_of(model, own, data)
    assert len(found) == 2


def test_predictions_get_intervals_within_the_declared_range_and_all_plausible_labels() -> None:
    sets: sets_format.Sets = {
        "version": 1,
        "coverage": 0.9,
        "epsilon": None,
        "simulated": True,
        "outcome": "number",
        "factor": 50.0,
        "unit": "points",
        "clients": [{"client": "a", "score": 0.1, "of": "own", "rows": 30}],
        "everybody": None,
    }
    column = Column("y", low=0, high=100)
    found = sets_format.columns(sets, np.array(["a", "new"]), np.array([3.0, 40.0]), None, column)
    assert found["lowest"].tolist() == [0, 0]
    assert found["highest"].tolist() == [8, 100]
    labels = Column("y", kind="category", values=("r", "s", "t"))
    chances = np.array([[0.95, 0.04, 0.01], [0.2, 0.5, 0.3]])
    both = {**sets, "clients": [{"client": "a", "score": 0.75, "of": "own", "rows": 30}]}
    plausible = sets_format.columns(both, np.array(["a", "a"]), np.array(["r", "s"]), chances, labels)["plausible"]  # type: ignore[arg-type]
    assert plausible.tolist() == ["r", "s|t"]
