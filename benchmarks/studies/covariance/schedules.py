"""How a budget is divided over rounds, and what the paper's composition leaves to each, for comparison.

Gaussian releases with noise multipliers z_t cost what one with `1/z^2 = sum 1/z_t^2` costs, so a budget is divided by
shares of that sum: `z_t = z / sqrt(share_t)`.

>>> [round(float(share), 3) for share in shares("growing", 3, power=1.0)]
[0.071, 0.286, 0.643]
"""

from __future__ import annotations

import numpy as np

from kinfolk.theory.covariance_noise import published_epsilon

RULES = ("equal", "growing", "geometric")


def shares(rule: str, rounds: int, *, power: float = 0.0, ratio: float = 1.0) -> np.ndarray:
    """Each round's share of `sum 1/z_t^2`.

    `growing`: 1/z_t grows like t^power (the paper: 0, or 2/5 when accelerated, for convex losses). `geometric`: like
    ratio^-t (the paper, for strongly convex losses: ratio = (1 - mu/L)^(2/5), or (1 - sqrt(mu/L))^(1/5) accelerated;
    `kinfolk.theory.covariance_rates.best_ratio`).
    """
    if rule not in RULES:
        raise ValueError(f"rule={rule!r} is not one of {RULES}")
    number = np.arange(1, rounds + 1, dtype=float)
    inverse = {"equal": np.ones(rounds), "growing": number**power, "geometric": ratio**-number}[rule]
    return inverse**2 / (inverse**2).sum()


def noise_multipliers(whole: float, share: np.ndarray) -> np.ndarray:
    """Each round's noise multiplier, where one release with the whole budget would need `whole`."""
    return whole / np.sqrt(share)


def published_per_round(epsilon: float, delta: float, weights: np.ndarray) -> np.ndarray:
    """Per-round epsilons in proportion to `weights` whose published composition is `epsilon`."""
    low, high = 0.0, epsilon / float(np.sum(weights))
    while published_epsilon(high * weights, delta) < epsilon:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if published_epsilon(middle * weights, delta) <= epsilon else (low, middle)
    return low * weights
