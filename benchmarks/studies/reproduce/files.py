"""Results files: a record of what was measured, as JSON that every reader takes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from benchmarks.studies.reproduce.records import Measured, Point


def as_json(record: dict[str, Any]) -> str:
    """The file's text. JSON has no infinity: an infinite strength, which is averaging, is null.

    `record`: an item's name, size, seconds and device, and all of `Measured`.
    """
    strengths = {
        name: [(x, None if math.isinf(strength) else strength, inside) for x, strength, inside in rows]
        for name, rows in record["strengths"].items()
    }
    return json.dumps({**record, "strengths": strengths}, indent=1, allow_nan=False) + "\n"


def of_record(record: dict[str, Any]) -> Measured:
    """What a results file says was measured.

    `record`: as it was read from the file, or as `as_json` takes it.
    """
    curves = {name: [_point(*values) for values in points] for name, points in record["curves"].items()}
    rest = {key: record[key] for key in ("data", "seeds", "budget", "stand_in", "note", "took", "machine")}
    strengths = {
        name: [(x, math.inf if strength is None else strength, bool(inside)) for x, strength, inside in rows]
        for name, rows in record["strengths"].items()
    }
    return Measured(curves=curves, strengths=strengths, **rest)


def _point(x: float, mean: float, error: float, seeds: Sequence[float] = ()) -> Point:
    return Point(x, mean, error, tuple(seeds))
