"""How far predictions have to reach to hold with a chosen chance: quantiles of what they missed on rows kept for it.

A new row that is exchangeable with the rows of calibration has at most the quantile's score with the chance that was
asked for. From a noisy table of scores the same holds with the smallest public edge below which enough rows lie even if
noise was kind: what noise may add, with a chance `beta`, is asked for on top, and `beta` is taken from the chance to
miss.

>>> quantile(np.arange(1.0, 20.0), 0.1), quantile(np.arange(1.0, 9.0), 0.1)
(18.0, inf)
"""

from __future__ import annotations

import math

import numpy as np

NUMBERS = (0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.125, 0.15, 0.18, 0.215, 0.255, 0.3, 0.36, 0.45, 0.6)
"""Edges of what predictions of numbers miss, of the target's declared range."""
LABELS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""Edges of one minus the chance that a model gives to the right label."""
BETA = 0.1
"""How much of the chance to miss is left to the noise."""


def quantile(scores: np.ndarray, miss: float) -> float:
    """The score that a new one is above with a chance of at most `miss`; infinite where there are too few to tell.

    `scores`: of rows that were not trained on.
    """
    rank = math.ceil((1 - miss) * (len(scores) + 1) - 1e-9)
    return math.inf if rank > len(scores) else float(np.sort(scores)[rank - 1])


def noise_bound(scale: float, draws: int, beta: float) -> float:
    """What the sum of `draws` Laplace variables of this `scale` is above with a chance of at most `beta` (Chernoff)."""
    if not scale or not draws:
        return 0.0
    at = np.linspace(0.002, 0.998, 499) / scale
    return float(((math.log(1 / beta) - draws * np.log1p(-((at * scale) ** 2))) / at).min())


def enough(units: int, edges: int, *, scale: float, miss: float) -> bool:
    """Whether so many rows of one client may be expected to tell, by public numbers alone.

    `units`: rows that are counted. `edges`: of the table. `scale`: of the noise. `miss`: the chance to miss.

    >>> enough(50, 16, scale=1.0, miss=0.1), enough(500, 16, scale=1.0, miss=0.1)
    (False, True)
    """
    spare = BETA * miss
    return (1 - miss + spare) * (units + 1) + 2 * noise_bound(scale, 4, spare / edges) <= units


def private_quantile(
    cells: np.ndarray, edges: np.ndarray, units: int, *, scale: float, parties: int, miss: float
) -> float:
    """The smallest edge that a new score is above with a chance of at most `miss`; infinite where none is known to be.

    `cells`: noisy counts of scores up to each of the `edges`, and beyond the last. `units`: how many were counted;
    public. `scale`: of each party's Laplace noise in a cell. `parties`: how many tables were added up.
    """
    spare = BETA * miss
    for place, edge in enumerate(edges):
        below, beyond = cells[: place + 1], cells[place + 1 :]
        counted = below.sum() if len(below) <= len(beyond) else units - beyond.sum()
        draws = parties * min(len(below), len(beyond))
        if counted >= (1 - miss + spare) * (units + 1) + noise_bound(scale, draws, spare / len(edges)):
            return float(edge)
    return math.inf
