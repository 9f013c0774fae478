"""The honest cost of tuning: what it costs to train several times and keep the best (Papernot and Steinke, 2022).

The number of trials is drawn beforehand from a declared distribution and stays hidden; only the winner leaves. One
trial, its score included, costs `curve(a)` at Renyi order a. `shape` is -1 < eta < infinity for the truncated negative
binomial (0 logarithmic, 1 geometric), infinity for Poisson. `accounting/composition.py` computes the same with
dp_accounting for what a command charges; these functions are for planning, pictures and as a second opinion.

>>> curve = gaussian_curve(noise_multiplier=2.0)
>>> epsilon(curve, 1e-5) < epsilon(selected(curve, mean=10, shape=1), 1e-5)
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize

from kinfolk.limits import Limit, above
from kinfolk.roots import root
from kinfolk.theory.ranges import CHANCE, COUNT, NOT_NEGATIVE, POSITIVE, require

Curve = Callable[[float], float]
"""Renyi divergence as a function of the order."""

Orders = Sequence[float] | None
"""Orders to choose from; None for all above 1. dp_accounting has a coarse list, which costs up to 3 % of noise."""

POISSON = math.inf
LARGEST_ORDER = 1e6
SHAPE = Limit(-1, above=True, infinite=True, remedy="0 is logarithmic, 1 geometric, infinity Poisson")
SMALLEST_NOISE, LARGEST_NOISE = 1e-2, 1e5
"""Between them `noise_for` looks."""


def gaussian_curve(noise_multiplier: float, uses: int = 1) -> Curve:
    """Gaussian noise without sampling: `uses * a / (2 z^2)`."""
    require(POSITIVE, noise_multiplier=noise_multiplier)
    require(COUNT, uses=uses)
    return lambda order: uses * order / (2 * noise_multiplier**2)


def mean_trials(gamma: float, shape: float) -> float:
    """Expected number of trials of the truncated negative binomial distribution with parameters (eta, gamma)."""
    require(CHANCE, gamma=gamma)
    require(above(-1, remedy="0 is logarithmic, 1 geometric"), shape=shape)
    if shape == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return shape * (1 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))


@lru_cache
def gamma_for(mean: float, shape: float) -> float:
    """The gamma that gives this expected number of trials."""
    require(above(1, remedy="of one trial there is nothing to choose from"), mean=mean)
    require(above(-1, remedy="0 is logarithmic, 1 geometric"), shape=shape)
    return math.exp(root(lambda x: math.log(mean_trials(math.exp(x), shape) / mean), -60.0, -1e-12, 1e-14))


def selected(curve: Curve, *, mean: float, shape: float, orders: Orders = None) -> Curve:
    """The curve of the best of a random number of trials.

    Truncated negative binomial (their theorem 2): `r(a) + (1 + eta) min_b ((1 - 1/b) r(b) + log(1/gamma) / b)
    + log(mean) / (a - 1)`. Poisson (theorem 6): `r(a) + mean * delta + log(mean) / (a - 1)`, delta the trial's at
    epsilon `log(1 + 1/(a - 1))`.
    """
    require(POSITIVE, mean=mean)
    require(SHAPE, shape=shape)
    if shape == POISSON:
        return lambda a: curve(a) + mean * delta(curve, math.log1p(1 / (a - 1)), orders) + math.log(mean) / (a - 1)
    spent = math.log(1 / gamma_for(mean, shape))
    penalty = (1 + shape) * _least(lambda b: (1 - 1 / b) * curve(b) + spent / b, orders)
    return lambda a: curve(a) + penalty + math.log(mean) / (a - 1)


def epsilon(curve: Curve, delta: float, orders: Orders = None) -> float:
    """Epsilon at delta, by the best order (the conversion of Canonne, Kamath and Steinke)."""
    require(CHANCE, delta=delta)

    def at(order: float) -> float:
        return curve(order) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    return max(0.0, _least(at, orders))


def printed_epsilon(curve: Curve, delta: float, orders: Orders = None) -> float:
    """Epsilon at delta as lemma 4 of Hu, Wu and Smith has it: `curve(a) + log(1/delta) / (a - 1)` at the best order a.

    Never below `epsilon`.
    """
    require(CHANCE, delta=delta)
    return max(0.0, _least(lambda order: curve(order) - math.log(delta) / (order - 1), orders))


def delta(curve: Curve, epsilon: float, orders: Orders = None) -> float:
    """Delta at epsilon, by the best order."""
    require(NOT_NEGATIVE, epsilon=epsilon)

    def at(order: float) -> float:
        return (order - 1) * (curve(order) - epsilon + math.log1p(-1 / order)) - math.log(order)

    return math.exp(min(0.0, _least(at, orders)))


def _least(function: Callable[[float], float], orders: Orders = None) -> float:
    """The smallest value over the given orders, or over all above 1: a grid, then a search around its best point."""
    if orders is not None:
        return min(function(order) for order in orders)
    grid = np.linspace(math.log(1e-3), math.log(LARGEST_ORDER), 100)
    values = [function(1 + math.exp(x)) for x in grid]
    best = int(np.argmin(values))
    low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    found: Any = optimize.minimize_scalar(
        lambda x: function(1 + math.exp(x)), bounds=(low, high), method="bounded", options={"xatol": 1e-6}
    )
    return min(values[best], float(found.fun))


def noise_for(
    budget: float, at_delta: float, *, mean: float | None = None, shape: float = 0.0, orders: Orders = None
) -> float:
    """The noise multiplier of one Gaussian release under a budget; with `mean`, of the best of so many on average."""
    require(POSITIVE, budget=budget)
    require(CHANCE, at_delta=at_delta)

    def excess(log_z: float) -> float:
        curve = gaussian_curve(math.exp(log_z))
        whole = curve if mean is None else selected(curve, mean=mean, shape=shape, orders=orders)
        return epsilon(whole, at_delta, orders) - budget

    low, high = math.log(SMALLEST_NOISE), math.log(LARGEST_NOISE)
    if excess(low) < 0 or excess(high) > 0:
        raise ValueError(
            f"budget={budget} at at_delta={at_delta}: no noise multiplier between {SMALLEST_NOISE:g} and "
            f"{LARGEST_NOISE:g} meets it exactly: choose a budget between 0.001 and 1000"
        )
    return math.exp(root(excess, low, high, 1e-8))


def draw_trials(generator: np.random.Generator, *, mean: float, shape: float) -> int:
    """A number of trials, drawn before anything is trained. Poisson may give 0: then nothing is trained or released.

    The truncated negative binomial by walking its distribution: `P(k) / P(k-1) = (1 - gamma) (k - 1 + eta) / k`.
    """
    require(POSITIVE, mean=mean)
    require(SHAPE, shape=shape)
    if shape == POISSON:
        return int(generator.poisson(mean))
    gamma, left = gamma_for(mean, shape), generator.random()
    if shape == 0:
        chance = (1 - gamma) / math.log(1 / gamma)
    else:
        chance = shape * (1 - gamma) / math.expm1(-shape * math.log(gamma))
    count = 1
    while left >= chance and count < 10**7:
        left -= chance
        count += 1
        chance *= (1 - gamma) * (count - 1 + shape) / count
    return count
