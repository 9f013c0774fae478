"""Noise and clip that change from round to round, as a privacy level plans it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from kinfolk.accounting.composition import BudgetError
from kinfolk.limits import LARGEST_CLIP, LARGEST_NOISE_MULTIPLIER, SMALLEST_CLIP
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.privacy.noise_shares import LEAST_SHARE, NoiseShares


def factors_of(level: PrivacyLevel, rounds: int, planned: Sequence[float] = ()) -> tuple[np.ndarray, np.ndarray]:
    """What noise and clip are multiplied by in each round, from the level's schedule and what the method has planned.

    `planned`: for at least so many rounds; empty: the same noise in all.
    """
    number = np.arange(rounds)
    noise = (number + 1.0) ** -level.noise_power * level.noise_factor**number
    if planned:
        noise = noise * np.asarray(planned[:rounds])
    clips = level.clip * level.clip_factor**number
    if not (clips.min() >= SMALLEST_CLIP and clips.max() <= LARGEST_CLIP):
        raise BudgetError(
            f"clip_factor={level.clip_factor} takes the clip norm from {level.clip:g} to {clips[-1]:.2g} over {rounds} "
            f"rounds; it must stay between {SMALLEST_CLIP:g} and {LARGEST_CLIP:g}: use a factor nearer to 1"
        )
    return noise.astype(np.float32), (level.clip_factor**number).astype(np.float32)


def check_noise(noise: ArrayLike, factors: np.ndarray) -> None:
    """Refuses a schedule that at its ends is no noise, or more than a release can draw."""
    least, most = float(np.min(noise) * factors.min()), float(np.max(noise) * factors.max())
    if not 1e-3 <= least <= most <= LARGEST_NOISE_MULTIPLIER:
        raise BudgetError(
            f"noise multipliers would run from {least:.3g} to {most:.3g} over the rounds, and must stay between 0.001 "
            f"and {LARGEST_NOISE_MULTIPLIER:g}: use a noise_power nearer to 0, or a noise_factor nearer to 1"
        )


def check_share(shares: NoiseShares, noise: float) -> None:
    """Refuses noise whose shares are too narrow for the law that is accounted for."""
    narrowest = shares.share(noise * GRID_STEPS)
    if narrowest < LEAST_SHARE:
        raise BudgetError(
            f"noise_multiplier={noise:.3g} in {shares.honest} shares is {narrowest:.3g} grid steps for each, and "
            f"{LEAST_SHARE:g} are needed: use a smaller epsilon, or fewer survivors"
        )


def grouped(factors: np.ndarray, uses: np.ndarray) -> tuple[tuple[float, int], ...]:
    """How many uses there are at each factor; empty when there is only the factor 1."""
    found = {float(f): int(uses[factors == f].sum()) for f in np.unique(factors)}
    return tuple((f, u) for f, u in found.items() if u) if set(found) != {1.0} else ()
