"""Drafts of schemas: whatever the files hold, something is proposed, and what somebody has to decide is said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import DataError
from kinfolk.data.tables import encode, table_schema
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.draft import draft
from kinfolk.data.tables.read import read, read_all
from kinfolk.data.tables.schema import Column, Schema, SchemaError
from kinfolk.training.public_numbers import automatic


def table(path: Path, columns: Mapping[str, list[Any]], separator: str = ",") -> Path:
    """A CSV file of these columns, repeated to 30 rows."""
    lines = [separator.join(columns)]
    for k in range(30):
        lines.append(separator.join(str(values[k % len(values)]) for values in columns.values()))
    path.write_text("\n".join(lines) + "\n")
    return path


def drafted(
    folder: Path, *files: Mapping[str, list[Any]], target: str = "risk", client: str | None = None
) -> tuple[Schema, str]:
    paths = [table(folder / f"{name}.csv", columns) for name, columns in zip(("lyon", "graz", "turku"), files)]  # noqa: B905
    schema, notes = draft(read_all(paths), target, client)
    encode.encoded(encode.Tables(tuple(read_all(paths)), schema, tuple(notes)))  # training understands it too
    return schema, "\n".join(notes)


AGE = {"age": [31, 44, 52, 60, 71, 28, 39]}


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        (["male", "female"], [1, 0], ("female", "male")),
        (["M", "F"], [1, 0], ("F", "M")),
        (["yes", "no"], [1, 0], ()),
        (["High", "low"], ["high", "low", 1, 0], ("low", "High")),
        (["true", "false"], ["Y", "N"], ()),
    ],
)
def test_words_here_and_codes_there_are_proposed_as_one(
    tmp_path: Path, here: list[Any], there: list[Any], words: tuple[str, ...]
) -> None:
    risk = {"risk": ["yes", "no", "yes"]}
    schema, notes = drafted(tmp_path, {**AGE, "sex": here, **risk}, {**AGE, "sex": there, **risk})
    (sex,) = (column for column in schema.columns if column.name == "sex")
    assert (sex.kind, sex.values, sex.confirmed) == ("yes_no", words, False)
    assert "column 'sex'" in notes
    assert "taken for the same" in notes
    x = [encode.encode(Schema(schema.target, (sex,)), read(tmp_path / f"{name}.csv"))[0] for name in ("lyon", "graz")]
    assert x[0][:2].tolist() == [[1], [-1]]
    assert x[1][:2].tolist() == [[1], [-1]]


def test_labels_that_mean_the_same_are_merged_or_said(tmp_path: Path) -> None:
    schema, notes = drafted(tmp_path, {**AGE, "risk": ["High", "low"]}, {**AGE, "risk": ["high", "LOW"]})
    assert len(schema.target.classes) == 2
    assert "'High' and 'high'" in notes
    schema, notes = drafted(tmp_path, {**AGE, "risk": ["high", "low"]}, {**AGE, "risk": [1, 0]})
    assert schema.target.classes == ("low", "high")
    schema, notes = drafted(tmp_path, {**AGE, "risk": ["blue", "green"]}, {**AGE, "risk": [1, 0]})
    assert len(schema.target.classes) == 4
    assert "until then there are 4 classes" in notes
    assert "lyon.csv has 'blue', 'green' and graz.csv has '0', '1'" in notes


def test_labels_keep_the_words_of_the_table(tmp_path: Path) -> None:
    for words, classes in (([0, 1], ("0", "1")), (["no", "yes"], ("no", "yes")), (["N", "Y"], ("N", "Y"))):
        assert drafted(tmp_path, {**AGE, "risk": words})[0].target.classes == classes
    assert drafted(tmp_path, {**AGE, "risk": ["true", "false"]})[0].target.classes == ("false", "true")


def test_a_target_that_stands_twice_is_refused_and_a_copy_is_said(tmp_path: Path) -> None:
    path = tmp_path / "lyon.csv"
    path.write_text("age,risk,age,risk\n" + "31,yes,31,yes\n44,no,44,no\n" * 15)
    with pytest.raises(DataError, match="several columns 'risk'"):
        draft([read(path)], "risk", None)
    path.write_text("age,ward,risk,ward\n" + "31,a,yes,a\n44,b,no,b\n" * 15)
    schema, notes = draft([read(path)], "risk", None)
    assert [column.name for column in schema.columns] == ["age", "ward"]
    assert "several columns are called 'ward'" in notes[0]
    _, said = drafted(tmp_path, {**AGE, "risk": ["yes", "no"], "risk_x": ["yes", "no"]})
    assert "'risk_x' says the same as the target" in said


def test_names_that_differ_by_case_are_said(tmp_path: Path) -> None:
    columns = {**AGE, "AGE": AGE["age"], "where": ["Lyon", "lyon", "Graz"], "risk": ["yes", "no"]}
    _, notes = drafted(tmp_path, columns, client="where")
    assert "columns 'age' and 'AGE' differ by case alone" in notes
    assert "clients 'Lyon' and 'lyon' differ by case alone" in notes


def test_numbers_with_marks_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('income,age,risk\n"1,234",31,yes\n"22,000",44,no\n"1,500",50,no\n')
    schema, notes = draft([read(path)], "risk", None)
    assert [column.name for column in schema.columns] == ["age"]
    assert "'1,234'" in notes[0]
    assert "nothing between thousands" in notes[0]
    path.write_text("weight;age;risk\n70,5;31;yes\n81,2;44;no\n66,0;50;no\n")
    assert "a point for decimals" in draft([read(path)], "risk", None)[1][0]
    with pytest.raises(DataError, match="a point for decimals"):
        encode.encode(Schema(Column("risk", "yes_no"), (Column("weight", low=0, high=200),)), read(path))


@pytest.mark.parametrize("client", ["nope", "", "Where"])
def test_an_unknown_client_is_refused(tmp_path: Path, client: str) -> None:
    with pytest.raises(DataError, match="client"):
        drafted(tmp_path, {**AGE, "where": ["a", "b"], "risk": ["yes", "no"]}, client=client)


@pytest.mark.parametrize("value", ["1e308", "-1e308", "1e300", "99999999999"])
def test_bounds_do_not_follow_a_mistake(tmp_path: Path, value: str) -> None:
    schema, notes = drafted(tmp_path, {"age": [31, 44, 52, 60, 71, 28, 39, 47, 33, value], "risk": ["yes", "no", "no"]})
    assert (schema.columns[0].low, schema.columns[0].high) == (20, 80)
    assert "far from all others" in notes


def test_text_among_numbers_is_drafted_and_said(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", {"age": [31, 44, "old", 52, 60, 71, 28], "risk": ["yes", "no"]})
    schema, notes = draft([read(path)], "risk", None)
    assert schema.columns[0].kind == "number"
    assert "'old' in line 4 of a.csv" in notes[0]
    with pytest.raises(DataError, match=r"'old' in line 4 of a\.csv"):
        encode.encode(schema, read(path))


def test_what_rows_are_known_by_is_no_feature(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("patient_id,serial,age,risk\n" + "".join(f"{7 * k},{k},{k % 60},{k % 2}\n" for k in range(90)))
    schema, notes = draft([read(path)], "risk", None)
    assert [column.name for column in schema.columns] == ["serial", "age"]
    assert "row = 'patient_id' or person = 'patient_id'" in notes[0]
    assert "'serial' counts the rows" in notes[1]


def test_a_table_without_names_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("34,yes,130,high\n51,no,120,low\n33,yes,111,high\n40,no,99,low\n")
    with pytest.raises(DataError, match="no line of names"):
        read(path)
    path.write_text("0,1,2\n1.5,2.5,yes\n2.5,3.5,no\n")
    assert read(path).frame.columns == ["0", "1", "2"], "numbers that count the columns are names"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"age,risk\n", "has no rows below"),
        ("age,risk\n1,yes\n".encode("utf-16"), "is UTF-16"),
        ("größe,risk\n1,yes\n".encode("latin-1"), "no UTF-8.*LATIN1"),
        (b"age,risk\n1,n\0o\n", "NUL byte"),
        (b"age,risk\n1,yes\n2,no,3\n", "line 3 has 3 cell"),
        (b"age,risk\n1,yes\n2\n", "line 3 has 1 cell"),
        (b'age,risk\n1,"yes\n2,no\n', "quotation mark|line"),
    ],
)
def test_files_that_are_damaged_say_how(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path / "a.csv")
    assert "a.csv" in str(error.value)


def test_separators_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    for separator in ",;\t|":
        path = table(tmp_path / "a.csv", {**AGE, "risk": ["yes", "no"]}, separator)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        assert read(path).frame.columns == ["age", "risk"]


def test_what_is_no_file_says_so(tmp_path: Path) -> None:
    import os

    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "gone.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    for name, message in (("folder", "is a folder"), ("link", "is a link to"), ("pipe", "no plain file")):
        with pytest.raises(DataError, match=message):
            read(tmp_path / f"{name}.csv")


def test_long_texts_are_no_values(tmp_path: Path) -> None:
    schema, notes = drafted(tmp_path, {**AGE, "remark": ["x" * 10**6, "short"], "risk": ["yes", "no", "no"]})
    assert len(schema.columns) == 1
    assert len(notes) < 300


def test_notes_do_not_contradict_each_other(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("w,age,y\n" + "".join(f"{'ab'[k % 2]},{k % 30},{k % 2}\n" for k in range(60)))
    choice = DataChoice("h", files=(str(tmp_path / "h.csv"),), target="y", client="w")
    rows = encode.encoded(encode.understand(choice))
    assert "always answer that" in rows.about_one_answer("local")[0]
    assert "from other clients" in rows.about_one_answer("fedavg")[0]
    why = automatic("example", [5000] * 20, features=10, epsilon=3.0).why
    assert "less than 20 %" in why


WARD = Schema(
    Column("risk", "yes_no", values=("low", "high"), missing="drop"),
    (
        Column("age", low=0, high=120, missing="indicate"),
        Column("ward", "category", values=("a", "b", "c"), confirmed=False),
        Column("smokes", "yes_no"),
    ),
    client="where",
    name="study",
    row="visit",
)


def test_a_schema_survives_as_table_schema(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(table_schema.write(WARD))
    assert schemas.load(tmp_path / "s.json") == WARD
    fields = {field["name"]: field for field in json.loads(table_schema.write(WARD))["fields"]}
    assert fields["age"]["constraints"] == {"minimum": 0, "maximum": 120}
    assert fields["ward"]["constraints"] == {"enum": ["a", "b", "c"]}
    assert fields["risk"]["trueValues"] == ["high"]


CODEBOOK = {
    "fields": [
        {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 120}},
        {"name": "ward", "type": "string", "categories": [{"value": "a", "label": "A"}, {"value": "b", "label": "B"}]},
        {"name": "pressure", "type": "number"},
        {"name": "risk", "type": "boolean", "trueValues": ["ja", "1"], "falseValues": ["nein", "0"]},
    ],
    "missingValues": ["", "-99"],
    "primaryKey": "visit",
}


def test_a_codebook_is_taken_as_known_and_tables_help_with_the_rest(tmp_path: Path, command: Any) -> None:
    book, out = tmp_path / "book.json", tmp_path / "s.toml"
    book.write_text(json.dumps({"resources": [{"name": "visits", "schema": CODEBOOK}]}))
    columns = {**AGE, "ward": ["a", "b"], "pressure": [120.5, 130.5, 141.5], "risk": ["ja", "nein", "1"]}
    path = table(tmp_path / "lyon.csv", columns)
    words = ("schema", path, "--target", "risk", "--from", book, "--output", out, "--json")
    code, said, _ = command(*words)
    assert code == 0, said
    found = schemas.load(out)
    assert found.unconfirmed() == ("pressure",)
    assert found.target.classes == ("nein", "ja")
    assert {column.name: column.high for column in found.columns}["age"] == 120
    assert any("'-99'" in note for note in json.loads(said)["notes"])
    assert any("primaryKey" in note for note in json.loads(said)["notes"])
    code, said, _ = command("schema", "--from", out, "--output", tmp_path / "s.json", "--json")
    assert code == 0, said
    assert schemas.load(tmp_path / "s.json") == found
    code, said, _ = command("schema", "--from", book, "--target", "risk", "--output", tmp_path / "t.toml", "--json")
    assert code == 1
    assert "'pressure' has no minimum and maximum" in json.loads(said)["error"]["message"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"fields": [3]}', '{"fields": [{"name": "x", "type": 7}]}', "[" * 9999]
)
def test_a_codebook_with_a_mistake_says_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(SchemaError, match=r"b\.json"):
        schemas.load(tmp_path / "b.json")


@pytest.mark.parametrize("values", [("a",), ("yes", "no"), ("a", "b", "c")])
def test_words_for_yes_and_no_are_two_in_this_order(values: tuple[str, ...]) -> None:
    with pytest.raises(SchemaError, match="the word for no, then the word for yes"):
        Column("x", "yes_no", values=values)
    with pytest.raises(SchemaError, match="must be a list"):
        Column("x", "category", values="no")  # type: ignore[arg-type]


def test_parquet_has_no_line_of_names(tmp_path: Path) -> None:
    pl.DataFrame({"1": [1, 2], "2": [3, 4], "y": ["a", "b"]}).write_parquet(tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet").frame.width == 3
