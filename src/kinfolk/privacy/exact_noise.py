"""The integers that a release run hands to its mechanisms on a tape, and how many units fit into an exact sum."""

from __future__ import annotations

import numpy as np

from kinfolk.privacy.choice import PROPOSALS, SCORE_STEPS, TRIALS, Chooser, ExactMin, NoisyMin
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.exact_samplers import (
    LAPLACE,
    LARGEST,
    NORMAL,
    geometric,
    rounded_laplace,
    rounded_normal,
    uniform,
)
from kinfolk.privacy.gates import CHOICE
from kinfolk.privacy.mechanisms import ExactSum, Mechanism
from kinfolk.privacy.release import PrivacyError

MOST_UNITS = 2**31 // (2 * GRID_STEPS)
"""Units that one exact sum can hold: half the integers are left to the noise."""


def width(kind: str, scalars: int) -> int:
    """How many integers one release of this kind takes."""
    return 2 * TRIALS if kind == CHOICE else scalars


def integers(mechanism: Mechanism | Chooser, noise_multipliers: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Fresh integers for releases of a mechanism; `noise_multipliers` are broadcast to `shape`."""
    if isinstance(mechanism, NoisyMin):
        half = (*shape[:-1], TRIALS)
        thresholds = geometric(SCORE_STEPS * noise_multipliers, half)
        return np.concatenate([uniform(PROPOSALS, half), thresholds], axis=-1)
    if not isinstance(mechanism, ExactMin) and mechanism.excess != 1:
        raise PrivacyError("noise in shares is drawn by the clients, not here: give a seed to simulate")
    law = rounded_laplace if mechanism.law == "laplace" else rounded_normal
    return law(GRID_STEPS * noise_multipliers, shape)


def check_grid(mechanism: Mechanism | Chooser, units: int) -> None:
    """Refuses a sum over more units, or with more noise, than fits into 32 bits."""
    if isinstance(mechanism, ExactSum | ExactMin):
        return
    if isinstance(mechanism, NoisyMin):
        most, remedy = 2**30 // SCORE_STEPS, "a choice looks at all of a client's examples: use fewer"
        steps, law, budget = SCORE_STEPS, LAPLACE, "choice_epsilon"
    else:
        units, most = min(units, mechanism.sampling.capacity or units), MOST_UNITS
        remedy = "use smaller samples"
        steps, law, budget = GRID_STEPS, LAPLACE if mechanism.law == "laplace" else NORMAL, "epsilon"
    noise = max(cost.noise_multiplier for cost in mechanism.costs())
    if noise * steps * law.reach > LARGEST:
        raise PrivacyError(f"noise_multiplier={noise:g} does not fit into exact noise: use a larger {budget}")
    if units > most:
        raise PrivacyError(f"a release sums up to {units} units exactly, and at most {most} fit: {remedy}")
