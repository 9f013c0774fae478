"""Metrics of scores for a yes-or-no outcome, from a table of score bin and outcome.

Inside a bin nothing is known, so each outcome's scores are spread along a smooth rising curve through the counts
(monotone cubic), and the outermost bins reach as far as their neighbours let expect. Other guesses (straight lines,
shorter and longer ends) show how much that matters, and belong to the uncertainty.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import expit, ndtr, ndtri

STEPS = 10
"""Parts of a bin along which curves are followed."""
SPREAD, NARROW = 0.75, 0.35
STEEPEST = 6.0
"""Standard deviations of normal curves in the narrowest bin, at most: what is narrower no table tells."""
TAIL, FEWEST = 0.02, 4.0
"""A share, and a number, that must be on both sides of an edge for normal curves to be fitted there."""


def edges(bins: int, centre: float = 0.0) -> np.ndarray:
    """Where bins of scores (log odds) end: narrow about a public centre, wider outwards; 0, where yes begins, is one.

    `bins`: how many. `centre`: the score of an ordinary example, from what is public.
    """
    steps = np.arange(1, bins) - bins / 2
    found = centre + NARROW * np.sinh(SPREAD * steps) / np.sinh(SPREAD)
    found[np.abs(found).argmin()] = 0.0
    return np.sort(found)


def bins_for(units: float, epsilon: float) -> int:
    """How many bins a table has, from public numbers: more noise, fewer bins.

    `units`: that are counted. `epsilon`: of the release, divided by the root of the number of parties.

    >>> bins_for(1000, 0.5), bins_for(100_000, 1)
    (8, 16)
    """
    reach = units * epsilon
    return 6 if reach < 150 else 8 if reach < 1500 else 10 if reach < 10_000 else 16


@dataclass(frozen=True)
class Curves:
    """How many of each outcome have scores up to each of some points: axes (points, tables, outcomes)."""

    points: np.ndarray
    below: np.ndarray

    @property
    def between(self) -> np.ndarray:
        """How many lie between one point and the next."""
        return np.diff(self.below, axis=0)

    @property
    def middles(self) -> np.ndarray:
        """Scores half-way between points."""
        return (self.points[1:] + self.points[:-1]) / 2


@dataclass(frozen=True)
class Guess:
    """What is supposed of scores inside bins, where the table does not tell."""

    smooth: bool = True
    """They lie along a monotone cubic; else evenly."""
    normal: bool = False
    """They are normal, equally wide for each outcome: what a cubic cannot see where nearly all are in a bin or two,
    and a count of noise in a far bin bends most."""
    ends: float = 2.0
    """How wide the outermost bins are, in widths of their neighbours."""
    within: float = 1 / 3
    """How much better than by chance events of the same interval of time are ordered, against those of different ones:
    0 if intervals are very short."""


GUESSES = (
    Guess(),
    Guess(smooth=False),
    Guess(ends=1.0),
    Guess(ends=4.0),
    Guess(normal=True, ends=4.0),
    Guess(within=0.0),
    Guess(within=2 / 3),
)
"""The one that is used, and others."""


def curves(tables: np.ndarray, ends: np.ndarray, guess: Guess) -> Curves:
    """The curves of tables (tables, bins, outcomes) whose bins end at `ends`.

    `guess`: of what is inside of bins.
    """
    widths = guess.ends * np.diff(ends)
    knots = np.concatenate([[ends[0] - widths[0]], ends, [ends[-1] + widths[-1]]])
    counted = np.cumsum(np.moveaxis(tables, 1, 0), axis=0)
    counted = np.concatenate([np.zeros_like(counted[:1]), counted])
    parts = [np.linspace(low, high, STEPS, endpoint=False) for low, high in itertools.pairwise(knots)]
    points = np.concatenate([*parts, knots[-1:]])
    if guess.normal:
        return Curves(points, _normals(points, ends, counted[1:]))
    if guess.smooth:
        return Curves(points, PchipInterpolator(knots, counted, axis=0)(points))
    place = np.searchsorted(knots, points, side="right").clip(1, len(knots) - 1)
    share = ((points - knots[place - 1]) / (knots[place] - knots[place - 1]))[:, None, None]
    return Curves(points, counted[place - 1] + share * (counted[place] - counted[place - 1]))


def _normals(points: np.ndarray, edges: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Counts up to each point along normal curves: probits of shares below edges, on lines with one slope for all.

    `counted`: up to each edge, and in all. Only edges with enough on both sides count, as beyond them is mostly noise;
    where that leaves nothing to tell how wide the curves are, they are as narrow as STEEPEST.
    """
    total = np.maximum(counted[-1], 1e-9)
    share, at = counted[:-1] / total, edges[:, None, None]
    known = np.minimum(share, 1 - share) > TAIL + FEWEST / total
    probit = ndtri(np.clip(share, 1e-6, 1 - 1e-6))
    weight = np.where(known, total * np.exp(-(probit**2)) / np.maximum(share * (1 - share), 1e-9), 1e-9)
    mean_at, mean = ((weight * part).sum(axis=0) / weight.sum(axis=0) for part in (at, probit))
    off, steepest = at - mean_at, STEEPEST / np.diff(edges).min()
    spread = (weight * off**2).sum(axis=(0, 2))
    found = (weight * off * (probit - mean)).sum(axis=(0, 2)) / np.maximum(spread, 1e-12)
    several = (known.sum(axis=0) > 1).any(axis=-1)
    steep = np.where(several, np.clip(found, 0.05, steepest), steepest)[:, None]
    below = total * ndtr(mean + steep * (points[:, None, None] - mean_at))
    below[0], below[-1] = 0.0, total  # what is further out is at the ends
    return below


def auc(found: Curves) -> np.ndarray:
    """The chance that somebody with the outcome has the higher score than somebody without; 0.5 where all are alike."""
    below = (found.below[1:, :, 0] + found.below[:-1, :, 0]) / 2
    pairs = found.below[-1].prod(axis=-1)
    return np.where(pairs > 1e-9, (below * found.between[..., 1]).sum(axis=0) / np.maximum(pairs, 1e-9), 0.5)


def brier(found: Curves) -> np.ndarray:
    """The mean squared difference between the predicted chance and what came out."""
    chance = expit(found.middles)[:, None]
    total = (found.between[..., 1] * (1 - chance) ** 2 + found.between[..., 0] * chance**2).sum(axis=0)
    return total / np.maximum(found.below[-1].sum(axis=-1), 1e-9)


def calibration(found: Curves) -> tuple[np.ndarray, np.ndarray]:
    """Slope and intercept of the outcome's log odds on the score: 1 and 0 where chances are right."""
    score, yes = found.middles[:, None], found.between[..., 1]
    both = found.between.sum(axis=-1)
    total = np.maximum(both.sum(axis=0), 1e-9)
    slope, intercept = np.ones(both.shape[1]), np.zeros(both.shape[1])
    for _ in range(12):
        chance = expit(intercept + slope * score)
        weight, miss = both * chance * (1 - chance), yes - both * chance
        a, b, c = weight.sum(0), (weight * score).sum(0), (weight * score**2).sum(0)
        a, c = a + 1e-5 * total, c + 1e-5 * total
        first, second = miss.sum(0) - 1e-5 * total * intercept, (miss * score).sum(0) - 1e-5 * total * (slope - 1)
        size = a * c - b * b
        intercept = intercept + np.clip((c * first - b * second) / size, -2, 2)
        slope = slope + np.clip((a * second - b * first) / size, -2, 2)
    return slope, intercept


def accuracy(tables: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The share whose more likely outcome came out."""
    is_yes = np.concatenate([[-np.inf], ends]) >= 0
    right = tables[:, is_yes, 1].sum(axis=1) + tables[:, ~is_yes, 0].sum(axis=1)
    return right / np.maximum(tables.sum(axis=(1, 2)), 1e-9)


def confusion(tables: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Shares of all, axes (tables, what came out, what was predicted)."""
    is_yes = np.concatenate([[-np.inf], ends]) >= 0
    each = np.stack([tables[:, ~is_yes].sum(axis=1), tables[:, is_yes].sum(axis=1)], axis=-1)
    return each / np.maximum(each.sum(axis=(1, 2), keepdims=True), 1e-9)


Measure = Callable[[np.ndarray, Guess], np.ndarray]
"""From tables, and a guess of what is inside of bins, to a metric of each."""


def measures(ends: np.ndarray) -> dict[str, Measure]:
    """The metrics of a table of scores whose bins end at `ends`, by name."""
    return {
        "AUC": lambda tables, guess: auc(curves(tables, ends, guess)),
        "accuracy": lambda tables, _: accuracy(tables, ends),
        "Brier score": lambda tables, guess: brier(curves(tables, ends, guess)),
        "calibration slope": lambda tables, guess: calibration(curves(tables, ends, guess))[0],
        "calibration intercept": lambda tables, guess: calibration(curves(tables, ends, guess))[1],
        "sensitivity": lambda tables, _: _of_outcome(confusion(tables, ends), 1),
        "specificity": lambda tables, _: _of_outcome(confusion(tables, ends), 0),
    }


def measures_of_pairs(ends: np.ndarray) -> list[Measure]:
    """The shares of all in each cell of the confusion table (outcome, prediction), row by row."""

    def share(outcome: int, guess: int) -> Measure:
        return lambda tables, _: confusion(tables, ends)[:, outcome, guess]

    return [share(outcome, guess) for outcome in range(2) for guess in range(2)]


def _of_outcome(shares: np.ndarray, outcome: int) -> np.ndarray:
    return shares[:, outcome, outcome] / np.maximum(shares[:, outcome].sum(axis=1), 1e-9)
