"""Cells as numbers: places between declared bounds, or in a declared vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinfolk.data.federation import DataError
from kinfolk.data.tables.read import TableFile, canonical, polars
from kinfolk.data.tables.schema import Column
from kinfolk.data.tables.words import NO, YES

if TYPE_CHECKING:
    import polars as pl


def scaled(values: np.ndarray, column: Column) -> tuple[np.ndarray, int]:
    """Numbers moved from the column's bounds to -1..1, those outside to the nearer bound, NaN to the middle.

    Returns how many lay outside, too. The rule is public, so it costs nothing.
    """
    assert column.low is not None
    assert column.high is not None
    middle, half = (column.low + column.high) / 2, (column.high - column.low) / 2
    moved = (np.asarray(values, float) - middle) / half
    outside = int((np.abs(moved) > 1).sum())
    return np.clip(np.nan_to_num(moved, nan=0.0), -1, 1).astype(np.float32), outside


MISSING, UNKNOWN = -1, -2
"""Codes of values that are not there, and of those that are not in the vocabulary."""


def codes(column: Column, series: pl.Series, file: TableFile) -> np.ndarray:
    """The place of every value in the column's vocabulary, or MISSING or UNKNOWN."""
    pl = polars()
    text, words = canonical(series), places(column)
    different = text.unique().drop_nulls().to_list()
    known = {value: words.get(value, words.get(value.casefold(), UNKNOWN)) for value in different}
    found = text.replace_strict(known, default=UNKNOWN, return_dtype=pl.Int32)
    found = found.to_numpy() if not text.null_count() else found.set(text.is_null(), MISSING).to_numpy()
    if column.kind == "yes_no" and (found == UNKNOWN).any():
        row = int(np.flatnonzero(found == UNKNOWN)[0])
        raise DataError(
            f"column {column.name!r} is yes or no, but {file.row(row)} holds {series[row]!r}: correct the file, or "
            'declare the column as a category (kind = "category") in the schema'
        )
    return found


def places(column: Column) -> dict[str, int]:
    """What cells may say, and the place in the vocabulary that they mean; in lower case, in any case of letters."""
    folded = {value.casefold(): place for place, value in enumerate(column.classes)}
    exact = {value: place for place, value in enumerate(column.classes)}
    usual = {word: side for side, known in enumerate((NO, YES)) for word in known} if column.kind == "yes_no" else {}
    return usual | folded | exact
