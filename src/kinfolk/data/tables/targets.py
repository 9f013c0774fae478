"""What is to be predicted, of every row: numbers that models see, by a schema's declarations alone."""

from __future__ import annotations

import math

import numpy as np

from kinfolk.data.federation import DataError
from kinfolk.data.tables.read import TableFile, numbers, require_column
from kinfolk.data.tables.schema import Column, Schema, shortened
from kinfolk.data.tables.values import MISSING, UNKNOWN, codes, scaled
from kinfolk.data.target import Target, courses


def targets(schema: Schema, file: TableFile) -> tuple[np.ndarray, np.ndarray]:
    """The target of every row as models see it (`target_of` says how), and which rows have one."""
    for name in schema.asked:
        require_column(file, name, "the target", "give --target, or correct the schema")
    y, known = _found(schema, file)
    if not known.all() and schema.target.missing != "drop":
        row = int(np.flatnonzero(~known)[0])
        raise DataError(
            f"target {shortened(schema.asked, 3)} is empty in {int((~known).sum())} row(s), first in {file.row(row)}: "
            'fill it in, or let such rows be left out (missing = "drop" in the schema\'s target)'
        )
    return y, known


def _found(schema: Schema, file: TableFile) -> tuple[np.ndarray, np.ndarray]:
    column = schema.target
    if schema.task == "labels":
        each = [codes(Column(name, "yes_no", values=column.values), file.frame[name], file) for name in schema.labels]
        found = np.stack(each, axis=1)
        return np.maximum(found, 0).astype(np.int32), (found != MISSING).all(axis=1)
    if column.kind != "number":
        found = codes(column, file.frame[column.name], file)
        bad = np.flatnonzero(found == UNKNOWN)
        if len(bad):
            raise DataError(
                f"target {column.name!r} is one of {shortened(column.classes)}, but {file.row(int(bad[0]))} holds "
                f"{file.frame[column.name][int(bad[0])]!r}: correct the file, or add the value to the schema"
            )
        return np.maximum(found, 0).astype(np.int32), found != MISSING
    raw = numbers(file.frame[column.name], file).to_numpy()
    known = ~np.isnan(raw)
    if schema.task == "number":
        return scaled(raw, column)[0], known
    if (raw < 0).any():
        row = int(np.flatnonzero(raw < 0)[0])
        raise DataError(f"target {column.name!r} is {raw[row]:g} in {file.row(row)}, below 0: correct it")
    if schema.event is None:
        return (np.clip(np.nan_to_num(raw), 0, column.high) / count_unit(column)).astype(np.float32), known
    event = codes(Column(schema.event, "yes_no"), file.frame[schema.event], file)
    return courses(np.nan_to_num(raw), event > 0, schema.edges), known & (event != MISSING)


def count_unit(column: Column) -> float:
    """What counts are divided by, so that ordinary ones are near 1 for models: the root of the most that counts."""
    assert column.high is not None
    return math.sqrt(column.high)


def target_of(schema: Schema) -> Target:
    """What a target is measured in. Models see a number between -1 and 1, a count divided by `count_unit`."""
    column = schema.target
    if schema.task == "survival":
        return Target(column.name, column.unit, 0.0, schema.edges[-1], 0.0, schema.edges[-1], edges=schema.edges)
    if column.low is None or column.high is None:
        return Target(column.name, labels=schema.classes)
    if schema.task == "count":
        return Target(column.name, column.unit, 0.0, column.high, 0.0, column.high / count_unit(column))
    return Target(column.name, column.unit, column.low, column.high)


def one_answer(schema: Schema, y: np.ndarray, ids: np.ndarray) -> tuple[tuple[str, str], ...]:
    """Clients whose rows all have the same label, and which."""
    if schema.task not in ("binary", "classes", "ordinal"):
        return ()
    names, place = np.unique(ids, return_inverse=True)
    counts = np.zeros((len(names), len(schema.target.classes)), int)
    np.add.at(counts, (place, y), 1)
    single = np.flatnonzero((counts > 0).sum(axis=1) == 1)
    return tuple((str(names[k]), schema.target.classes[int(counts[k].argmax())]) for k in single)
