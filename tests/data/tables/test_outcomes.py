"""Times until an event, counts, ordered levels and several labels, as tables declare them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import DataError
from kinfolk.data.tables import encode, schema, table_schema
from kinfolk.data.tables.draft import Asked, draft
from kinfolk.data.tables.read import read
from kinfolk.data.tables.schema import Column, Schema, SchemaError

AGE = (Column("age", low=0, high=100),)
SCHEMAS = {
    "survival": Schema(
        Column("days", low=0, high=1000), AGE, outcome="survival", event="died", edges=(100.0, 200.0, 400.0)
    ),
    "count": Schema(Column("visits", low=0, high=16), AGE, outcome="count"),
    "ordinal": Schema(Column("grade", "category", values=("low", "middle", "high")), AGE, outcome="ordinal"),
    "labels": Schema(Column("diagnoses", "yes_no"), AGE, outcome="labels", labels=("copd", "ckd")),
}
TABLE = """age,days,died,visits,grade,copd,ckd
30,90,yes,0,low,1,0
40,150,no,4,middle,yes,yes
50,149,no,16,high,no,0
60,900,yes,99,high,0,1
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(TABLE)
    return tmp_path / "t.csv"


@pytest.mark.parametrize(
    ("outcome", "wanted"),
    [
        ("survival", [1, 4, 2, 6]),
        ("count", [0.0, 1.0, 4.0, 4.0]),
        ("ordinal", [0, 1, 2, 2]),
        ("labels", [[1, 0], [1, 1], [0, 0], [0, 1]]),
    ],
)
def test_tables_become_what_models_see(table: Path, outcome: str, wanted: list[object]) -> None:
    own = SCHEMAS[outcome]
    rows = encode.encoded(encode.Tables((read(table),), own, ()))
    assert rows.y.tolist() == wanted
    assert schema.from_toml(schema.to_toml(own)) == own
    (table.parent / "s.json").write_text(table_schema.write(own))
    assert table_schema.read_whole(table.parent / "s.json") == own
    data = encode.federation(rows, DataChoice("t", test_fraction=0.0), 0)
    assert (data.outcome, data.classes) == (outcome, len(own.classes))
    assert not encode.differences([read(table)], own)[1:], "columns that are asked for are not unknown"


def test_what_is_missing_is_dropped_or_refused(table: Path) -> None:
    table.write_text(TABLE + "70,,yes,,,,\n")
    for own in SCHEMAS.values():
        with pytest.raises(DataError, match="is empty in 1 row"):
            encode.encoded(encode.Tables((read(table),), own, ()))
        dropped = replace(own, target=replace(own.target, missing="drop"))
        assert len(encode.encoded(encode.Tables((read(table),), dropped, ())).y) == 4
    table.write_text(TABLE + "70,-3,yes,1,low,0,0\n")
    with pytest.raises(DataError, match="below 0"):
        encode.encoded(encode.Tables((read(table),), SCHEMAS["survival"], ()))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"outcome": "surviving"}, "is not one of"),
        ({"outcome": "survival", "edges": (1.0,)}, "needs event"),
        ({"outcome": "survival", "event": "died", "edges": (2.0, 1.0)}, "must begin above 0 and rise"),
        ({"outcome": "ordinal"}, "needs a target of kind='category'"),
        ({"outcome": "labels", "labels": ("a", "b")}, "needs a target of kind='yes_no'"),
        ({"event": "died"}, "has no event"),
        ({"outcome": "count", "target": Column("n", low=1, high=5)}, "low must be 0"),
        ({"outcome": "labels", "target": Column("n", "yes_no"), "labels": ("age", "b")}, "declared twice"),
    ],
)
def test_what_is_half_declared_is_refused(words: dict[str, object], says: str) -> None:
    given: dict[str, object] = {"target": Column("days", low=0, high=9), "columns": AGE, **words}
    with pytest.raises(SchemaError, match=says):
        Schema(**given)  # type: ignore[arg-type]


def test_a_draft_is_what_was_asked_for(tmp_path: Path) -> None:
    generator, path = np.random.default_rng(0), tmp_path / "t.csv"
    lines = [
        f"{generator.integers(20, 90)},{generator.integers(1, 950)},{k % 2},{k % 9},{k % 4},{k % 2},{k % 3 == 0}"
        for k in range(60)
    ]
    path.write_text("\n".join(["age,days,died,visits,grade,copd,ckd", *lines]) + "\n")
    files = [read(path)]
    lived, _ = draft(files, "days", None, asked=Asked("survival", "died"))
    assert (lived.task, lived.event, lived.edges[-1], len(lived.edges)) == ("survival", "died", 1000.0, 8)
    assert "died" not in {column.name for column in lived.columns}
    counted, _ = draft(files, "visits", None, asked=Asked("count"))
    assert (counted.task, counted.target.low, counted.target.high) == ("count", 0.0, 8.0)
    ordered, _ = draft(files, "grade", None, asked=Asked("ordinal"))
    assert ordered.target.values == ("0", "1", "2", "3")
    several, _ = draft(files, "diagnoses", None, asked=Asked("labels", labels=("copd", "ckd")))
    assert several.classes == ("copd", "ckd")
    assert all(found.unconfirmed() for found in (lived, counted, ordered))
    with pytest.raises(DataError, match="needs --event"):
        Asked("survival")
