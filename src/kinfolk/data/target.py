"""What a target is called and measured in, so that errors can be told in its own unit; and what it may be.

>>> Target("score", "points", low=1, high=70, scaled_low=0, scaled_high=1).factor
69.0
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk import limits
from kinfolk.data.given_rows import DataError
from kinfolk.outcomes import OUTCOMES
from kinfolk.toml import shown

MEANT = {"regression": "number", "classification": "classes", "multiclass": "classes"}
"""What others call outcomes; models' names (`logistic`, `multilabel`) are understood too."""
NUMBERED = ("classes", "ordinal", "survival")
"""Outcomes whose targets are places in a list: integers."""


@dataclass(frozen=True)
class Target:
    """A target as its owner knows it, beside the numbers that models see."""

    name: str = ""
    """What it is called: a column."""
    unit: str = ""
    """What it is measured in; empty: nobody said."""
    low: float = -1.0
    """The lowest value of a number, as declared."""
    high: float = 1.0
    """The highest."""
    scaled_low: float = -1.0
    """What models see of the lowest."""
    scaled_high: float = 1.0
    """What they see of the highest."""
    labels: tuple[str, ...] = ()
    """Of a target that is no number, in the order of their codes."""
    edges: tuple[float, ...] = ()
    """Where the intervals of a time until an event end."""

    @property
    def factor(self) -> float:
        """What an error of models is multiplied by to be in the target's own unit."""
        return (self.high - self.low) / (self.scaled_high - self.scaled_low)

    @property
    def words(self) -> str:
        """What stands behind an error of a number."""
        return self.unit or (f"in units of {self.name}" if self.name else "in scaled units")


def courses(time: np.ndarray, event: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """Times until an event, or until nothing more is known, as models see them (`outcomes.py`).

    An interval counts as survived by somebody who was lost in its second half, and not at all if in its first. An
    event after the last edge is none.

    `time`: one per row, 0 or more. `event`: whether the event came then, as truth values or as 0 and 1. `edges`: where
    intervals end, increasing; public.

    >>> courses(np.array([1.0, 1.0, 1.7, 9.0]), np.array([True, False, False, True]), (1.0, 2.0, 4.0)).tolist()
    [1, 2, 4, 6]
    """
    time, given = np.asarray(time, float), np.asarray(event)
    if time.shape != given.shape or time.ndim != 1:
        raise DataError(f"time has shape {time.shape} and event {given.shape}: give one of each per row")
    if not np.isfinite(time).all() or (time < 0).any():
        raise DataError("time holds negative or missing values: leave such rows out")
    came = given == 1
    if not (came | (given == 0)).all():
        other = given[~(came | (given == 0))].tolist()[0]
        raise DataError(f"event holds {shown(other)}, and is 1 (it came) or 0: give (event == code), as truth values")
    ends = np.asarray(limits.several("edges", edges))
    if not len(ends) or (np.diff(ends) <= 0).any():
        raise DataError(f"edges={shown(tuple(ends.tolist()))} must increase, one at least: sort them, each once")
    place = np.searchsorted(ends, time)
    inside = place < len(ends)
    middle = (np.concatenate([[0.0], ends])[:-1] + ends) / 2
    late = ~came & inside & (time >= middle[np.minimum(place, len(ends) - 1)])
    return (2 * (place + late) + (came & inside)).astype(np.int32)


def check_outcome(outcome: str, classes: int) -> None:
    """Refuses an outcome that there is none of, or one that lacks its number of classes.

    `outcome`: a kind. `classes`: how many classes, levels, intervals or labels there are.
    """
    if outcome not in OUTCOMES:
        meant = {
            **{entry.model: name for name, entry in OUTCOMES.items()},
            **MEANT,
            **{name: name for name in OUTCOMES},
        }
        near = difflib.get_close_matches(str(outcome), meant, 1, 0.0)
        raise DataError(
            f"outcome={shown(outcome)} is not one of {', '.join(OUTCOMES)}; did you mean {meant[near[0]]!r}?"
        )
    what, least = {
        "classes": ("classes", 2),
        "ordinal": ("levels", 2),
        "survival": ("intervals", 1),
        "labels": ("labels", 1),
    }.get(outcome, ("", 0))
    if limits.checked("classes", classes) < least:
        raise DataError(
            f"classes={classes}: with outcome={outcome!r} it says how many {what} there are, {least} or more: give it"
        )


def as_integers(outcome: str, y: np.ndarray) -> np.ndarray:
    """Targets that count something as integers, where they are whole numbers in floats (as files often have them).

    `outcome`: a kind. `y`: the targets.
    """
    return y.astype(np.int64) if outcome in NUMBERED and y.dtype.kind == "f" and (y == np.rint(y)).all() else y


def misfits(outcome: str, classes: int, y: np.ndarray) -> np.ndarray:
    """The targets that an outcome has no meaning for; none, as a rule, and then only their range was looked at.

    `outcome`, `classes`: as of a federation. `y`: targets, in any shape.
    """
    low, high = _range(outcome, classes)
    whole = outcome not in ("number", "count") and y.dtype.kind == "f"
    if outcome == "number" or not y.size or (not whole and y.min() >= low and y.max() <= high):
        return y[:0].ravel()
    fits = (y >= low) & (y <= high)
    return y[~(fits & (y == np.rint(y)) if whole else fits)]


def unfit(outcome: str, classes: int, value: float) -> DataError:
    """The error that says what targets of an outcome are, and how to make them so.

    `outcome`, `classes`: as of a federation. `value`: a target that does not fit.
    """
    low, high = _range(outcome, classes)
    span = {"binary": "0 and 1", "labels": "0 and 1", "count": "0 or more"}.get(
        outcome, f"whole numbers from {low:g} to {high:g}"
    )
    remedy = {
        "binary": "give (y > 0) for labels -1 and 1, (y == 2) for 1 and 2; for numbers, outcome='number'",
        "labels": "give (y > 0), one column of 0 and 1 for each label",
        "count": "correct such rows, or use outcome='number'",
        "survival": "make them with courses(time, event, edges), with one class for each edge",
    }.get(outcome, "number them from 0, as np.unique(y, return_inverse=True)[1] does, or give a larger classes=")
    kind = "classes" if outcome == "classes" else f"{outcome} targets"
    of = "" if outcome in ("binary", "count", "labels") else f" (classes={classes})"
    return DataError(f"{kind} are {span}{of}, and there is {value:g}: {remedy}")


def _range(outcome: str, classes: int) -> tuple[float, float]:
    """The smallest and the largest target that means something."""
    most = {"binary": 1, "labels": 1, "classes": classes - 1, "ordinal": classes - 1, "survival": 2 * classes}
    return (-np.inf if outcome == "number" else 0, most.get(outcome, np.inf))
