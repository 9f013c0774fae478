"""Metrics of a predicted number, from a soft histogram of what predictions miss; and of labels, from a confusion table.

A miss lies between two nodes and counts for both, by how near it is: sums of anything that is straight between nodes,
such as the absolute value, are then exact.
"""

from __future__ import annotations

import numpy as np

from kinfolk.metrics.scores import Guess, Measure

NODES = (0.0, 0.025, 0.07, 0.14, 0.25, 0.5, 1.0)
"""Of the range of the target; both signs."""


def nodes(width: float) -> np.ndarray:
    """Where the nodes of a histogram of misses lie, for a target whose declared range is `width`."""
    right = width * np.asarray(NODES)
    return np.concatenate([-right[:0:-1], right])


def mean_absolute(tables: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The mean absolute error of tables (tables, nodes) with nodes `at`."""
    return _shares(tables) @ np.abs(at)


def bias(tables: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The mean of outcome minus prediction."""
    return _shares(tables) @ at


def root_mean_square(tables: np.ndarray, at: np.ndarray, within: bool = True) -> np.ndarray:
    """The root of the mean squared error.

    `within`: without what the straight lines between nodes add, if misses are even inside.
    """
    shares, gaps = _shares(tables), np.diff(at)
    square = shares @ at**2
    if within:
        sides = np.concatenate([[0.0], gaps]) + np.concatenate([gaps, [0.0]])
        inside = shares[:, :-1] * gaps / sides[:-1] + shares[:, 1:] * gaps / sides[1:]
        square = square - inside @ gaps**2 / 6
    return np.sqrt(np.maximum(square, 0))


def measures_of_numbers(at: np.ndarray, factor: float) -> dict[str, Measure]:
    """The metrics of a histogram of misses with nodes `at`, by name; `factor` turns them into the target's own unit."""
    return {
        "MAE": lambda tables, _: factor * mean_absolute(tables, at),
        "RMSE": lambda tables, guess: factor * root_mean_square(tables, at, guess.smooth),
        "mean of outcome minus prediction": lambda tables, _: factor * bias(tables, at),
    }


def measures_of_labels(labels: tuple[str, ...]) -> dict[str, Measure]:
    """The metrics of a confusion table (outcome, prediction), by name."""

    def recall(place: int) -> Measure:
        return lambda tables, _: tables[:, place, place] / np.maximum(tables[:, place].sum(axis=1), 1e-9)

    def right(tables: np.ndarray, _: Guess) -> np.ndarray:
        return np.trace(tables, axis1=1, axis2=2) / np.maximum(tables.sum(axis=(1, 2)), 1e-9)

    return {"accuracy": right} | {f"found of {label}": recall(place) for place, label in enumerate(labels)}


def measures_of_pairs(labels: int) -> list[Measure]:
    """The shares of all in each cell of a confusion table (outcome, prediction), row by row."""

    def share(outcome: int, guess: int) -> Measure:
        return lambda tables, _: tables[:, outcome, guess] / np.maximum(tables.sum(axis=(1, 2)), 1e-9)

    return [share(outcome, guess) for outcome in range(labels) for guess in range(labels)]


def measures_of_right() -> dict[str, Measure]:
    """The metrics of a table (outcome, wrong or right), for many labels."""
    return {"accuracy": lambda tables, _: tables[:, :, 1].sum(axis=1) / np.maximum(tables.sum(axis=(1, 2)), 1e-9)}


def _shares(tables: np.ndarray) -> np.ndarray:
    return tables / np.maximum(tables.sum(axis=1, keepdims=True), 1e-9)
