"""Rows of tables as arrays for training: aligned to a schema, scaled by its bounds, one column per declared value.

Nothing here looks at a row in order to treat another one: bounds, vocabularies and what fills a gap are all declared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.identity import ROWS_PER_PERSON
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.draft import draft, twice
from kinfolk.data.tables.read import (
    TableFile,
    canonical,
    client_ids,
    numbers,
    polars,
    read_all,
    require_column,
)
from kinfolk.data.tables.schema import Column, Schema, nearest, shortened
from kinfolk.data.tables.targets import one_answer, target_of, targets
from kinfolk.data.tables.values import MISSING, UNKNOWN, codes, scaled

if TYPE_CHECKING:
    import polars as pl

BOUNDS = "declared bounds"
GUESSED = "a schema guessed from the data"


@dataclass(frozen=True)
class Tables:
    """Tables read and understood, before they are split."""

    files: tuple[TableFile, ...]
    schema: Schema
    notes: tuple[str, ...]
    """Messages about every difference between the files and the schema, for the owner of the data."""


@dataclass(frozen=True)
class Encoded:
    """Rows of all clients as arrays, before they are split into training and test rows."""

    schema: Schema
    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    ids: np.ndarray = field(repr=False)
    notes: tuple[str, ...]
    identities: np.ndarray | None = field(default=None, repr=False)
    """What each row is known by, where the schema declares it."""
    one_answer: tuple[tuple[str, str], ...] = ()
    """Clients whose rows all have the same label, and which."""

    def about_one_answer(self, method: str) -> list[str]:
        """A message about every client whose rows all have the same label, by what `method` makes of it."""
        meaning = "what it learns about other answers comes from other clients"
        if method == "local":
            meaning = "training alone it will always answer that (--method mean_regularized shares)"
        return [
            f"client {client!r}: {self.schema.target.name!r} is {label!r} in every row, so {meaning}"
            for client, label in self.one_answer
        ]


def understand(choice: DataChoice) -> Tables:
    """Reads the files of a choice and finds their schema: the declared one, or a draft."""
    files = read_all([Path(name) for name in choice.files])
    notes: list[str] = []
    if choice.schema is None:
        if choice.target is None:
            names = shortened(files[0].frame.columns)
            raise DataError(f"which column is to be predicted? Give --target, one of {names}")
        schema, notes = draft(files, choice.target, choice.client)
    else:
        schema = schemas.load(Path(choice.schema))
        for label, given, declared in (
            ("target", choice.target, schema.target.name),
            ("client", choice.client, schema.client),
        ):
            if given is not None and given != declared:
                raise DataError(
                    f"--{label} {given} is not the {label} of {choice.schema}, which is {declared!r}: leave --{label} "
                    f"out, or correct the schema; {nearest(given, files[0].frame.columns)}"
                )
        notes = differences(files, schema)
    return Tables(tuple(files), schema, tuple(notes))


def differences(files: Sequence[TableFile], schema: Schema) -> list[str]:
    """A message about everything in which a file differs from the schema, or its types from the first file's."""
    notes = []
    declared = {column.name: column for column in (schema.target, *schema.columns)}
    read = {*declared, *schema.asked, schema.client, schema.row, schema.person}
    order = [column.name for column in schema.columns]
    for file in files:
        where, present = file.path.name, file.frame.columns
        notes += twice(file)
        for name in order:
            if name not in present:
                extra = [other for other in present if other not in read]
                near = nearest(name, extra) if extra else ""
                hint = f" ({near})" if near.startswith("did you mean") else ""
                notes.append(f"{where}: column {name!r} is not there and counts as missing{hint}")
        unknown = [name for name in present if name not in read]
        if unknown:
            notes.append(f"{where}: not in the schema and left out: {shortened(unknown)}")
        if [name for name in present if name in order] != [name for name in order if name in present]:
            notes.append(f"{where}: columns stand in another order; they were found by name")
        for name in present:
            series = file.frame[name]
            if name in declared and declared[name].kind == "number" and not _numeric(series):
                notes.append(f"{where}: column {name!r} holds {series.dtype} and was read as numbers")
    return notes


def _numeric(series: pl.Series) -> bool:
    return series.dtype.is_numeric() or series.dtype == polars().Null


def encode(schema: Schema, file: TableFile) -> tuple[np.ndarray, list[str]]:
    """A file's features: float32, of shape (rows, features), every value between -1 and 1; and messages."""
    x = np.zeros((file.frame.height, len(schema.feature_names())), np.float32)
    place, notes = 0, []
    for column in schema.columns:
        width = len(column.feature_names())
        notes += _fill_in(column, file, x[:, place : place + width])
        place += width
    return x, notes


def _fill_in(column: Column, file: TableFile, out: np.ndarray) -> list[str]:
    """Writes one column's features; returns messages about values that were moved or are unknown."""
    if column.missing == "indicate":
        rest = np.ones(len(out), bool)
        notes = _values_of(column, file, out[:, :-1], rest)
        out[:, -1] = rest
        return notes
    return _values_of(column, file, out, np.ones(len(out), bool))


def _values_of(column: Column, file: TableFile, out: np.ndarray, missing: np.ndarray) -> list[str]:
    """Scaled values, zero where there are none; `missing` is set to where that is."""
    if column.name not in file.frame.columns:
        return []
    series, where = file.frame[column.name], file.path.name
    if column.kind == "number":
        values = numbers(series, file).to_numpy()
        missing[:] = np.isnan(values)
        out[:, 0], outside = scaled(values, column)
        if outside:
            return [
                f"{where}: column {column.name!r}: {outside} value(s) outside {column.low:g} to {column.high:g} moved"
            ]
        return []
    found = codes(column, series, file)
    missing[:] = found == MISSING
    if column.kind == "yes_no":
        out[:, 0] = np.where(found == MISSING, 0, 2.0 * found - 1)
        return []
    rows = np.flatnonzero(found >= 0)
    out[rows, found[rows]] = 1
    if (found == UNKNOWN).any():
        text = canonical(series).gather(np.flatnonzero(found == UNKNOWN)).unique(maintain_order=True).to_list()
        return [f"{where}: column {column.name!r}: not in the vocabulary, counted as none of it: {shortened(text, 5)}"]
    return []


def encoded(tables: Tables) -> Encoded:
    """All rows of all files, and messages for the owner of the data."""
    schema, notes, parts = tables.schema, list(tables.notes), []
    for file in tables.files:
        x, more = encode(schema, file)
        y, known = targets(schema, file)
        ids = client_ids(file, schema.client, len(tables.files) > 1).to_numpy()
        who = identities(schema, file)
        notes += more
        if not known.all():
            notes.append(f"{file.path.name}: {int((~known).sum())} row(s) without a target were left out")
            x, y, ids, who = x[known], y[known], ids[known], who[known]
        parts.append((x, y, ids, who))
    x, y, ids, who = (np.concatenate(values) for values in zip(*parts, strict=True))
    who = who if schema.row or schema.person else None
    return Encoded(schema, x, y, ids.astype(str), tuple(notes), who, one_answer(schema, y, ids))


def identities(schema: Schema, file: TableFile) -> np.ndarray:
    """What the rows of a file are known by; nothing, where the schema does not say."""
    column = schema.row or schema.person
    if column is None:
        return np.full(file.frame.height, "")
    require_column(file, column, "row" if schema.row else "person")
    found = canonical(file.frame[column])
    if found.null_count():
        row = int(found.is_null().arg_max() or 0)
        raise DataError(f"column {column!r} says which record or person it is, and is empty in {file.row(row)}")
    return found.to_numpy().astype(str)


def federation(rows: Encoded, choice: DataChoice, seed: int) -> Federation:
    """The rows as a federation, split by `seed`."""
    schema = rows.schema
    guesses = schema.unconfirmed()
    found = from_rows(
        rows.x,
        rows.y,
        rows.ids,
        test_fraction=choice.test_fraction,
        seed=seed,
        name=check_name(choice.name),
        outcome=schema.task,
        classes=len(schema.classes),
        scaling=GUESSED if guesses else BOUNDS,
        scaling_is_private=not guesses,
        row_ids=rows.identities if schema.row else None,
        person_ids=rows.identities if schema.person else None,
        rows_per_person=schema.rows_per_person or ROWS_PER_PERSON,
    )
    identity = found.identity and replace(found.identity, column=schema.row or schema.person or "")
    grouping = "file" if schema.client is None else f"column {schema.client}"
    return replace(
        found,
        encoding=schemas.to_toml(schema),
        guesses=guesses,
        grouping=grouping,
        identity=identity,
        target=target_of(schema),
    )


def load_tables(choice: DataChoice, seed: int) -> Federation:
    """The tables of an experiment as a federation, split by `seed`."""
    return federation(encoded(understand(choice)), choice, seed)


def default_name(files: Sequence[Path]) -> str:
    """What to call a data set whose owner gave it no name: after its files."""
    stems = [_plain(path.stem) for path in files]
    joined = "-".join(stems)
    return joined if len(joined) <= 60 else f"{stems[0]}-and-{len(stems) - 1}-more"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip(".") or "table"


def check_name(name: str) -> str:
    """A data set's name, if it can name a ledger."""
    if _plain(name) != name:
        raise DataError(f"name={name!r} may hold letters, digits, '-', '_' and '.' only: use {_plain(name)!r}")
    return name
