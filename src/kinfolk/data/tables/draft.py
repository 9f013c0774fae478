"""A first schema, guessed from tables: every entry is marked as a guess, to be confirmed before a release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kinfolk.data.federation import DataError
from kinfolk.data.tables.read import TableFile, canonical, not_plain, numbers, polars, require_column
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.data.tables.words import NO, YES

if TYPE_CHECKING:
    import polars as pl

MOST_CODES = 5
"""Whole numbers with at most so many different values are taken for codes, not amounts."""
MOST_CLASSES = 20
MOST_VALUES = 50
"""A text column with more different values is an identifier or free text, and is left out."""
YES_NO = (NO, YES)


def draft(files: Sequence[TableFile], target: str, client: str | None) -> tuple[Schema, list[str]]:
    """A schema for the tables, and a message about every column that is not in it or not in every file."""
    for file in files:
        require_column(file, target, "the target", "give --target")
    names = list(dict.fromkeys(name for file in files for name in file.frame.columns))
    columns, notes = [], []
    for name in names:
        if name in (target, client):
            continue
        lacking = [file.path.name for file in files if name not in file.frame.columns]
        if lacking:
            notes.append(f"column {name!r} is not in {', '.join(lacking)}: it counts as missing there")
        column = guess(name, [file for file in files if name not in lacking and name in file.frame.columns])
        if isinstance(column, str):
            notes.append(column)
        else:
            columns.append(_with_indicator(column, bool(lacking)))
    if not columns:
        raise DataError("the tables have no column to predict from besides the target and the client")
    return Schema(guess_target(target, files), tuple(columns), client), notes


def _with_indicator(column: Column, lacking: bool) -> Column:
    return replace(column, missing="indicate") if lacking else column


def guess(name: str, files: Sequence[TableFile]) -> Column | str:
    """What a feature seems to be; a text says why it was left out."""
    pl = polars()
    series = [file.frame[name] for file in files]
    if any(not_plain(one) for one in series):
        return f"column {name!r} holds {series[0].dtype} and was left out"
    missing = "indicate" if any(_missing(one) for one in series) else "fill"
    if _is_text(series):
        found = _values(series)
        if found is None or len(found) > MOST_VALUES:
            return f"column {name!r} holds text with many different values and was left out"
        if not found:
            return f"column {name!r} is empty and was left out"
        if len(found) == 1:
            return f"column {name!r} always holds {found[0]!r} and was left out"
        if _yes_no(found):
            return Column(name, "yes_no", missing=missing, confirmed=False)
        return Column(name, "category", values=tuple(found), missing=missing, confirmed=False)
    joined = pl.concat([numbers(one, file) for one, file in zip(series, files, strict=True)]).drop_nulls()
    if not joined.len():
        return f"column {name!r} is empty and was left out"
    low, high = float(joined.min()), float(joined.max())
    if low == high:
        return f"column {name!r} always holds {low:g} and was left out"
    whole = bool((joined == joined.round()).all())
    count = joined.n_unique()
    if whole and (low, high, count) == (0, 1, 2):
        return Column(name, "yes_no", missing=missing, confirmed=False)
    if whole and count <= MOST_CODES:
        values = tuple(f"{value:.0f}" for value in joined.unique().sort())
        return Column(name, "category", values=values, missing=missing, confirmed=False)
    return Column(name, "number", *outwards(low, high), missing=missing, confirmed=False)


def guess_target(name: str, files: Sequence[TableFile]) -> Column:
    """What the target seems to be: few different values are classes, anything else a number."""
    pl = polars()
    series = [file.frame[name] for file in files]
    missing = "drop" if any(_missing(one) for one in series) else ""
    found = _values(series) or []
    text = _is_text(series)
    if len(found) < 2:
        raise DataError(
            f"target {name!r} holds {found[0] if found else 'nothing'} in every row: there is nothing to learn; "
            "give another --target"
        )
    if _yes_no(found):
        return Column(name, "yes_no", missing=missing, confirmed=False)
    if text:
        if len(found) > MOST_CLASSES:
            raise DataError(
                f"target {name!r} holds text with {len(found)} different values: give another --target, or a schema "
                "that declares its values"
            )
        return Column(name, "category", values=tuple(found), missing=missing, confirmed=False)
    joined = pl.concat([numbers(one, file) for one, file in zip(series, files, strict=True)]).drop_nulls()
    if len(found) <= MOST_CLASSES // 2 and bool((joined == joined.round()).all()):
        values = tuple(f"{value:.0f}" for value in joined.unique().sort())
        return Column(name, "category", values=values, missing=missing, confirmed=False)
    return Column(name, "number", *outwards(float(joined.min()), float(joined.max())), missing=missing, confirmed=False)


def outwards(low: float, high: float) -> tuple[float, float]:
    """Bounds moved outwards to round numbers.

    >>> outwards(28, 77)
    (20.0, 80.0)
    """
    step = 10.0 ** math.floor(math.log10(high - low))
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _is_text(series: Sequence[pl.Series]) -> bool:
    """Whether a column is text: one that is text in most files. Text in few files only is left to be an error."""
    rows = sum(one.len() for one in series if not _is_number(one))
    return 2 * rows > sum(one.len() for one in series)


def _is_number(series: pl.Series) -> bool:
    """Numbers by type, or text of which most is numbers: a few words in it are mistakes."""
    pl = polars()
    if series.dtype.is_numeric() or series.dtype == pl.Null:
        return True
    if series.dtype == pl.Boolean:
        return False
    text = series.cast(pl.String).drop_nulls()
    return 2 * text.cast(pl.Float64, strict=False).null_count() < text.len()


def _missing(series: pl.Series) -> bool:
    return bool(series.null_count()) or (series.dtype.is_float() and bool(series.is_nan().any()))


def _values(series: Sequence[pl.Series]) -> list[str] | None:
    """The different values as text, sorted: numbers by size."""
    pl = polars()
    found = pl.concat([canonical(one).drop_nulls().unique() for one in series]).unique().to_list()
    try:
        return sorted(found, key=float)
    except ValueError:
        return sorted(found)


def _yes_no(values: Sequence[str]) -> bool:
    folded = {value.lower() for value in values}
    return len(folded) == 2 and all(folded & side for side in YES_NO) and folded <= YES_NO[0] | YES_NO[1]
