"""Arrays and data frames in memory as rows of a federation: what the estimators take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import DataError, Federation
from kinfolk.data.tables import guess
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.encode import Encoded, encode, identities
from kinfolk.data.tables.encode import federation as of_tables
from kinfolk.data.tables.read import TableFile, polars
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.data.tables.values import scaled

Table = Any
"""A pandas or polars frame, or whatever NumPy makes an array of: neither library is needed."""


EVERYBODY = "all"
"""The client in the one-client mode."""


def with_clients(clients: ArrayLike | None, usual: str | int | None, x: Table, what: str) -> tuple[np.ndarray, Table]:
    """Whose row each row is, as text, and the rows without the column that says so.

    `clients`: one name per row, or a column of `x`; None: as `usual` says, a column, or 1 for one client in all.
    """
    given: Any = usual if clients is None else clients
    if given is None:
        raise ValueError(
            f"clients=None: {what} needs clients=, one name per row of X or a column of it, which says whose row it is "
            "(clients=1 of the estimator: all rows are one client's)"
        )
    rows = x.shape[0] if hasattr(x, "shape") else len(np.asarray(x))
    if isinstance(given, int):
        if given != 1:
            raise ValueError(f"clients={given!r} must be 1 (all rows are one client's), a column, or one name per row")
        return np.full(rows, EVERYBODY), x
    names = [name for name in (given, usual) if isinstance(name, str)]
    columns = list(getattr(x, "columns", ()))
    if isinstance(given, str):
        if given not in columns:
            hint = schemas.nearest(given, map(str, columns)) if columns else "give X as a pandas or polars frame"
            raise ValueError(f"clients={given!r} is not a column of X: {hint}")
        given = x[given]
    x = x.drop(columns=list(set(names) & {*columns})) if hasattr(x, "iloc") else _dropped(x, names, columns)
    ids = np.asarray(given)
    if ids.ndim != 1 or len(ids) != rows:
        raise ValueError(f"clients has shape {ids.shape}, and X has {rows} rows: give one name per row")
    if any(name is None or name != name for name in ids.tolist()):
        raise ValueError("clients holds NaN: every row belongs to somebody")
    return ids.astype(str), x


def _dropped(x: Table, names: Sequence[str], columns: Sequence[str]) -> Table:
    """A polars frame without some columns; other tables as they are."""
    return x.drop(sorted({*names} & {*columns})) if columns else x


def number_columns(
    x: np.ndarray, names: Sequence[str], bounds: tuple[ArrayLike, ArrayLike] | None
) -> tuple[Column, ...]:
    """Numeric columns with declared bounds, or with those of the data, marked as guesses."""
    guessed = bounds is None
    if bounds is None:
        empty = np.isnan(x).all(axis=0)
        full = np.where(empty, 0.0, x)
        low, high = np.nanmin(full, axis=0), np.nanmax(full, axis=0)
        high = np.where(high > low, high, low + 1)
    else:
        low, high = (np.broadcast_to(np.asarray(bound, float), x.shape[1:]) for bound in bounds)
    return tuple(
        Column(str(name), low=float(a), high=float(b), confirmed=not guessed)
        for name, a, b in zip(names, low, high, strict=True)
    )


def scaled_rows(x: np.ndarray, schema: Schema) -> np.ndarray:
    """Numeric rows scaled by the schema's bounds."""
    return np.stack([scaled(x[:, k], column)[0] for k, column in enumerate(schema.columns)], axis=1)


def holds_text(x: Table) -> bool:
    """Whether a data frame has columns that are no numbers."""
    dtypes = getattr(x, "dtypes", None)
    return hasattr(x, "columns") and dtypes is not None and any(_is_text(dtype) for dtype in dtypes)


def _is_text(dtype: object) -> bool:
    numeric = getattr(dtype, "is_numeric", None)
    return not numeric() if numeric is not None else getattr(dtype, "kind", "O") not in "fiub"


def _table(frame: Table) -> TableFile:
    pl = polars()
    if not isinstance(frame, pl.DataFrame):
        if not hasattr(frame, "columns"):
            raise DataError("schema= names columns: give X as a pandas or polars frame")
        frame = pl.from_pandas(frame)
    return TableFile(Path("X"), frame, 0)


def guessed_columns(frame: Table) -> tuple[Column, ...]:
    """What the columns of a frame seem to be, marked as guesses; those that cannot be used are left out."""
    file = _table(frame)
    found = [guess.feature(name, [file]) for name in file.frame.columns]
    columns = tuple(one.column for one in found if one.column is not None)
    if not columns:
        raise DataError("X has no column that can be used: " + "; ".join(note for one in found for note in one.notes))
    return columns


def from_frame(frame: Table, schema: Schema) -> np.ndarray:
    """Rows of a polars or pandas frame, encoded by a schema."""
    file = _table(frame)
    missing = [column.name for column in schema.columns if column.name not in file.frame.columns]
    if len(missing) == len(schema.columns):
        raise DataError(f"X has none of the schema's columns ({schemas.shortened(missing)})")
    return encode(schema, file)[0]


def one_column(y: Table | None, rows: int, numeric: bool = False) -> np.ndarray:
    """The target as one value per row."""
    from sklearn.utils import column_or_1d

    if y is None:
        raise ValueError("y=None: fit requires y to be passed, but the target y is None")
    found = column_or_1d(y, warn=True)
    if len(found) != rows:
        raise ValueError(f"y has {len(found)} values and X has {rows} rows (inconsistent numbers of samples)")
    if numeric:
        found = found.astype(np.float64)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ValueError("y holds NaN or infinity: leave such rows out")
    return found


@dataclass(frozen=True)
class People:
    """Whose rows those of a fit are."""

    values: np.ndarray
    column: str
    """What tells: a column of X, or what was given beside it."""


def known_by(
    x: Table, schema: Schema, people: People | None, rows_per_person: int | None
) -> tuple[np.ndarray | None, Schema]:
    """What rows of a frame are known by, and the schema that says so: people given, or the column that it names."""
    if people is None:
        return identities(schema, _table(x)) if schema.row or schema.person else None, schema
    return people.values, replace(schema, row=None, person=people.column, rows_per_person=rows_per_person)


def people_of(given: ArrayLike | str | None, x: Table) -> People | None:
    """The person of each row: given one by one, or as a column of `x`; None: nobody says."""
    if given is None:
        return None
    if not isinstance(given, str):
        return People(np.asarray(given), "people")
    columns = list(map(str, getattr(x, "columns", ())))
    if given not in columns:
        hint = schemas.nearest(given, columns) if columns else "give X as a pandas or polars frame"
        raise ValueError(f"person={given!r} is not a column of X: {hint}")
    return People(np.asarray(x[given]), given)


def without(x: Table, column: str | None) -> Table:
    """The rows without a column, if it is there."""
    columns = list(getattr(x, "columns", ()))
    if column is None or column not in columns:
        return x
    return x.drop(columns=[column]) if hasattr(x, "iloc") else _dropped(x, [column], columns)


def federation(rows: Encoded, name: str) -> Federation:
    """All rows as training rows. What a run measures is then measured on them too: nothing is kept for testing."""
    found = of_tables(rows, DataChoice(name, test_fraction=0.0), seed=0)
    return replace(found, test=found.train, grouping="")  # clients were given beside the rows, by no column
