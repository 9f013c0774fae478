"""Metrics of a time until an event: from rows, for their owner's eyes; and from a table of score bin and course.

A course (`outcomes.py`) is twice the intervals survived, plus 1 if the event came in the next: 2J + 1 columns for J
intervals. What a table tells may be shown. A C-index of rows compares all pairs of them, one row moves as many as there
are others, and so it is never released: it stays with the rows' owner.

>>> concordance(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]), np.array([True, False, True]))
1.0
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinfolk.metrics.intervals import Measured
from kinfolk.metrics.scores import Guess, Measure, auc, curves


def concordance(score: np.ndarray, time: np.ndarray, event: np.ndarray) -> float:
    """Harrell's C-index of rows: of the pairs whose order in time is known, the share in which the earlier event has
    the higher score; equal scores count half.

    `score`: the higher, the earlier. `time`: until the event, or until nothing more is known. `event`: whether it came.
    """
    score, time = np.asarray(score, float), np.asarray(time, float)
    right = pairs = 0.0
    for place in np.flatnonzero(event):
        later = score[time > time[place]]
        right += float((score[place] > later).sum() + 0.5 * (score[place] == later).sum())
        pairs += len(later)
    return right / pairs if pairs else 0.5


def kaplan_meier(tables: np.ndarray) -> np.ndarray:
    """The share without the event by the end of each interval, from tables (tables, 2J + 1) of courses."""
    came = tables[:, 1::2]
    survived = np.cumsum(tables[:, ::-1], axis=1)[:, ::-1][:, 2::2]
    risk = came / np.maximum(came + survived, 1e-9)
    return np.cumprod(1 - np.clip(risk, 0, 1), axis=1)


def concordance_of_tables(tables: np.ndarray, ends: np.ndarray, guess: Guess) -> np.ndarray:
    """The C-index of tables (tables, bins, 2J + 1) whose bins of scores end at `ends`.

    Somebody whose event came in an interval is compared with all who survived it: for each interval the area under a
    curve, weighted by its pairs. Of two events in the same interval the table does not tell which came first; scores
    order them less well than others, since they are near in time: by how much less is a guess, and in the interval.
    """
    right, pairs, hidden = np.zeros(len(tables)), np.zeros(len(tables)), np.zeros(len(tables))
    for code in range(1, tables.shape[2], 2):
        two = np.stack([tables[:, :, code + 1 :].sum(axis=2), tables[:, :, code]], axis=2)
        came = two[:, :, 1].sum(axis=1)
        weight = two.sum(axis=1).prod(axis=1)
        right += weight * auc(curves(two, ends, guess))
        pairs += weight
        hidden += came * np.maximum(came - 1, 0) / 2
    ahead = right / np.maximum(pairs, 1e-9) - 0.5
    known = np.where(pairs > 1e-9, pairs * ahead + guess.within * hidden * ahead, 0)
    return 0.5 + known / np.maximum(pairs + hidden, 1e-9)


WITHOUT = "share without the event by"


def left_after(edge: float, unit: str) -> str:
    """What the share without the event by a time is called."""
    return f"{WITHOUT} {edge:g}{' ' + unit if unit else ''}"


def falling(found: Sequence[Measured]) -> list[Measured]:
    """The same metrics, where shares without the event, which stand in the order of time, never rise.

    They cannot, and noise lets them: each is what the lowest so far is.
    """
    result, lowest = [], (1.0, 1.0, 1.0)
    for one in found:
        if one.name.startswith(WITHOUT):
            lowest = min(lowest[0], one.value), min(lowest[1], one.low), min(lowest[2], one.high)
            one = Measured(one.name, *lowest)
        result.append(one)
    return result


def measures(ends: np.ndarray, edges: Sequence[float], unit: str) -> dict[str, Measure]:
    """The metrics of a table of scores whose bins end at `ends`, by name; intervals end at `edges`."""

    def left(place: int) -> Measure:
        return lambda tables, _: kaplan_meier(tables.sum(axis=1))[:, place]

    found: dict[str, Measure] = {
        "concordance (C-index)": lambda tables, guess: concordance_of_tables(tables, ends, guess)
    }
    return found | {left_after(edge, unit): left(place) for place, edge in enumerate(edges)}
