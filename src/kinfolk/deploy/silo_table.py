"""A silo's own table (CSV, Parquet or Arrow), read as `kinfolk train` reads them, by what its policy declares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from kinfolk.data.federation import DataError
from kinfolk.data.identity import ROWS_PER_PERSON, Identity
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.encode import encode, identities
from kinfolk.data.tables.read import TableFile, numbers, read, require_column
from kinfolk.data.tables.schema import Column, Schema, SchemaError
from kinfolk.data.tables.targets import targets
from kinfolk.deploy.policy import Columns
from kinfolk.deploy.study import Roster
from kinfolk.types import Rows


def read_table(folder: Path, columns: Columns, roster: Roster) -> tuple[Rows, Identity | None]:
    """All rows of the table, every value between -1 and 1, by declared bounds; and what they are known by.

    A column that is not there, or a value that is not as declared, is an error, before anything was sent to anybody.
    """
    schema = schema_of(folder, columns, roster)
    declared = (schema.target.low, schema.target.high)
    if roster.target_range and roster.outcome == "number" and declared != roster.target_range:
        raise SchemaError(
            f"target {schema.target.name!r} is declared from {declared[0]} to {declared[1]}, and the study has "
            f"target_range={list(roster.target_range)}: all silos need the same"
        )
    file = read(folder / columns.path)
    bounded = (*schema.columns, schema.target) if schema.task == "number" else schema.columns
    for name in (*(column.name for column in schema.columns), *schema.asked):
        require_column(file, name, "declared in the policy")
    for column in bounded:  # a time may be beyond the last edge, a count above the most that counts
        if column.kind == "number":
            _require_inside(column, file, gaps=columns.schema is not None)
    x, notes = encode(schema, file)
    if notes:
        raise DataError(f"{notes[0]}: correct the table, or the schema")
    y, known = targets(schema, file)
    rows = Rows(x[known], y[known], np.ones(int(known.sum()), bool))
    schema = replace(schema, row=schema.row or columns.row, person=schema.person or columns.person)
    schema = replace(schema, rows_per_person=schema.rows_per_person or columns.rows_per_person)
    column = schema.row or schema.person
    if column is None:
        return rows, None
    values = (identities(schema, file)[known],)
    return rows, Identity("row" if schema.row else "person", column, values, schema.rows_per_person or ROWS_PER_PERSON)


def schema_of(folder: Path, columns: Columns, roster: Roster) -> Schema:
    """What the policy declares: a schema file, or bounds of columns that are all numbers. It must fit the study."""
    if columns.schema is None:
        target = roster.target(columns.target) or _number(columns, columns.target)
        return roster.schema(target, tuple(_number(columns, name) for name in roster.features), columns.event)
    schema, where = schemas.load(folder / columns.schema), columns.schema
    guesses = schema.unconfirmed()
    if guesses:
        raise SchemaError(f"{where}: {guesses[0]!r} was guessed from the data: correct it and set confirmed = true")
    if schema.client is not None:
        raise SchemaError(f"{where}: client={schema.client!r}, but a silo's table is one client's: leave it out")
    if schema.feature_names() != roster.features:
        raise SchemaError(f"{where} gives the features {schema.feature_names()}, but the study has {roster.features}")
    if schema.task != roster.outcome:
        raise SchemaError(f"{where}: target {schema.target.name!r} is not what the study predicts: {roster.outcome}")
    named = schema.target.values if schema.target.kind == "category" else roster.labels
    own = {
        "labels": schema.labels or named,
        "edges": schema.edges,
        "most": schema.target.high if schema.task == "count" else None,
    }
    for name, declared in own.items():
        agreed = getattr(roster, name)
        if declared != agreed:
            raise SchemaError(
                f"{where}: the target's {name} {declared} are not the study's {name}={agreed}: all silos need the same "
                "ones in the same order"
            )
    return schema


def _number(columns: Columns, name: str) -> Column:
    low, high = columns.limits(name)
    return Column(name, low=low, high=high)


def _require_inside(column: Column, file: TableFile, gaps: bool) -> None:
    """Refuses numbers outside their bounds, and missing ones unless there may be gaps."""
    values = numbers(file.frame[column.name], file).to_numpy()
    assert column.low is not None
    assert column.high is not None
    outside = np.flatnonzero((values < column.low) | (values > column.high))
    if len(outside):
        row = int(outside[0])
        raise DataError(
            f"{file.row(row)} has {column.name}={values[row]:g}, outside its bounds {column.low:g}..{column.high:g}: "
            "correct the row, or the bounds (they are public, so do not read them off the data)"
        )
    if not gaps and np.isnan(values).any():
        raise DataError(
            f"{file.row(int(np.isnan(values).argmax()))} has no {column.name}: complete it, drop the row, or declare "
            "the columns in a schema, which may fill gaps (`kinfolk schema`)"
        )
