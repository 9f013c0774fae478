"""Intervals for metrics of a noisy table: of what they would be among all people like these, not only these.

The table is drawn again many times, with other units and other noise. What that moves a metric by on average is taken
off (noise bends some of them), its spread and what is not known inside of bins make the interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kinfolk.metrics.noisy_table import NoisyTable
from kinfolk.metrics.scores import GUESSES, Measure

TIMES = 300
"""How often a table is drawn again."""
WIDE = 2.2
"""Standard deviations on each side: 1.96, and a little more as the spread is itself estimated."""
DOUBT = 1.0
"""How much of the largest difference between guesses of what is inside bins counts as a standard deviation."""


@dataclass(frozen=True)
class Measured:
    """A metric with its 95 % interval."""

    name: str
    value: float
    low: float
    high: float


BOUNDS = {
    "AUC": (0.0, 1.0),
    "accuracy": (0.0, 1.0),
    "Brier score": (0.0, 1.0),
    "sensitivity": (0.0, 1.0),
    "specificity": (0.0, 1.0),
    "MAE": (0.0, np.inf),
    "RMSE": (0.0, np.inf),
    "concordance (C-index)": (0.0, 1.0),
}


def measured(table: NoisyTable, measures: Mapping[str, Measure]) -> list[Measured]:
    """Every metric of the table, with an interval that has noise, sampling and what binning hides in it."""
    here, again = table.plausible()[None], table.again(np.random.default_rng(0), TIMES)
    return [_one(name, measure, here, again) for name, measure in measures.items()]


def _one(name: str, measure: Measure, here: np.ndarray, again: np.ndarray) -> Measured:
    value, *others = (float(measure(here, guess)[0]) for guess in GUESSES)
    drawn = measure(again, GUESSES[0])
    centre, spread = float(np.median(drawn)), float(drawn.std())
    hidden = DOUBT * max(abs(value - other) for other in others)
    better = value + np.clip(value - centre, -spread, spread)
    half = WIDE * np.hypot(spread, hidden)
    lowest, highest = BOUNDS.get(
        name, (0.0, 1.0) if name.startswith(("found of", "share of", "came out")) else (-np.inf, np.inf)
    )
    low, middle, high = np.clip([better - half, better, better + half], lowest, highest).tolist()
    return Measured(name, middle, low, high)
