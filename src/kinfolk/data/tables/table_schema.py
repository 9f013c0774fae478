"""Frictionless Table Schema (specs.frictionlessdata.io/table-schema), read and written: codebooks need no retyping.

What a codebook declares (a number's minimum and maximum, a list of values, a boolean) counts as known without looking
at the data. What it leaves open is drafted from tables, and marked as a guess.

>>> field = {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 120}}
>>> read_fields({"fields": [field]}).columns["age"].high
120.0
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinfolk.data.tables.read import LONGEST_NAME
from kinfolk.data.tables.schema import Column, Schema, SchemaError, nearest, shortened
from kinfolk.data.tables.words import GAPS, NO, YES
from kinfolk.toml import shown

OURS = "kinfolk"
"""The property under which a written file keeps what Table Schema has no word for."""
KEPT = ("name", "row", "person", "rows_per_person", "outcome", "event", "edges", "labels")
"""What a schema declares beside columns, target and client."""


@dataclass(frozen=True)
class Codebook:
    """What a Table Schema declares."""

    columns: Mapping[str, Column]
    """Columns that are declared completely."""
    left: Mapping[str, str]
    """Fields that are not, and what they lack: tables have to help."""
    notes: tuple[str, ...] = ()
    """What it says that is not read."""
    target: str | None = None
    client: str | None = None
    name: str | None = None
    row: str | None = None
    person: str | None = None
    rows_per_person: int | None = None
    outcome: str | None = None
    event: str | None = None
    edges: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()

    def kept(self) -> dict[str, Any]:
        """What is declared beside columns, target and client, by the names of a schema."""
        return {key: getattr(self, key) for key in KEPT}

    @property
    def no_features(self) -> tuple[str | None, ...]:
        """Fields that nothing is predicted from: they say who it is, or what came out."""
        return self.row, self.person, self.event, *self.labels


def read(path: Path) -> Codebook:
    """The Table Schema in a JSON file, or that of the first resource of a data package."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SchemaError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path} is no JSON ({error}): give a Table Schema or a data package") from None
    resources = value.get("resources") if isinstance(value, dict) else None
    if isinstance(resources, list) and resources and isinstance(resources[0], dict):
        value = resources[0].get("schema")
    if not isinstance(value, dict) or not isinstance(value.get("fields"), list):
        raise SchemaError(f"{path} has no list of fields: give a Table Schema, or a data package that holds one")
    try:
        return read_fields(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"{path}: {error}") from None


def read_fields(value: Mapping[str, Any]) -> Codebook:
    """What a Table Schema, as plain values, declares."""
    columns, left, notes, ours = {}, {}, [], value.get(OURS, {})
    for number, field in enumerate(value["fields"]):
        if not isinstance(field, dict) or not isinstance(field.get("name"), str):
            raise SchemaError(f"fields[{number}] has no name: give each field one")
        if len(field["name"]) > LONGEST_NAME:
            raise SchemaError(f"fields[{number}] has a name of more than {LONGEST_NAME} characters: shorten it")
        found = _column(field)
        if isinstance(found, Column):
            columns[found.name] = replace(found, **ours.get("columns", {}).get(found.name, {}))
        else:
            left[field["name"]] = found
    gaps = [gap for gap in _list(value, "missingValues") if gap not in GAPS]
    if gaps:
        notes.append(f"missingValues {shortened(gaps)} are not read as gaps: empty the cells, or write NA in them")
    if value.get("primaryKey") and not (ours.get("row") or ours.get("person")):
        notes.append(f"primaryKey={shown(value['primaryKey'])}: as row = or person = in the schema, accounts follow it")
    own = {key: ours[key] for key in ("target", "client", *KEPT) if ours.get(key) is not None}
    own |= {key: tuple(_list(ours, key)) for key in ("edges", "labels")}
    return Codebook(columns, left, tuple(notes), **own)


def _column(field: Mapping[str, Any]) -> Column | str:
    """One field as a column; a text says what is left open."""
    name, kind, limits = field["name"], field.get("type", "string"), field.get("constraints", {})
    values = [entry["value"] if isinstance(entry, dict) else entry for entry in _list(field, "categories")]
    values = values or _list(limits, "enum")
    if kind == "boolean":
        return Column(name, "yes_no", values=_words(_list(field, "falseValues"), _list(field, "trueValues")))
    if len(values) > 1:
        return Column(name, "category", values=tuple(_text(entry) for entry in values))
    if kind in ("number", "integer", "year"):
        if "minimum" in limits and "maximum" in limits:
            return Column(name, low=float(limits["minimum"]), high=float(limits["maximum"]))
        return "has no minimum and maximum"
    return f"is of type {shown(kind)} without a list of values (enum)"


def _list(record: Mapping[str, Any], key: str) -> list[Any]:
    found = record.get(key, [])
    if not isinstance(found, list):
        raise SchemaError(f"{key}={shown(found)} should be a list: write it in brackets")
    return found


def _words(no: Sequence[str], yes: Sequence[str]) -> tuple[str, ...]:
    """The words for no and yes: those that are not read anyway, or the first."""
    if not no or not yes:
        return ()
    own = [next((word for word in words if word.lower() not in NO | YES), words[0]) for words in (no, yes)]
    return () if own == ["no", "yes"] else tuple(own)


def _text(value: object) -> str:
    """A value as cells are compared: 3.0 is 3."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def write(schema: Schema) -> str:
    """A schema as Table Schema, in JSON; `read` gives the same schema again."""
    extra = {key: getattr(schema, key) for key in ("client", *KEPT) if getattr(schema, key)}
    own = {}
    for column in (schema.target, *schema.columns):
        kept = {"missing": column.missing} if column.missing else {}
        kept |= {} if column.confirmed else {"confirmed": False}
        own |= {column.name: kept} if kept else {}
    value: dict[str, Any] = {
        "fields": [_field(column) for column in (schema.target, *schema.columns)],
        "missingValues": list(GAPS),
        OURS: {"target": schema.target.name, **extra, **({"columns": own} if own else {})},
    }
    for name in dict.fromkeys((schema.client, schema.row, schema.person, schema.event, *schema.labels)):
        if name:
            value["fields"].append({"name": name, "type": "any"})
    if schema.row:
        value["primaryKey"] = schema.row
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _field(column: Column) -> dict[str, Any]:
    if column.kind == "number":
        return {"name": column.name, "type": "number", "constraints": {"minimum": column.low, "maximum": column.high}}
    if column.kind == "category":
        return {"name": column.name, "type": "string", "constraints": {"enum": list(column.values)}}
    words = column.values or ("no", "yes")
    return {"name": column.name, "type": "boolean", "falseValues": [words[0]], "trueValues": [words[1]]}


def of_schema(schema: Schema) -> Codebook:
    """What a schema declares, as a codebook."""
    columns = {column.name: column for column in (schema.target, *schema.columns)}
    kept = {key: getattr(schema, key) for key in KEPT}
    return Codebook(columns, {}, target=schema.target.name, client=schema.client, **kept)


def whole_schema(book: Codebook, target: str | None, client: str | None) -> Schema:
    """The schema that a codebook declares without the help of any table."""
    target, client = target or book.target, client or book.client
    left = [name for name in book.left if name not in (client, *book.no_features)]
    if left:
        raise SchemaError(f"field {left[0]!r} {book.left[left[0]]}: complete it, or name tables to draft it from")
    if target is None:
        raise SchemaError(f"which column is to be predicted? Give --target, one of {shortened([*book.columns])}")
    if target not in book.columns:
        raise SchemaError(f"target={target!r} is not declared there; {nearest(target, book.columns)}")
    apart = (target, client, book.event, *book.labels)
    columns = tuple(column for name, column in book.columns.items() if name not in apart)
    return Schema(book.columns[target], columns, client, **book.kept())


def read_whole(path: Path) -> Schema:
    """The schema in a JSON file that declares everything."""
    book = read(path)
    try:
        return whole_schema(book, None, None)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error} (kinfolk schema TABLE... --from {path.name})") from None
