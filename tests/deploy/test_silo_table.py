"""What a silo brings: its table and its policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk.data.federation import DataError
from kinfolk.deploy.policy import Columns, Policy, read_policy
from kinfolk.deploy.scaffold import policy_for
from kinfolk.deploy.silo_table import read_table
from kinfolk.deploy.study import Roster, read_record
from kinfolk.toml import ConfigError, to_toml
from tests.deploy.federations import policy_of, study_of

ROSTER = Roster("r", ("a",), ("age", "dose"))
COLUMNS = Columns("d.csv", "d", "ill", {"age": (0.0, 100.0), "dose": (-1.0, 1.0)})


def table(tmp_path: Path, text: str) -> Path:
    (tmp_path / "d.csv").write_text(text)
    return tmp_path


@pytest.mark.fast
def test_a_table_is_scaled_by_its_declared_bounds(tmp_path: Path) -> None:
    rows, _ = read_table(table(tmp_path, "ill,name,dose,age\n1,x,0.5,25\n0,y,-1,100\n"), COLUMNS, ROSTER)
    np.testing.assert_allclose(rows.x, [[-0.5, 0.5], [1.0, -1.0]])
    assert rows.y.tolist() == [1, 0]
    assert rows.mask.all()


def test_a_number_to_predict_is_scaled_too(tmp_path: Path) -> None:
    columns = replace(COLUMNS, bounds={**COLUMNS.bounds, "ill": (0.0, 10.0)})
    rows, _ = read_table(table(tmp_path, "ill,dose,age\n2.5,0,50\n"), columns, replace(ROSTER, outcome="number"))
    np.testing.assert_allclose(rows.y, [-0.5])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ill,dose\n1,0\n", "no column 'age'"),
        ("ill,dose,age\n", "no rows"),
        ("ill,dose,age\n1,0,\n", "line 2 of d.csv has no age"),
        ("ill,dose,age\n1,0,nan\n", "has no age"),
        ("ill,dose,age\n1,0,\n", "has no age"),
        ("ill,dose,age\n1,0\n", "line 2 has 2 cell(s)"),
        ("ill,dose,age\n1,0,old\n", "'old' in line 2 of d.csv is none"),
        ("ill,dose,age\n1,0,20\n1,0,101\n", "line 3 of d.csv has age=101, outside its bounds 0..100"),
        ("ill,dose,age\n2,0,20\n", "is yes or no"),
        ("ill,dose,age\n,0,20\n", "is empty in 1 row(s)"),
    ],
)
@pytest.mark.fast
def test_a_bad_table_is_an_error_before_anything_is_sent(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError) as error:
        read_table(table(tmp_path, text), COLUMNS, ROSTER)
    assert said in str(error.value)


SCHEMA = """
[target]
name = "ill"
kind = "category"
values = ["healthy", "ill"]

[[columns]]
name = "age"
low = 0
high = 100
missing = "fill"

[[columns]]
name = "ward"
kind = "category"
values = ["a", "b"]
"""
WARDS = Roster("r", ("a",), ("age", "ward=a", "ward=b"), labels=("healthy", "ill"))


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow"])
def test_tables_are_read_as_train_reads_them(tmp_path: Path, ending: str) -> None:
    """Every format, with categories and gaps, and the same arrays as `kinfolk train` makes of the same schema."""
    import polars as pl

    from kinfolk.data.choice import DataChoice
    from kinfolk.data.tables.encode import encoded, understand

    frame = pl.DataFrame({"ward": ["b", "a"], "ill": ["ill", "healthy"], "age": [75.0, None]})
    path = tmp_path / f"d.{ending}"
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "arrow": frame.write_ipc}[ending](path)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    rows, _ = read_table(tmp_path, Columns(path.name, "d", schema="schema.toml"), WARDS)
    np.testing.assert_allclose(rows.x, [[0.5, 0, 1], [0, 1, 0]])
    assert rows.y.tolist() == [1, 0]
    theirs = encoded(understand(DataChoice(files=(str(path),), schema=str(tmp_path / "schema.toml"))))
    np.testing.assert_array_equal(rows.x, theirs.x)
    np.testing.assert_array_equal(rows.y, theirs.y)


@pytest.mark.parametrize(
    ("change", "text", "roster", "said"),
    [
        (("", ""), "ward,ill,age\nc,ill,5\n", WARDS, "not in the vocabulary"),
        (("", ""), "ward,ill,age\na,ill,101\n", WARDS, "outside its bounds"),
        (("", ""), "ill,age\nill,5\n", WARDS, "no column 'ward'"),
        (("", ""), "ward,ill,age\na,ill,5\n", replace(WARDS, labels=("ill", "healthy")), "in the same order"),
        (("", ""), "ward,ill,age\na,ill,5\n", replace(WARDS, features=("age", "ward=b")), "but the study has"),
        (("high = 100", "high = 100\nconfirmed = false"), "ward,ill,age\na,ill,5\n", WARDS, "was guessed"),
        (("[target]", 'client = "id"\n[target]'), "ward,ill,age\na,ill,5\n", WARDS, "one client's"),
        (
            ("", ""),
            "ward,ill,age\na,ill,5\n",
            replace(WARDS, outcome="number", labels=()),
            "not what the study predicts",
        ),
    ],
)
def test_a_table_that_does_not_fit_schema_or_study_is_refused(
    tmp_path: Path, change: tuple[str, str], text: str, roster: Roster, said: str
) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA.replace(*change))
    with pytest.raises(DataError) as error:
        read_table(table(tmp_path, text), Columns("d.csv", "d", schema="schema.toml"), roster)
    assert said in str(error.value)


@pytest.mark.fast
def test_bounds_must_be_declared(tmp_path: Path) -> None:
    columns = replace(COLUMNS, bounds={"age": (0.0, 100.0)})
    with pytest.raises(ConfigError, match=r"bounds\.dose"):
        read_table(table(tmp_path, "ill,dose,age\n1,0,20\n"), columns, ROSTER)


@pytest.mark.fast
def test_a_policy_is_its_file(tmp_path: Path) -> None:
    policy = replace(policy_of(study_of(), "b"), data=COLUMNS)
    path = tmp_path / "policy.toml"
    path.write_text(to_toml(policy))
    assert read_policy(path) == policy
    path.write_text(to_toml(policy).replace("rounds", "round"))
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        read_policy(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_record(Policy, tmp_path / "missing.toml")


def test_a_first_policy_asks_for_its_bounds(tmp_path: Path) -> None:
    study = study_of()
    policy = policy_for(study, "a")
    with pytest.raises(ConfigError, match="lowest and its highest"):
        policy.data.limits("u")
