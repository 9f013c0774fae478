"""What a trained figure is worth. Needs jax and numpy only, so that it can be asked on a machine with nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kinfolk.engines.loop import Sweep


def scores(figure: Sweep, states: Any, outcome: str) -> np.ndarray:
    """Of every point and seed: pooled squared error of regression, else mean accuracy over clients."""
    errors = figure.errors(states)["error"]
    if outcome == "number":
        return np.asarray(figure.pooled(errors))
    return 1 - np.asarray(errors).mean(axis=2)


def point(x: float, values: np.ndarray) -> tuple[float, float, float]:
    """Mean and standard error over seeds."""
    spread = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    return (float(x), round(float(values.mean()), 6), round(spread, 6))
