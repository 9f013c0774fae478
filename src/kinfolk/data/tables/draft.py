"""A first schema, guessed from tables: every entry is marked as a guess, to be confirmed before a release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kinfolk.data.federation import DataError
from kinfolk.data.tables import guess
from kinfolk.data.tables.read import TableFile, canonical, client_ids, numbers, require_column
from kinfolk.data.tables.schema import NEEDS, Column, Schema, shortened

NO_COLUMNS: Mapping[str, Column] = {}
INTERVALS = 8
"""In a draft, of equal length."""


@dataclass(frozen=True)
class Asked:
    """What is to be predicted, where a target's kind does not say it."""

    outcome: str | None = None
    """`survival`, `count`, `ordinal` or `labels`."""
    event: str | None = None
    """The column that says whether the event came."""
    labels: tuple[str, ...] = ()
    """The columns of several labels."""

    def __post_init__(self) -> None:
        if self.outcome is not None and self.outcome not in NEEDS:
            raise DataError(f"outcome={self.outcome!r} is not one of {tuple(NEEDS)}; others follow from the target")
        if (self.outcome == "survival") != (self.event is not None):
            raise DataError("outcome='survival' needs --event, the column that says whether it came, and no other does")


AS_IT_LOOKS = Asked()


def draft(
    files: Sequence[TableFile],
    target: str,
    client: str | None,
    declared: Mapping[str, Column] = NO_COLUMNS,
    asked: Asked = AS_IT_LOOKS,
) -> tuple[Schema, list[str]]:
    """A schema for the tables, and a message about everything in them that somebody has to know or to decide.

    Columns that are `declared` already are taken as they are. `asked`: what is to be predicted of the target.
    """
    away = (target, client, asked.event, *asked.labels)
    for file in files:
        for name in asked.labels or (target, *([asked.event] if asked.event else [])):
            require_column(file, name, "the target", "give --target")
    notes = [note for file in files for note in twice(file)] + _by_case(files, client)
    present = [(file, dict.fromkeys(file.frame.columns)) for file in files]
    names = dict.fromkeys(name for _, own in present for name in own)
    if asked.labels:
        goal = guess.Guess(Column(target, "yes_no"))
    else:
        goal = guess.Guess(declared[target]) if target in declared else guess.target(target, files)
    columns: list[Column] = []
    absent: dict[str, list[str]] = {}
    for name in names:
        if name in away:
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
        if not lacking and not asked.labels and _is_copy(name, target, files):
            notes.append(f"column {name!r} says the same as the target in every row: if it is a copy, take it out")
    for where, lacking in absent.items():
        notes.append(f"not in {where}, and missing there: column {shortened(lacking)}")
    if not columns:
        raise DataError(
            "the tables have no column to predict from besides the target and the client: " + "; ".join(notes[:5])
        )
    assert goal.column is not None
    found, edges = as_asked(goal.column, files, asked)
    schema = Schema(
        found, tuple(columns), client, outcome=asked.outcome, event=asked.event, edges=edges, labels=asked.labels
    )
    return schema, [*goal.notes, *notes]


def as_asked(column: Column, files: Sequence[TableFile], asked: Asked) -> tuple[Column, tuple[float, ...]]:
    """A guessed target, made what was asked for, and where intervals end: guesses all of it."""
    if asked.outcome not in ("survival", "count", "ordinal"):
        return column, ()
    if asked.outcome == "ordinal":
        found = [one for file in files for one in canonical(file.frame[column.name]).unique().drop_nulls().to_list()]
        return Column(column.name, "category", values=tuple(sorted(set(found), key=_in_order)), confirmed=False), ()
    high = max(float(numbers(file.frame[column.name], file).max() or 0) for file in files)  # type: ignore[arg-type]
    if column.kind != "number" or not column.confirmed:
        column = Column(column.name, low=0.0, high=guess.outwards(0, high)[1], unit=column.unit, confirmed=False)
    assert column.high is not None
    parts = range(1, INTERVALS + 1) if asked.outcome == "survival" else ()
    return column, tuple(float(f"{column.high * part / INTERVALS:.3g}") for part in parts)


def _in_order(value: str) -> tuple[int, float, str]:
    """Numbers by size, then words by letters."""
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, value


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
