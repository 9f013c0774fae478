"""A silo's own table: a CSV file with a header, read by the columns and bounds that its policy declares."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from kinfolk.data.federation import DataError
from kinfolk.deploy.policy import Columns
from kinfolk.deploy.study import Roster
from kinfolk.privacy.gates import Rows


def read_table(path: Path, columns: Columns, roster: Roster) -> Rows:
    """All rows of the file; features scaled from their declared bounds to -1..1, a number to predict to 0..1.

    A value that is missing, no number, or outside its bounds is an error, before anything was sent to anybody.
    """
    wanted = (*roster.features, columns.target)
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in wanted if name not in (reader.fieldnames or [])]
            if missing:
                raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(reader.fieldnames or [])}")
            values = [[_number(row[name], name, line, path) for name in wanted] for line, row in enumerate(reader, 2)]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if not values:
        raise DataError(f"{path} has no rows")
    table = np.array(values)
    limits = np.array([columns.limits(name, roster) for name in wanted])
    outside = (table < limits[:, 0]) | (table > limits[:, 1])
    if outside.any():
        line, place = (int(found[0]) for found in np.nonzero(outside))
        low, high = limits[place]
        raise DataError(
            f"{path}:{line + 2} has {wanted[place]}={table[line, place]:g}, outside its bounds {low:g}..{high:g}: "
            "correct the row, or the bounds (they are public, so do not read them off the data)"
        )
    x, y = table[:, :-1], table[:, -1]
    x = 2 * (x - limits[:-1, 0]) / (limits[:-1, 1] - limits[:-1, 0]) - 1
    if roster.outcome == "number":
        low, high = limits[-1]
        target = ((y - low) / (high - low)).astype(np.float32)
    else:
        if (y != np.rint(y)).any():
            raise DataError(f"{path}: target {columns.target!r} must hold whole numbers")
        target = y.astype(np.int32)
    return Rows(x.astype(np.float32), target, np.ones(len(y), bool))


def _number(text: str | None, name: str, line: int, path: Path) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise DataError(f"{path}:{line} has {name}={text!r}, which is not a number: drop or complete the row")
    return value
