"""A first schema, guessed from tables: every entry is marked as a guess, to be confirmed before a release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kinfolk.data.federation import DataError
from kinfolk.data.tables import guess
from kinfolk.data.tables.read import TableFile, client_ids, require_column
from kinfolk.data.tables.schema import Column, Schema, shortened

NO_COLUMNS: Mapping[str, Column] = {}


def draft(
    files: Sequence[TableFile], target: str, client: str | None, declared: Mapping[str, Column] = NO_COLUMNS
) -> tuple[Schema, list[str]]:
    """A schema for the tables, and a message about everything in them that somebody has to know or to decide.

    Columns that are `declared` already are taken as they are.
    """
    for file in files:
        require_column(file, target, "the target", "give --target")
    notes = [note for file in files for note in twice(file)] + _by_case(files, client)
    present = [(file, dict.fromkeys(file.frame.columns)) for file in files]
    names = dict.fromkeys(name for _, own in present for name in own)
    goal = guess.Guess(declared[target]) if target in declared else guess.target(target, files)
    columns: list[Column] = []
    absent: dict[str, list[str]] = {}
    for name in names:
        if name in (target, client):
            continue
        holding = [file for file, own in present if name in own]
        lacking = [file.path.name for file, own in present if name not in own]
        if lacking:
            absent.setdefault(", ".join(lacking), []).append(name)
        found = guess.Guess(declared[name]) if name in declared else guess.feature(name, holding)
        notes += found.notes
        if found.column is None:
            continue
        columns.append(replace(found.column, missing="indicate") if lacking and name not in declared else found.column)
        if not lacking and _is_copy(name, target, files):
            notes.append(f"column {name!r} says the same as the target in every row: if it is a copy, take it out")
    for where, lacking in absent.items():
        notes.append(f"not in {where}, and missing there: column {shortened(lacking)}")
    if not columns:
        raise DataError(
            "the tables have no column to predict from besides the target and the client: " + "; ".join(notes[:5])
        )
    assert goal.column is not None
    return Schema(goal.column, tuple(columns), client), [*goal.notes, *notes]


def twice(file: TableFile) -> list[str]:
    """A message about every name that stands above several columns of a file."""
    return [f"{file.path.name}: several columns are called {name!r}: the first was taken" for name in file.twice]


def _by_case(files: Sequence[TableFile], client: str | None) -> list[str]:
    """Messages about columns, and about clients, whose names differ by case alone."""
    columns = dict.fromkeys(name for file in files for name in file.frame.columns)
    ids = dict.fromkeys(value for file in files for value in client_ids(file, client, len(files) > 1).unique().sort())
    return [
        *(f"columns {both} differ by case alone and count as two: rename one" for both in alike(columns)),
        *(f"clients {both} differ by case alone and count as two: rename one" for both in alike(ids)),
    ]


def alike(names: Iterable[str]) -> list[str]:
    """Names that differ by case alone, in words.

    >>> alike(["age", "Age", "ward"])
    ["'age' and 'Age'"]
    """
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.casefold(), []).append(name)
    return [" and ".join(map(repr, ways)) for ways in found.values() if len(ways) > 1]


def _is_copy(name: str, target: str, files: Sequence[TableFile]) -> bool:
    """Whether a column has the target's value in every row, and there are enough rows for that to be no chance."""
    if sum(file.frame.height for file in files) < guess.ENOUGH:
        return False
    return all(file.frame[name].equals(file.frame[target], check_dtypes=True) for file in files)
