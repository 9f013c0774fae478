"""What one column of some tables seems to be, by its values: a guess, and what has to be said about it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinfolk import limits
from kinfolk.data.federation import DataError
from kinfolk.data.tables.read import (
    MARKED,
    PLAIN_NUMBERS,
    TableFile,
    canonical,
    clipped,
    no_numbers,
    not_plain,
    parsed,
    polars,
)
from kinfolk.data.tables.schema import Column, shortened
from kinfolk.data.tables.words import ANSWERS, NO, PAIRS, YES

if TYPE_CHECKING:
    import polars as pl

MOST_CODES = 5
"""Whole numbers with at most so many different values are taken for codes, not amounts."""
MOST_CLASSES = 20
MOST_VALUES = 50
"""A text column with more different values is an identifier or free text, and is left out."""
LONGEST = 100
"""A text with more characters is no value of a list."""
FAR = 1e4
"""So many times the middle half's width away from the middle, a value is taken for a mistake."""
ENOUGH = 20
"""Rows from which on it says something that all values differ."""
IDENTIFIER = re.compile(r"(^|[ _.-])(id|nr|no|number|key|index|mrn|uuid)$|^(patient|person|subject|visit|row|record)$")
"""Names of what a row is known by."""


@dataclass(frozen=True)
class Guess:
    """What a column seems to be."""

    column: Column | None
    """None: it was left out of the draft."""
    notes: tuple[str, ...] = ()
    """What its owner has to know, or to decide."""


@dataclass(frozen=True)
class Words:
    """The values of a column in several files, as text; those that differ by case alone are one."""

    files: tuple[tuple[str, Mapping[str, int]], ...]
    """Of every file its name and its values, with how many rows have each."""

    @property
    def spellings(self) -> dict[str, list[str]]:
        """Every value as most rows write it, and all ways in which it is written."""
        total = sum((Counter(dict(counts)) for _, counts in self.files), Counter())
        found: dict[str, list[str]] = {}
        for value in sorted(total, key=lambda value: (-total[value], value)):
            found.setdefault(value.casefold(), []).append(value)
        return {ways[0]: ways for ways in found.values()}

    @property
    def values(self) -> list[str]:
        """The different values, sorted: numbers by size."""
        try:
            return sorted(self.spellings, key=float)
        except ValueError:
            return sorted(self.spellings)


def words_of(name: str, files: Sequence[TableFile]) -> Words:
    """The values of a column, file by file."""
    found = []
    for file in files:
        counts = canonical(file.frame[name]).drop_nulls().value_counts()
        found.append((file.path.name, dict(counts.iter_rows())))
    return Words(tuple(found))


def feature(name: str, files: Sequence[TableFile]) -> Guess:
    """What a column to predict from seems to be."""
    series = [file.frame[name] for file in files]
    for one in series:
        if not_plain(one):
            return _left_out(name, f"holds {one.dtype}")
    missing = "indicate" if any(map(_gaps, series)) else "fill"
    if is_text(series):
        return _of_words(name, files, missing)
    return _of_numbers(name, files, missing)


def target(name: str, files: Sequence[TableFile]) -> Guess:
    """What the target seems to be: few different values are classes, anything else a number."""
    series = [file.frame[name] for file in files]
    missing = "drop" if any(map(_gaps, series)) else ""
    found = words_of(name, files)
    if len(found.values) < 2:
        holds = repr(clipped(found.values[0])) if found.values else "nothing"
        raise DataError(f"target {name!r} holds {holds} in every row: there is nothing to learn; give another --target")
    if pair := own_words(found):
        pair = ("false", "true") if all(one.dtype == polars().Boolean for one in series) else pair
        return _yes_no(name, found, pair, missing)
    if is_text(series):
        if len(found.values) > MOST_CLASSES or max(map(len, found.values)) > LONGEST:
            hint = f"{PLAIN_NUMBERS}; " if all(MARKED.fullmatch(value) for value in found.values) else ""
            raise DataError(
                f"target {name!r} holds text with {len(found.values)} different values: {hint}give another --target, "
                "or a schema that declares its values"
            )
        return _category(name, found, missing, _other_labels(name, found))
    usable, notes = _usable(name, files)
    if not len(usable) or usable.min() == usable.max():
        raise DataError(
            f"target {name!r} holds no numbers to learn from: {'; '.join(notes) or 'give another --target'}"
        )
    if len(found.values) <= MOST_CLASSES // 2 and _are_whole(usable):
        return Guess(_codes(name, usable, missing), (*notes, *_other_labels(name, found)))
    return Guess(_number(name, usable, missing), notes)


def is_text(series: Sequence[pl.Series]) -> bool:
    """Whether a column is text: in most rows, or in some whole files while the others hold few different numbers."""
    text = [one for one in series if not _is_number(one)]
    if not text:
        return False
    if 2 * sum(one.len() for one in text) > sum(one.len() for one in series):
        return True
    codes = [parsed(one)[0].drop_nulls().n_unique() for one in series if _is_number(one)]
    words = all(not (set(parsed(one)[0].drop_nulls().to_list()) - {0.0, 1.0}) for one in text)
    return words and max(codes, default=0) <= MOST_CODES


def _is_number(series: pl.Series) -> bool:
    """Numbers by type, or text of which most is numbers: a few words in it are mistakes."""
    pl = polars()
    if series.dtype.is_numeric() or series.dtype == pl.Null:
        return True
    if series.dtype == pl.Boolean:
        return False
    found, bad = parsed(series)
    return 2 * len(bad) < found.len()


def _gaps(series: pl.Series) -> bool:
    return bool(series.null_count()) or (series.dtype.is_float() and bool(series.is_nan().any()))


def _left_out(name: str, why: str) -> Guess:
    return Guess(None, (f"column {name!r} {why} and was left out",))


def _of_words(name: str, files: Sequence[TableFile], missing: str) -> Guess:
    found = words_of(name, files)
    values = found.values
    if not values:
        return _left_out(name, "is empty")
    if sum(bool(MARKED.fullmatch(value)) for value in values) * 2 > len(values):
        example = next(value for value in values if MARKED.fullmatch(value))
        return _left_out(name, f"holds numbers such as {example!r} ({PLAIN_NUMBERS})")
    if len(values) > MOST_VALUES:
        return _left_out(name, "holds text with many different values")
    if max(map(len, values)) > LONGEST:
        longest = max(values, key=len)
        return _left_out(name, f"holds text of up to {len(longest)} characters, and no list of values")
    if len(values) == 1:
        return _left_out(name, f"always holds {values[0]!r}")
    pair = own_words(found)
    if pair:
        return _yes_no(name, found, pair, missing)
    if _share_nothing(found):
        says = f"{_differing(found)}: if they mean the same, {SAME_WORDS}; until then they count as {len(values)}"
        return _category(name, found, missing, (f"column {name!r}: {says}",))
    return _category(name, found, missing)


SAME_WORDS = 'give them the same words (or kind = "yes_no", with values = [what 0 means, what 1 means])'


def own_words(found: Words) -> tuple[str, str] | None:
    """The words for no and yes, if all values are one or the other: answers, or a usual pair of words beside answers.

    `found`: the values.
    """
    folded = {value.casefold(): value for value in found.spellings}
    for no, yes in PAIRS:
        rest = folded.keys() - {no, yes}
        if len(folded) == len(rest) + 2 and rest and rest <= NO | YES:
            return folded[no], folded[yes]
    for no, yes in ANSWERS:
        if {no, yes} <= folded.keys() <= NO | YES:
            return folded[no], folded[yes]
    return None


def _yes_no(name: str, found: Words, pair: tuple[str, str], missing: str) -> Guess:
    """A column of two values, which files may write in several ways."""
    words = () if pair == ("no", "yes") else pair
    notes = ()
    if len(found.spellings) > 2:
        sides = {value: value.casefold() in (pair[1].casefold(), *YES) and value != pair[0] for value in found.values}
        no, yes = (" and ".join(repr(v) for v, side in sides.items() if side is own) for own in (False, True))
        notes = (f"column {name!r}: {no} are taken for the same, and {yes}: confirm that, or correct the files",)
    return Guess(Column(name, "yes_no", values=words, missing=missing, confirmed=False), notes + _merged(name, found))


def _category(name: str, found: Words, missing: str, notes: tuple[str, ...] = ()) -> Guess:
    column = Column(name, "category", values=tuple(found.values), missing=missing, confirmed=False)
    return Guess(column, notes + _merged(name, found))


def _merged(name: str, found: Words) -> tuple[str, ...]:
    """A message about values that differ by case alone."""
    several = [" and ".join(map(repr, sorted(ways))) for ways in found.spellings.values() if len(ways) > 1]
    return (f"column {name!r}: {'; '.join(several[:5])} are taken for the same value",) if several else ()


def _share_nothing(found: Words) -> bool:
    """Whether some file has none of the values of the first."""
    folded = [{value.casefold() for value in counts} for _, counts in found.files if counts]
    return any(not own & folded[0] for own in folded[1:])


def _differing(found: Words) -> str:
    """Two files whose values differ, in words; empty where there are none."""
    folded = [(name, {value.casefold() for value in counts}) for name, counts in found.files if counts]
    for name, own in folded[1:]:
        if own - folded[0][1] and folded[0][1] - own:
            here, there = (shortened(sorted(values), 5) for values in (folded[0][1], own))
            return f"{folded[0][0]} has {here} and {name} has {there}"
    return ""


def _other_labels(name: str, found: Words) -> tuple[str, ...]:
    """A message about files with other labels than the first."""
    apart = _differing(found)
    if apart:
        says = f"{apart}: if they mean the same, {SAME_WORDS}; until then there are {len(found.values)} classes"
        return (f"target {name!r}: {says}",)
    folded = [(where, {value.casefold() for value in counts}) for where, counts in found.files if counts]
    more = [(where, own - folded[0][1]) for where, own in folded if own - folded[0][1]]
    return tuple(
        f"target {name!r}: {where} also has {shortened(sorted(own), 5)}, which {folded[0][0]} has not"
        for where, own in more[:5]
    )


def _of_numbers(name: str, files: Sequence[TableFile], missing: str) -> Guess:
    usable, notes = _usable(name, files)
    if not len(usable):
        return Guess(None, (*notes, *_left_out(name, "has no other values" if notes else "is empty").notes))
    low, high = float(usable.min()), float(usable.max())
    if low == high:
        return Guess(None, (*notes, *_left_out(name, f"always holds {low:g}").notes))
    if _are_whole(usable):
        count = len(np.unique(usable))
        if (low, high, count) == (0, 1, 2):
            return Guess(Column(name, "yes_no", missing=missing, confirmed=False), notes)
        if count <= MOST_CODES:
            return Guess(_codes(name, usable, missing), notes)
        if IDENTIFIER.search(name.lower()) and count > MOST_VALUES:
            hint = f"row = {name!r} or person = {name!r} in the schema lets accounts follow it"
            return _left_out(name, f"seems to be what a row or a person is known by ({hint})")
        if count == len(usable) >= ENOUGH and high - low == count - 1:
            notes += (f"column {name!r} counts the rows: if it is a number of theirs, take it out of the schema",)
    return Guess(_number(name, usable, missing), notes)


def _usable(name: str, files: Sequence[TableFile]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The numbers of a column that bounds can follow, and messages about what else it holds."""
    parts, notes = [], []
    for file in files:
        found, bad = parsed(file.frame[name])
        if len(bad):
            notes.append(no_numbers(file.frame[name], bad, file))
        values = found.to_numpy()
        far = np.flatnonzero(_are_far(values))
        if len(far):
            notes.append(
                f"column {name!r}: {len(far)} value(s) far from all others, such as {values[far[0]]:g} in "
                f"{file.row(int(far[0]))}: the bounds do not follow them; correct the file"
            )
        keep = ~np.isnan(values)
        keep[far] = False
        parts.append(values[keep])
    return np.concatenate(parts), tuple(notes)


def _are_far(values: np.ndarray) -> np.ndarray:
    """Which values are mistakes by their size alone."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.isinf(values)
    quarter, middle, rest = np.sort(known)[[len(known) // 4, len(known) // 2, 3 * len(known) // 4]]
    reach = FAR * (rest - quarter) or limits.HUGE
    return np.abs(values - middle) > min(reach, limits.HUGE)


def _are_whole(values: np.ndarray) -> bool:
    return bool((values == np.round(values)).all())


def _codes(name: str, values: np.ndarray, missing: str) -> Column:
    found = tuple(f"{value:.0f}" for value in np.unique(values))
    return Column(name, "category", values=found, missing=missing, confirmed=False)


def _number(name: str, values: np.ndarray, missing: str) -> Column:
    bounds = outwards(float(values.min()), float(values.max()))
    return Column(name, "number", *bounds, missing=missing, confirmed=False)


def outwards(low: float, high: float) -> tuple[float, float]:
    """Bounds moved outwards to round numbers.

    >>> outwards(28, 77)
    (20.0, 80.0)
    """
    step = 10.0 ** math.floor(math.log10(high - low))
    return math.floor(low / step) * step, math.ceil(high / step) * step
