"""What a target is called and measured in, so that errors can be told in its own unit.

>>> Target("score", "points", low=1, high=70, scaled_low=0, scaled_high=1).factor
69.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.data.given_rows import DataError


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

    `time`: one per row, 0 or more. `event`: whether the event came then. `edges`: where intervals end; public.

    >>> courses(np.array([1.0, 1.0, 1.7, 9.0]), np.array([True, False, False, True]), (1.0, 2.0, 4.0)).tolist()
    [1, 2, 4, 6]
    """
    time, came = np.asarray(time, float), np.asarray(event).astype(bool)
    if time.shape != came.shape or time.ndim != 1:
        raise DataError(f"time has shape {time.shape} and event {came.shape}: give one of each per row")
    if not np.isfinite(time).all() or (time < 0).any():
        raise DataError("time holds negative or missing values: leave such rows out")
    ends = np.asarray(edges, float)
    place = np.searchsorted(ends, time)
    inside = place < len(ends)
    middle = (np.concatenate([[0.0], ends])[:-1] + ends) / 2
    late = ~came & inside & (time >= middle[np.minimum(place, len(ends) - 1)])
    return (2 * (place + late) + (came & inside)).astype(np.int32)
