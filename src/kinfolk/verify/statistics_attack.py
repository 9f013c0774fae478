"""An attack on statistics of rows: everything that a client of `few_releases` releases, at its own parts of the budget.

The client's rows are zeros but one, the canary, which lies far outside of all bounds. What others publish in between is
left out: it is computed from releases alone, and whole runs are too long to be played a hundred thousand times.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.noise_for_budget import Case, times
from kinfolk.accounting.noise_schedules import grouped
from kinfolk.algorithms.few_releases import FewReleases
from kinfolk.privacy import statistics
from kinfolk.privacy.mechanisms import Cost, GaussianSum
from kinfolk.privacy.release import new_meter
from kinfolk.privacy.statistics import (
    FeatureLook,
    FeatureSpread,
    FirstLook,
    Line,
    LogisticGradient,
    Losses,
    Query,
    Residuals,
    RowMoments,
)
from kinfolk.verify.attack import Problem

FEATURES, ROWS, FAR = 2, 4, 1e4
DELTA = 0.01


def queries(gradients: int) -> tuple[Query, ...]:
    """What a client is asked for, round by round; with so many gradients.

    `gradients`: how many.
    """
    one, few = jnp.float32(1), jnp.zeros(FEATURES, jnp.float32)
    line = Line(few, jnp.eye(FEATURES, dtype=jnp.float32), jnp.zeros(FEATURES + 1, jnp.float32), one, one)
    look = FirstLook(one, one, jnp.full(3, 1 / 3, jnp.float32), 5)
    gradient = Residuals(line, jnp.ones(2, jnp.float32), one, jnp.full(3, 1 / 3, jnp.float32))
    three = replace(line, weights=jnp.zeros((3, FEATURES + 1), jnp.float32))
    return look, RowMoments(few, one), *[gradient] * gradients, Losses(three, one)


def binary_queries() -> tuple[Query, ...]:
    """What a client of `few_releases_binary` is asked for: where features lie, their spread, and a gradient."""
    one, few = jnp.float32(1), jnp.zeros(FEATURES, jnp.float32)
    gradient = LogisticGradient(jnp.zeros(FEATURES + 1, jnp.float32), one)
    return FeatureLook(one, jnp.full(2, 1 / 2, jnp.float32)), FeatureSpread(few, one, one), gradient


def canary() -> tuple[tuple[Array, Array], Array]:
    """Rows, of which the first is the canary, and which are real with it."""
    x = jnp.zeros((ROWS, FEATURES), jnp.float32).at[0].set(FAR)
    return (x, jnp.zeros(ROWS, jnp.float32).at[0].set(FAR)), jnp.ones(ROWS, bool)


def row_statistics(epsilon: float = 2.0) -> Problem:
    """All releases of one client.

    `epsilon`: the budget that noise is calibrated to.
    """
    method = FewReleases(gradients=1)
    factors = np.asarray(method.noise_factors(method.rounds), np.float32)
    case = Case(epsilon, DELTA, method.rounds, factors=grouped(factors, np.ones(method.rounds, int)))
    (found,) = noise_for_budget.noise_multipliers([case])
    costs = [(Cost("gaussian", times(found, factor)), 1) for factor in factors]
    (units, mask), what = canary(), statistics.bounded()

    def observe(key: Array, present: Array, noise: Array) -> Array:
        meter, seen = new_meter(key, ("sum",)), []
        real = mask.at[0].set(present > 0)
        for query, (cost, _) in zip(queries(method.gradients), costs, strict=True):
            mechanism = GaussianSum(jnp.float32(1), noise * cost.noise_multiplier)
            total, meter = mechanism("sum", meter, what, query, units, real)
            seen.append(total)
        return jnp.concatenate(seen)

    return Problem("row_statistics", "example", "published", composition.epsilon(costs, DELTA), DELTA, observe)
