"""Tables: what a schema declares, what is guessed, how files are aligned, and what is refused with which words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import DataError
from kinfolk.data.tables import encode
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.draft import draft
from kinfolk.data.tables.guess import outwards
from kinfolk.data.tables.read import read, read_all
from kinfolk.data.tables.schema import Column, Schema, SchemaError
from kinfolk.serving import predict_numpy
from kinfolk.toml import from_toml, to_toml
from kinfolk.training.experiment import Experiment

WARD = Schema(
    Column("outcome", "yes_no"),
    (
        Column("age", low=0, high=100, missing="indicate"),
        Column("ward", "category", values=("a", "b")),
        Column("smokes", "yes_no"),
    ),
    client="hospital",
)


def encoded(path: Path, text: str, schema: Schema = WARD) -> tuple[np.ndarray, list[str]]:
    path.write_text(text)
    return encode.encode(schema, read(path))


def test_a_schema_is_its_text() -> None:
    assert schemas.from_toml(schemas.to_toml(WARD)) == WARD
    drafted = Schema(Column("y", low=0, high=1, confirmed=False), (Column("x", low=-1.5, high=2),), name="mine")
    assert schemas.from_toml(schemas.to_toml(drafted)) == drafted
    assert drafted.unconfirmed() == ("y",)
    assert "A release is refused until then" in schemas.to_toml(drafted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "numbr"', "kind='numbr'"),
        ('kind = "number"\nlow = 1', "needs bounds"),
        ('kind = "number"\nlow = 1\nhigh = 1', "must be below"),
        ('kind = "category"\nvalues = ["a"]', "at least two"),
        ('kind = "category"\nvalues = ["a", "a"]', "twice"),
        ('kind = "yes_no"\nlow = 0', "belong to a number"),
        ('kind = "yes_no"\nmissing = "mean"', "missing='mean'"),
        ('kind = "yes_no"\nmising = "fill"', "did you mean"),
    ],
)
def test_a_schema_with_a_mistake_says_which(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.toml").write_text(f'[target]\nname = "y"\nkind = "yes_no"\n[[columns]]\nname = "x"\n{text}\n')
    with pytest.raises(SchemaError, match=r"s\.toml") as error:
        schemas.load(tmp_path / "s.toml")
    assert message in str(error.value)


def test_scaling_is_by_declared_bounds_alone(tmp_path: Path) -> None:
    text = "age,ward,smokes,outcome\n50,a,yes,1\n200,b,no,0\n,c,,1\n0,,TRUE,0\n"
    x, notes = encoded(tmp_path / "t.csv", text)
    assert WARD.feature_names() == ("age", "age is missing", "ward=a", "ward=b", "smokes")
    assert x.tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 1, -1], [0, 1, 0, 0, 0], [-1, 0, 0, 0, 1]]
    assert x.dtype == np.float32
    assert any("outside 0 to 100" in note for note in notes)
    assert any("'c'" in note and "vocabulary" in note for note in notes)


def test_another_row_never_changes_a_row(tmp_path: Path) -> None:
    """What makes the encoding free of charge: every row is treated by itself."""
    head, first = "age,ward,smokes,outcome\n", "31,b,no,1\n"
    alone, _ = encoded(tmp_path / "a.csv", head + first)
    for other in ("99999,a,yes,0\n", ",,,1\n", "-3,zzz,no,0\n", "31.5,3,yes,0\n"):
        assert encoded(tmp_path / "b.csv", head + first + other)[0][0].tolist() == alone[0].tolist()


def test_files_that_differ_in_order_type_and_presence_are_aligned(tmp_path: Path) -> None:
    rows = {"age": [10, 20], "ward": ["a", "b"], "smokes": [True, False], "outcome": ["yes", "no"]}
    frame = pl.DataFrame(rows)
    frame.write_csv(tmp_path / "one.csv")
    frame.select("outcome", "smokes", "ward", pl.col("age").cast(pl.String)).write_parquet(tmp_path / "two.parquet")
    frame.drop("ward").with_columns(extra=1, smokes=pl.col("smokes").cast(pl.Int8)).write_ipc(tmp_path / "three.arrow")
    schema = Schema(WARD.target, WARD.columns)
    files = read_all([tmp_path / name for name in ("one.csv", "two.parquet", "three.arrow")])
    x = [encode.encode(schema, file)[0] for file in files]
    assert (x[0] == x[1]).all()
    assert (x[0][:, [0, 1, 4]] == x[2][:, [0, 1, 4]]).all()
    assert not x[2][:, 2:4].any()
    notes = "\n".join(encode.differences(files, schema))
    assert "two.parquet: columns stand in another order" in notes
    assert "two.parquet: column 'age' holds String and was read as numbers" in notes
    assert "three.arrow: column 'ward' is not there and counts as missing" in notes
    assert "three.arrow: not in the schema and left out: 'extra'" in notes
    assert "one.csv" not in notes


def test_codes_are_the_same_whatever_type_a_file_gives_them(tmp_path: Path) -> None:
    schema = Schema(Column("y", "yes_no"), (Column("code", "category", values=("3", "6")),))
    found = [encoded(tmp_path / "c.csv", f"code,y\n{value},1\n7,0\n", schema)[0][0] for value in ("3", "3.0", '"3"')]
    assert all(row.tolist() == [1, 0] for row in found)


def test_a_draft_guesses_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [f"{20 + k},{k % 3},{'ab'[k % 2]},{k % 2},note {k},7,{k / 7},{k % 2}" for k in range(60)]
    path.write_text("\n".join(["age,code,ward,flag,remark,constant,score,outcome", *lines]) + "\n")
    schema, notes = draft([read(path)], "outcome", None)
    kinds = {column.name: column.kind for column in schema.columns}
    assert kinds == {"age": "number", "code": "category", "ward": "category", "flag": "yes_no", "score": "number"}
    assert schema.task == "binary"
    assert len(schema.unconfirmed()) == len(schema.columns) + 1
    assert any("remark" in note for note in notes)
    assert any("constant" in note for note in notes)
    assert draft([read(path)], "score", None)[0].task == "number"
    assert draft([read(path)], "code", None)[0].task == "classes"
    assert outwards(-2.6, 6.2) == (-3.0, 7.0)


def federation_of(tmp_path: Path, text: str, **options: object) -> encode.Encoded:
    (tmp_path / "h.csv").write_text(text)
    choice = DataChoice("h", files=(str(tmp_path / "h.csv"),), **options)  # type: ignore[arg-type]
    return encode.encoded(encode.understand(choice))


ROWS = "hospital,age,outcome\n" + "".join(f"{'xy'[k % 2]},{30 + k},{'yes' if k % 3 else 'no'}\n" for k in range(40))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (ROWS, {"target": "outcom"}, "no column 'outcom' (the target); did you mean 'outcome'?"),
        (ROWS, {"target": "outcome", "client": "Hospitals"}, "did you mean 'hospital'?"),
        (ROWS, {}, "Give --target"),
        (ROWS.replace("\nx,32,", "\nx,old,"), {"target": "outcome"}, "'old' in line 4 of h.csv"),
        (ROWS.replace("\nx,32,", "\n,32,"), {"target": "outcome", "client": "hospital"}, "empty in line 4 of h.csv"),
        (ROWS.replace("yes", "no"), {"target": "outcome"}, "nothing to learn"),
        (ROWS.replace("\nx,32,", "\nx,inf,"), {"target": "outcome"}, "infinite in line 4"),
        ("hospital,age,outcome\n", {"target": "outcome"}, "no rows"),
    ],
)
def test_first_mistakes_are_answered(tmp_path: Path, text: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(DataError) as error:
        federation_of(tmp_path, text, **options)
    assert message in str(error.value)


def test_files_that_are_not_there_or_no_tables(tmp_path: Path) -> None:
    (tmp_path / "hospital.csv").write_text(ROWS)
    with pytest.raises(DataError, match=r"did you mean 'hospital.csv'\?"):
        read(tmp_path / "hospitals.csv")
    with pytest.raises(DataError, match="endings that can be read"):
        read(tmp_path / "hospital.xlsx")
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read(tmp_path / "bad.parquet")


def test_targets_that_are_missing_are_refused_or_dropped_as_declared(tmp_path: Path) -> None:
    text = ROWS.replace("x,32,yes", "x,32,")
    (tmp_path / "s.toml").write_text(
        schemas.to_toml(Schema(Column("outcome", "yes_no"), (Column("age", low=0, high=99),)))
    )
    with pytest.raises(DataError, match=r"empty in 1 row\(s\), first in line 4 of h\.csv"):
        federation_of(tmp_path, text, schema=str(tmp_path / "s.toml"))
    rows = federation_of(tmp_path, text, target="outcome", client="hospital")
    assert len(rows.y) == 39
    assert any("1 row(s) without a target were left out" in note for note in rows.notes)


def test_a_client_with_one_class_is_named(tmp_path: Path) -> None:
    text = ROWS + "z,40,no\nz,41,no\n"
    rows = federation_of(tmp_path, text, target="outcome", client="hospital")
    (note,) = rows.about_one_answer("local")
    assert "client 'z': 'outcome' is 'no' in every row" in note


def test_a_federation_knows_what_was_guessed(tmp_path: Path) -> None:
    rows = federation_of(tmp_path, ROWS, target="outcome", client="hospital")
    choice = DataChoice("h", files=("h.csv",))
    found = encode.federation(rows, choice, 0)
    assert found.ids == ("x", "y")
    assert found.guesses == ("outcome", "age")
    assert found.scaling_is_private is False
    assert schemas.from_toml(found.encoding) == rows.schema
    with pytest.raises(DataError, match="may hold letters"):
        encode.federation(rows, DataChoice("../h"), 0)


def test_an_experiment_on_tables_round_trips() -> None:
    choice = DataChoice("h", files=("a.csv", "b.csv"), client="hospital", target="y", schema="s.toml")
    assert from_toml(to_toml(Experiment(data=choice)), Experiment) == Experiment(data=choice)


def test_names_of_data_sets() -> None:
    assert encode.default_name([Path("a b.csv"), Path("x/c.parquet")]) == "a_b-c"
    assert encode.default_name([Path(f"hospital{k}.csv") for k in range(90)]) == "hospital0-and-89-more"


def test_columns_nobody_can_scale_are_left_out_of_a_draft(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"x": [1.5, 2.5, 3.5], "list": [[1], [2], [3]], "y": ["a", "b", "a"], "raw": [b"1", b"2", b"3"]}
    )
    frame.write_parquet(tmp_path / "t.parquet")
    schema, notes = draft([read(tmp_path / "t.parquet")], "y", None)
    assert [column.name for column in schema.columns] == ["x"]
    assert len(notes) == 2
    with pytest.raises(DataError, match="'list' holds List"):
        encode.encode(Schema(Column("y", "yes_no"), (Column("list", low=0, high=1),)), read(tmp_path / "t.parquet"))


def test_the_portable_encoding_is_the_same(tmp_path: Path) -> None:
    """`portable.py` stands alone, so it repeats the rules: they must not drift apart."""
    values = [
        ("50", "a", "yes"),
        ("", "", ""),
        ("-7", "c", "NO"),
        ("1e9", "b", "1"),
        ("NaN", "?", "f"),
        ("33.5", "NA", "True"),
    ]
    text = "age,ward,smokes\n" + "".join(",".join(row) + "\n" for row in values)
    x, _ = encoded(tmp_path / "t.csv", text)
    columns = [dataclasses.asdict(column) for column in WARD.columns]
    rows: list[Any] = [dict(zip(("age", "ward", "smokes"), row, strict=True)) for row in values]
    assert np.array([predict_numpy.features(columns, row) for row in rows], np.float32) == pytest.approx(x)
    codes = [dataclasses.asdict(Column("code", "category", values=("3", "6")))]
    gap = pl.DataFrame({"age": ["NA"], "ward": ["?"], "smokes": ["None"]})
    gap.write_parquet(tmp_path / "gap.parquet")
    found, _ = encode.encode(WARD, read(tmp_path / "gap.parquet"))
    assert found.tolist() == [predict_numpy.features(columns, gap.to_dicts()[0])] == [[0, 1, 0, 0, 0]]
    for value in ("3", "3.0", "3.00", 3, 3.0):
        assert predict_numpy.features(codes, {"code": value}) == [1, 0]
    assert predict_numpy.features(codes, {}) == [0, 0]
