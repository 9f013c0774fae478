"""What a trained figure is worth. Needs jax and numpy only, so that it can be asked on a machine with nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from benchmarks.studies.reproduce.records import Point
from kinfolk.engines.loop import Sweep

MOST_SEEDS = 20
"""Of which a results file keeps what each gave."""


def scores(figure: Sweep, states: Any, outcome: str) -> np.ndarray:
    """Of every point and seed: pooled squared error of regression, else mean accuracy over clients."""
    errors = figure.errors(states)["error"]
    if outcome == "number":
        return np.asarray(figure.pooled(errors))
    return 1 - np.asarray(errors).mean(axis=2)


def followed(figure: Sweep, seeds: int, ends: Sequence[int], outcome: str) -> dict[str, list[list[float]]]:
    """Training loss and score of every seed after each of these rounds, for a figure of one point.

    `figure`: not begun. `ends`: rising. `outcome`: of the data.
    """
    training = replace(figure, tests=figure.clients.blocks)
    states, begin = figure.init(range(seeds)), 0
    found: dict[str, list[list[float]]] = {"losses": [], "scores": []}
    for end in ends:
        states = jax.block_until_ready(figure.rounds(states, begin, end))
        begin = end
        found["losses"].append(np.asarray(training.errors(states)["loss"]).mean(axis=2)[0].tolist())
        found["scores"].append(scores(figure, states, outcome)[0].tolist())
    return found


def machine() -> str:
    """What computes here, in words."""
    device = jax.devices()[0].device_kind
    return "two CPU cores" if device == "cpu" else device


def point(x: float, values: np.ndarray) -> Point:
    """Mean and standard error over seeds, and what each gave, where these are a few."""
    spread = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    each = tuple(round(float(value), 6) for value in values) if len(values) <= MOST_SEEDS else ()
    return Point(float(x), round(float(values.mean()), 6), round(spread, 6), each)
