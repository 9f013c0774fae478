"""Settings of the iterative method for figures 4 and 7 of Liang et al., searched for at every place of theirs.

What suits one division of the budget, or 320 tasks, does not suit another: with settings of the one the other looks
worse than it is.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from benchmarks.studies.covariance import methods
from benchmarks.studies.covariance.data import (
    RESULTS,
    RIDGE,
    SEARCH_SEED,
    SEARCHED,
    delta_for,
    iterative,
    synthetic,
)
from kinfolk.verify.covariance_iterative import Iterative

EPSILON, ROUNDS, TASKS = 0.1, 10, 320
"""Of figure 4; epsilon is that of figure 7 too."""
POWERS = (-1.0, -0.5, 0.0, 0.4, 1.0, 2.0)
RATIOS = (-0.6, -0.3, -0.1, 0.0, 0.1, 0.3, 0.6)
"""Negative logarithms of Q."""
COUNTS = (20, 40, 80, 160, 320)
"""Of tasks, in figure 7."""
NOISES = ("gaussian", "wishart_as_published")
Kind = Literal["power", "ratio"]
PLACES: dict[Kind, tuple[float, ...]] = {"power": POWERS, "ratio": RATIOS}


def weights_of(kind: Kind, place: float) -> np.ndarray:
    """How the budget grows over the rounds."""
    turns = np.arange(1, ROUNDS + 1)
    return turns**place if kind == "power" else np.exp(place * turns)


def scheduled(kind: Kind, noise: str, *, accelerated: bool) -> Iterative:
    """The method of one curve of figure 4; of a ratio losses are strongly convex, by the ridge: constant momentum."""
    base = replace(iterative("low_rank", noise), accelerated=accelerated)
    return replace(base, condition=base.step_size * base.ridge) if kind == "ratio" else base


def schedule_key(kind: Kind, place: float, noise: str, *, accelerated: bool) -> str:
    """What a setting of figure 4 is kept under."""
    return f"{kind} {place:g}, {noise}, {'accelerated' if accelerated else 'plain'}"


def tasks_key(tasks: int, noise: str) -> str:
    """What a setting of figure 7 is kept under."""
    return f"{tasks} tasks, {noise}"


def search(repetitions: int) -> dict[str, Any]:
    """All settings, on repetitions that are used for nothing else."""
    del repetitions
    found: dict[str, Any] = {"seeds": list(range(SEARCH_SEED, SEARCH_SEED + SEARCHED))}
    trial = synthetic("low_rank", SEARCHED, SEARCH_SEED, TASKS)
    for kind, places in PLACES.items():
        for noise in NOISES:
            for accelerated in (False, True):
                base = scheduled(kind, noise, accelerated=accelerated)
                for place in places:
                    own = methods.search_iterative(
                        trial, base, EPSILON, delta_for(TASKS), RIDGE, (ROUNDS,), weights_of(kind, place)
                    )
                    found[schedule_key(kind, place, noise, accelerated=accelerated)] = own
    for tasks in COUNTS:
        trial = synthetic("low_rank", SEARCHED, SEARCH_SEED, tasks)
        for noise in NOISES:
            base = iterative("low_rank", noise)
            own = methods.search_iterative(trial, base, EPSILON, delta_for(tasks), RIDGE, (1, 3, 10, 30))
            found[tasks_key(tasks, noise)] = own
    return found


def settings_of(key: str) -> dict[str, float]:
    """What was found."""
    return json.loads((RESULTS / "by_figure.json").read_text())[key]
