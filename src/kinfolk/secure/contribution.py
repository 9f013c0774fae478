"""What a silo adds to a sum, before its masks: clipped, rounded to the grid, clipped again in integers, with its noise.

>>> bounded(np.array([60000, 60000])).tolist()
[46340, 46340]
"""

from __future__ import annotations

import math
import os

import numpy as np

from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.exact_samplers import Source, discrete_gaussian
from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure.agreement import Agreement
from kinfolk.secure.masks import RING


def on_grid(message: np.ndarray, clip: float) -> np.ndarray:
    """Whole steps of clip / GRID_STEPS. A message that is not finite counts as zero.

    `message`: numbers, or whole steps already. `clip`: the largest norm.
    """
    if np.issubdtype(message.dtype, np.integer):
        return message.astype(np.int64, copy=False)
    values = np.asarray(message, np.float64) / clip
    largest = np.abs(values).max(initial=0.0)
    if not np.isfinite(largest):
        return np.zeros(values.shape, np.int64)
    norm = largest * math.sqrt(float(np.square(values / largest).sum())) if largest > 0 else 0.0
    return np.rint(values * (GRID_STEPS / max(norm, 1.0))).astype(np.int64)


def bounded(steps: np.ndarray) -> np.ndarray:
    """The same with a norm of at most GRID_STEPS, in integers alone: rounding may have made it longer.

    `steps`: whole numbers.
    """
    steps = np.clip(steps, -GRID_STEPS, GRID_STEPS).astype(np.int64, copy=False)
    squared = int(np.dot(steps, steps))
    if squared <= GRID_STEPS**2:
        return steps
    norm = math.isqrt(squared - 1) + 1
    return np.sign(steps) * (np.abs(steps) * GRID_STEPS // norm)


def noisy(message: np.ndarray, terms: Agreement, source: Source = os.urandom) -> np.ndarray:
    """A silo's whole contribution modulo 2^32: its bounded message and its share of the noise.

    `message`: of `terms.length` numbers. `terms`: clip and noise. `source`: of random bytes.
    """
    if message.shape != (terms.length,):
        raise SecureError(f"a message of shape {message.shape} is not one vector of length={terms.length}")
    total = bounded(on_grid(message, terms.clip)) + discrete_gaussian(terms.share, terms.length, source)
    return total.astype(RING)


def as_numbers(total: np.ndarray, clip: float) -> np.ndarray:
    """A sum modulo 2^32 as numbers around 0.

    `total`: what was opened. `clip`: the norm that GRID_STEPS steps stand for.
    """
    return total.astype(np.uint32).view(np.int32).astype(np.float64) * (clip / GRID_STEPS)
