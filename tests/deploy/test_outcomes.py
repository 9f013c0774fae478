"""Times until an event, counts, levels and several labels in a federation: declared, read, trained on, predicted."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.people import by_person
from kinfolk.data.target import courses
from kinfolk.deploy.policy import Columns, Policy
from kinfolk.deploy.scaffold import EVENT, POLICY_FILE, TARGET, policy_for, write_federation
from kinfolk.deploy.silo_models import from_silo
from kinfolk.deploy.silo_program import prepare_silo
from kinfolk.deploy.silo_table import read_table
from kinfolk.deploy.study import Roster, Study
from kinfolk.deploy.worker import Worker
from kinfolk.metrics.survival import left_after
from kinfolk.toml import ConfigError, to_toml
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.shown import shown_before
from kinfolk.types import Rows
from tests.deploy.evaluations import evaluated
from tests.deploy.federations import level_of, require_parity

SILOS, FEATURES, ROWS, PEOPLE = ("a", "b"), ("u", "v"), 12, 6
EDGES, LEVELS, LABELS, MOST = (1.0, 2.0, 4.0), ("mild", "fair", "bad"), ("copd", "ckd"), 9.0


@dataclass(frozen=True)
class Table:
    """A silo's rows, as its table holds them."""

    x: np.ndarray
    time: np.ndarray
    event: np.ndarray
    level: np.ndarray
    labels: np.ndarray

    def written(self, path: Path, outcome: str) -> None:
        """As a file with what this outcome needs, in words."""
        asked: dict[str, Any] = {
            "survival": {TARGET: self.time, EVENT: ["yes" if came else "no" for came in self.event]},
            "count": {TARGET: self.level * 5},
            "ordinal": {TARGET: [LEVELS[level] for level in self.level]},
            "labels": dict(zip(LABELS, self.labels.T, strict=True)),
        }[outcome]
        who = np.arange(ROWS) * PEOPLE // ROWS
        frame = pl.DataFrame({"u": self.x[:, 0], "v": self.x[:, 1], **asked, "patient": who})
        frame.write_csv(path)

    def targets(self, outcome: str) -> np.ndarray:
        """As models see them."""
        counts = (np.minimum(self.level * 5, MOST) / math.sqrt(MOST)).astype(np.float32)
        levels, labels = self.level.astype(np.int32), self.labels.astype(np.int32)
        seen = {"count": counts, "ordinal": levels, "labels": labels}
        return courses(self.time, self.event, EDGES) if outcome == "survival" else seen[outcome]


def tables() -> list[Table]:
    """Of every silo."""
    draw = np.random.default_rng(5)
    return [
        Table(
            draw.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
            draw.uniform(0, 6, ROWS).round(2),
            draw.random(ROWS) < 0.6,
            draw.integers(0, 3, ROWS),
            draw.integers(0, 2, (ROWS, 2)),
        )
        for _ in SILOS
    ]


SAID: dict[str, dict[str, Any]] = {
    "survival": {"edges": EDGES},
    "count": {"most": MOST},
    "ordinal": {"labels": LEVELS},
    "labels": {"labels": LABELS},
}
MODELS = {"survival": "hazard", "count": "poisson", "ordinal": "ordinal", "labels": "multilabel"}


def study_of(outcome: str, **evaluation: Any) -> Study:
    """`evaluation`: what the study says of it."""
    experiment = Experiment(
        seed=7,
        model=ModelChoice(MODELS[outcome]),
        training=Training(),
        privacy=level_of("example"),
        phases=(Phase("mean_regularized", 2, {"strength": 0.5, "step_size": 0.3}),),
        evaluate=1.0 if evaluation else None,
    )
    return Study(Roster("outcomes", SILOS, FEATURES, outcome, **SAID[outcome], **evaluation), experiment)


def policy_of(study: Study, client: str, person: str | None) -> Policy:
    policy = policy_for(study, client, answer_every=0.0)
    bounds = dict.fromkeys(FEATURES, (-1.0, 1.0))
    return replace(
        policy, data=replace(policy.data, bounds=bounds, person=person, rows_per_person=3 if person else None)
    )


def federation_of(outcome: str, person: str | None) -> Federation:
    """The same rows for simulation; with people, where they are named."""
    found = tables()
    whose = np.tile(np.arange(ROWS) * PEOPLE // ROWS, len(SILOS)) + np.repeat([0, 100], ROWS)
    people = {"person_ids": whose, "rows_per_person": 3} if person else {}
    rows = from_rows(
        np.concatenate([table.x for table in found]),
        np.concatenate([table.targets(outcome) for table in found]),
        np.repeat(SILOS, ROWS),
        outcome=outcome,
        classes=study_of(outcome).roster.answers,
        test_fraction=0.0,
        **people,
    )
    return by_person(rows)


@pytest.mark.parametrize(
    ("outcome", "person"),
    [
        ("survival", "patient"),
        ("labels", None),
        pytest.param("count", None, marks=pytest.mark.slow),
        pytest.param("ordinal", "patient", marks=pytest.mark.slow),
    ],
)
def test_an_outcome_over_tables_of_silos_is_trained_and_predicted_as_in_simulation(
    outcome: str, person: str | None, tmp_path: Path
) -> None:
    study = study_of(outcome)
    policies = [policy_of(study, client, person) for client in SILOS]
    write_federation(tmp_path / "all", study, policies, ["localhost"])
    homes = [tmp_path / "all" / "silos" / client for client in SILOS]
    with ExitStack() as stack:
        workers = []
        for home, policy, table in zip(homes, policies, tables(), strict=True):
            table.written(home / "data.csv", outcome)
            rows, known = read_table(home, policy.data, study.roster)
            program = prepare_silo(study, policy, rows, known)
            assert program.size == (PEOPLE if person else ROWS)
            workers.append(stack.enter_context(Worker(program, home / policy.state)))
        require_parity(study, federation_of(outcome, person), workers, tmp_path)
    fitted = from_silo(homes[0])
    assert fitted.privacy["unit"].startswith("one person" if person else "one example")
    _, chances = fitted.predict(tables()[0].x, ["a"] * ROWS)
    parts = 1 if outcome == "count" else study.roster.answers
    assert fitted.outputs(tables()[0].x, ["a"] * ROWS).shape[1] == (parts if outcome != "ordinal" else parts - 1)
    assert (chances is None) == (outcome == "count")
    if chances is not None:
        assert ((chances >= 0) & (chances <= 1)).all()


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        ("survival", ["concordance (C-index)", *(left_after(edge, "years") for edge in EDGES)]),
        pytest.param("ordinal", ["levels that the guess is off, on average"], marks=pytest.mark.slow),
        pytest.param("labels", [], marks=pytest.mark.slow),
        pytest.param("count", [], marks=pytest.mark.slow),
    ],
)
def test_an_outcome_is_evaluated_at_silos(outcome: str, named: list[str], tmp_path: Path) -> None:
    study = study_of(outcome, tests=(4, 4), target_unit="years")
    with ExitStack() as stack:
        silos = []
        for client, table in zip(SILOS, tables(), strict=True):
            policy = replace(policy_of(study, client, None), evaluate=1.0)
            rows = Rows(table.x, table.targets(outcome), np.ones(ROWS, bool))
            silos.append(stack.enter_context(Worker(prepare_silo(study, policy, rows), tmp_path / client)))
        shown = shown_before(evaluated(study, silos, tmp_path / "server").run)
    (found,) = shown
    names = [metric["name"] for metric in found["metrics"]]
    assert names
    assert [name for name in named if name not in names] == []
    assert found.get("times", []) == (list(EDGES) if outcome == "survival" else [])


@pytest.mark.fast
@pytest.mark.parametrize("outcome", SAID)
def test_a_silos_table_holds_the_outcome_of_the_study(outcome: str, tmp_path: Path) -> None:
    study, table = study_of(outcome), tables()[0]
    policy = policy_of(study, "a", None)
    table.written(tmp_path / "data.csv", outcome)
    rows, _ = read_table(tmp_path, policy.data, study.roster)
    np.testing.assert_array_equal(rows.y, table.targets(outcome))
    shape = study.row_shapes(ROWS)
    assert (rows.y.shape, rows.y.dtype) == (shape.y.shape, shape.y.dtype)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("outcome", "said", "words"),
    [
        ("survival", {}, "outcome='survival' needs edges"),
        ("survival", {"edges": (2.0, 1.0)}, "must begin above 0 and rise"),
        ("survival", {"edges": EDGES, "classes": 3}, "says it by edges"),
        ("count", {}, "outcome='count' needs most"),
        ("ordinal", {"labels": ("low", "high")}, "two levels need no order"),
        ("labels", {"labels": ("copd",)}, "one is a target of its own"),
        ("binary", {"edges": EDGES}, "does not fit outcome='binary'"),
        ("number", {"most": 3.0}, "does not fit outcome='number'"),
        ("death", {}, "is not one of number, binary"),
    ],
)
def test_a_study_says_all_that_its_outcome_needs(outcome: str, said: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Roster("r", SILOS, FEATURES, outcome, **said)


def test_what_the_outcome_is_belongs_to_the_agreement() -> None:
    study = study_of("survival")
    other = replace(study, roster=replace(study.roster, edges=(1.0, 2.0, 5.0)))
    assert study.digest != other.digest


SCHEMA = """
outcome = "survival"
event = "died"
edges = [1.0, 2.0, 4.0]
[target]
name = "years"
low = 0
high = 4
[[columns]]
name = "u"
low = -1
high = 1
[[columns]]
name = "v"
low = -1
high = 1
"""
WARD = "u,v,years,died\n0,0,0.5,yes\n0,0,9,no\n"
COUNTED = SCHEMA.replace('outcome = "survival"\nevent = "died"\nedges = [1.0, 2.0, 4.0]', 'outcome = "count"')


@pytest.mark.fast
@pytest.mark.parametrize(
    ("schema", "text", "said", "words"),
    [
        (SCHEMA.replace("4.0]", "5.0]"), WARD, {}, r"not the study's edges=\(1.0, 2.0, 4.0\)"),
        (SCHEMA, WARD.replace("died", "dead"), {}, "no column 'died'"),
        (SCHEMA, WARD.replace("0.5", "-1"), {}, "below 0"),
        (SCHEMA, WARD.replace("no", "maybe"), {}, "yes or no"),
        (SCHEMA, WARD, {"outcome": "count", "edges": (), "most": 4.0}, "not what the study predicts: count"),
        (COUNTED, WARD, {"outcome": "count", "edges": (), "most": 9.0}, "not the study's most=9.0"),
    ],
)
def test_a_table_that_is_not_of_the_studys_outcome_is_refused(
    schema: str, text: str, said: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "s.toml").write_text(schema)
    (tmp_path / "d.csv").write_text(text)
    roster = replace(study_of("survival").roster, **said)
    with pytest.raises(DataError, match=words):
        read_table(tmp_path, Columns("d.csv", "d", schema="s.toml"), roster)


@pytest.mark.fast
def test_a_policy_names_the_column_of_the_event(tmp_path: Path) -> None:
    study = study_of("survival")
    (tmp_path / POLICY_FILE).write_text(to_toml(policy_for(study, "a")))
    assert f'event = "{EVENT}"' in (tmp_path / POLICY_FILE).read_text()
    (tmp_path / "d.csv").write_text(WARD)
    nameless = Columns("d.csv", "d", "years", dict.fromkeys(FEATURES, (-1.0, 1.0)))
    with pytest.raises(DataError, match="needs event"):
        read_table(tmp_path, nameless, study.roster)
    rows, _ = read_table(tmp_path, replace(nameless, event="died"), study.roster)
    assert rows.y.tolist() == [1, 6]
    with pytest.raises(ConfigError, match="the schema names it"):
        Columns("d.csv", "d", schema="s.toml", event="died")
