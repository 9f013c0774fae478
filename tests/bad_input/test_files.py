"""Every key of an experiment, a schema and a codebook with values of every wrong kind: one message, or what it says."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables import table_schema
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training.experiment import Experiment
from tests.bad_input import tables

VALUES = (
    *("nan", "inf", "-inf", "-1", "0", "1e308", "1" + "0" * 30, "9223372036854775807", "true", "false"),
    *('""', '"no"', '"\\u0000"', '"' + "x" * 10_000 + '"', "[]", "[1]", '["a", "a"]', "[[]]", "{}", '{a = "b"}'),
    *("1979-05-27", "07:32:00", "'''a\nb'''", "0x1F", "+1.5e+3", "--1", "yes", "[", ""),
)
"""Right sides of `key = `: wrong types, out of range, huge, nested, empty, and text that is no TOML."""


def keys(kind: type, where: str = "") -> Iterator[tuple[str, str]]:
    """Every table of a file, as TOML writes its head, and every key in it."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        inner = typing.get_args(hints[field.name]) or (hints[field.name],)
        record = next((one for one in inner if dataclasses.is_dataclass(one)), None)
        yield where, field.name
        if isinstance(record, type):
            several = typing.get_origin(hints[field.name]) is tuple
            yield from keys(record, f"[[{field.name}]]" if several else f"[{field.name}]")


EXPERIMENT, SCHEMA = list(keys(Experiment)), list(keys(Schema))
COLUMN = {"name": '"x"', "kind": '"yes_no"'}
SPOILED = ("", "\0", "[", "= 3", "[a]\n[a]", "a = 1\na = 2", "\ufeff", "é = 1", "a = " + "[" * 3000, "#")


def experiment_file(where: str, key: str, value: str) -> str:
    lines = {"epsilon": "1.0", "level": '"example"'} if where == "[privacy]" else {}
    lines = {name: text for name, text in lines.items() if name != key}
    return "\n".join([where, *(f"{name} = {text}" for name, text in lines.items()), f"{key} = {value}"]) + "\n"


def schema_file(where: str, key: str, value: str) -> str:
    target, column = dict(COLUMN, name='"y"'), dict(COLUMN)
    top = ""
    if where == "[target]":
        target[key] = value
    elif where == "[[columns]]":
        column[key] = value
    else:
        top = f"{key} = {value}\n"
    text = top if key != "target" and key != "columns" else ""
    for head, lines in (("[target]", target), ("[[columns]]", column)):
        if top and key in head:
            text = f"{top}{text}"
        else:
            text += "\n".join([head, *(f"{name} = {own}" for name, own in lines.items())]) + "\n"
    return text


def refused(path: Path, text: str, load: Any) -> str:
    """The message about a file, or nothing: then the file says what was read, and that is the same again."""
    path.write_text(text, encoding="utf-8")
    try:
        found = load(path)
    except ValueError as error:
        said = str(error)
        assert path.name in said, said
        assert len(said) < 600, said[:700]
        return said
    again = from_toml(to_toml(found), type(found))
    assert again == found, text
    return ""


@pytest.mark.parametrize(("where", "key"), EXPERIMENT, ids=lambda value: str(value))
def test_every_key_of_an_experiment(where: str, key: str, tmp_path: Path) -> None:
    from kinfolk.training.experiment import load

    said = [refused(tmp_path / "e.toml", experiment_file(where, key, value), load) for value in VALUES]
    assert sum(map(bool, said)) >= 8, "most of it is nonsense"


@pytest.mark.parametrize(("where", "key"), SCHEMA, ids=lambda value: str(value))
def test_every_key_of_a_schema(where: str, key: str, tmp_path: Path) -> None:
    said = [refused(tmp_path / "s.toml", schema_file(where, key, value), schemas.load) for value in VALUES]
    assert sum(map(bool, said)) >= 8
    word = refused(tmp_path / "s.toml", schema_file("[[columns]]", "values", '"no"'), schemas.load)
    assert "should be a list" in word, "values = 'no' is no list of n and o"


@pytest.mark.parametrize("text", SPOILED, ids=lambda value: ascii(value)[:20])
def test_files_that_are_no_toml(text: str, tmp_path: Path) -> None:
    from kinfolk.training.experiment import load

    for load_one, good in ((load, "seed = 1\n"), (schemas.load, schemas.to_toml(WARD))):
        refused(tmp_path / "a.toml", text, load_one)
        refused(tmp_path / "a.toml", good[: len(good) // 2] + text, load_one)
    (tmp_path / "b.toml").write_bytes(b"a = '\xff\xfe'")
    with pytest.raises(ValueError, match=r"b\.toml.*UTF-8"):
        load(tmp_path / "b.toml")


WARD = Schema(Column("y", "yes_no"), (Column("x", low=0, high=1), Column("w", "category", values=("a", "b"))))
JSON_VALUES: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**40, "", "no", [], [1], [[]], {}, {"a": 1}, "x" * 9999)


def test_every_key_of_a_codebook(tmp_path: Path) -> None:
    good = json.loads(table_schema.write(WARD))
    for place in range(len(good["fields"])):
        for key in ("name", "type", "constraints", "categories", "trueValues", "falseValues"):
            for value in JSON_VALUES:
                book = json.loads(table_schema.write(WARD))
                book["fields"][place][key] = value
                refused(tmp_path / "b.json", json.dumps(book), schemas.load)
    for key in ("fields", "missingValues", "primaryKey", "kinfolk"):
        for value in JSON_VALUES:
            refused(tmp_path / "b.json", json.dumps({**good, key: value}), schemas.load)


def test_there_are_more_than_700_cases() -> None:
    codebook = len(JSON_VALUES) * (6 * 3 + 4)
    files = len(VALUES) * (len(EXPERIMENT) + len(SCHEMA)) + 4 * len(SPOILED)
    assert files + codebook + 3 * len(tables.cases()) > 700


def test_unknown_keys_name_the_nearest(tmp_path: Path) -> None:
    for where, key in EXPERIMENT:
        if where.startswith("["):
            text = experiment_file(where, f"{key}x", "1")
            with pytest.raises(ConfigError, match="did you mean"):
                from_toml(text, Experiment)
