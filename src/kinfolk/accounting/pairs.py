"""Dominating pairs: the two laws that bound what one draw of noise tells about a protected unit.

A protected unit (a row, a person, a hospital) meets the units of a draw: `group` of them lie wholly inside it, `parts`
only partly. Without sampling all that counts is how far it moves the sum. With Poisson sampling there are three cases,
and "the same rate, further away" is none of them:

* whole units only, set to zero: each has its own coin, so a binomial mixture of Gaussians against one at 0, in both
  directions (with one unit: the sampled Gaussian);
* one unit whose contribution is replaced by another, because neighbours are by replacement or because it is only partly
  covered: one coin, c against -c;
* anything else: no pair is proven, so nothing is claimed for sampling: rate 1 at the whole distance.

Discrete Gaussian noise, which clients add in shares, is accounted for by zero-concentrated privacy alone: a
one-dimensional pair does not dominate vectors there. And whoever it protects from sees who takes part: no sampling.

>>> from kinfolk.privacy.release import Cost
>>> distance(Cost("gaussian", 1.0, group=3, parts=1)), plain(Cost("gaussian", 1.0, 0.1, group=1, parts=1)).rate
(5.0, 1.0)
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import dp_accounting as dp
import numpy as np
from dp_accounting import rdp
from dp_accounting.pld import common, privacy_loss_distribution
from scipy import special, stats

from kinfolk.privacy.noise_shares import LAW
from kinfolk.privacy.release import Cost

Loss = privacy_loss_distribution.PrivacyLossDistribution
TINY = 1e-300
"""The delta at which a Renyi divergence is read back from dp_accounting's conversion."""


class BudgetError(ValueError):
    """A budget that cannot be met, with what would be."""


def distance(cost: Cost) -> float:
    """How far a unit moves a sum, in clip norms: once for each whole unit set to zero, twice for any other.

    `cost`: of one use, with the units that it meets.
    """
    return (2.0 if cost.relation == "replace_one" else 1.0) * cost.group + 2.0 * cost.parts


def touched(cost: Cost) -> int:
    """How many units of the draw it meets: each may be the one that overflows a batch."""
    return cost.group + cost.parts


def plain(cost: Cost) -> Cost:
    """The cost without what sampling saves, where no pair is proven with it."""
    replaced = cost.parts + (cost.group if cost.relation == "replace_one" else 0)
    whole = touched(cost) - replaced
    if cost.mechanism == LAW:
        return replace(cost, rate=1.0)
    proven = cost.rate == 1 or cost.mechanism != "gaussian" or not replaced or (replaced == 1 and not whole)
    return cost if proven else replace(cost, rate=1.0)


def replaces(cost: Cost) -> bool:
    """Whether one unit's contribution becomes another, rather than zero."""
    return cost.relation == "replace_one" or cost.parts > 0


def pure_epsilon(cost: Cost) -> float:
    """The pure epsilon of a private choice; its `noise_multiplier` is Gumbel scale over the range of a score."""
    if cost.mechanism != "choice" or cost.rate != 1:
        raise BudgetError(f"no account for mechanism={cost.mechanism!r} at rate={cost.rate}")
    return distance(cost) / cost.noise_multiplier


def loss(cost: Cost, grid: float) -> Loss:
    """The privacy-loss distribution of one use, pessimistic, on a grid."""
    cost, make = plain(cost), privacy_loss_distribution
    if cost.mechanism == LAW:
        raise BudgetError("discrete Gaussian noise on vectors has no privacy-loss distribution: use zCDP")
    if cost.mechanism == "laplace" and cost.rate == 1:
        return make.from_laplace_mechanism(cost.noise_multiplier / distance(cost), value_discretization_interval=grid)
    if cost.mechanism != "gaussian":
        pure = common.DifferentialPrivacyParameters(pure_epsilon(cost), 0.0)
        return make.from_privacy_parameters(pure, value_discretization_interval=grid)
    if cost.rate == 1:
        return make.from_gaussian_mechanism(cost.noise_multiplier / distance(cost), value_discretization_interval=grid)
    if not replaces(cost) and cost.group > 1:
        return make.from_mixture_gaussian_mechanism(
            cost.noise_multiplier, *_coins(cost), value_discretization_interval=grid
        )
    relation = dp.NeighboringRelation
    return make.from_gaussian_mechanism(
        cost.noise_multiplier,
        sampling_prob=cost.rate,
        value_discretization_interval=grid,
        neighboring_relation=relation.REPLACE_ONE if replaces(cost) else relation.REPLACE_SPECIAL,
    )


def _coins(cost: Cost) -> tuple[np.ndarray, np.ndarray]:
    """How many of the units may be sampled, and with which probabilities."""
    counts = np.arange(cost.group + 1)
    return counts.astype(float), stats.binom.pmf(counts, cost.group, cost.rate)


def event(cost: Cost) -> dp.DpEvent:
    """A cost as dp_accounting's event, for accountants that know add/remove only: what they cannot express (several
    units with coins of their own, one unit replaced) is bounded without sampling.
    """
    if cost.mechanism == "laplace" and cost.rate == 1:
        return dp.LaplaceDpEvent(cost.noise_multiplier / distance(cost))
    if cost.mechanism == "choice":
        return dp.ZCDpEvent(pure_epsilon(cost) ** 2 / 8)
    if cost.mechanism == LAW:
        return dp.ZCDpEvent((distance(cost) / cost.noise_multiplier) ** 2 / 2)
    gaussian = dp.GaussianDpEvent(cost.noise_multiplier / distance(cost))
    return gaussian if cost.rate == 1 or not _one_coin(cost) else dp.PoissonSampledDpEvent(cost.rate, gaussian)


def _one_coin(cost: Cost) -> bool:
    return not replaces(cost) and cost.group == 1


@lru_cache(maxsize=65536)
def renyi(cost: Cost, order: float) -> float:
    """The Renyi divergence of one use, in its worse direction."""
    cost = plain(cost)
    if cost.mechanism in ("gaussian", LAW) and cost.rate == 1:
        return order * (distance(cost) / cost.noise_multiplier) ** 2 / 2
    if cost.mechanism == "gaussian":
        return _by_quadrature(cost, order)
    accountant = rdp.RdpAccountant([order], dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(event(cost))
    converted = accountant.get_epsilon(TINY)
    found = converted - math.log1p(-1 / order) + (math.log(TINY) + math.log(order)) / (order - 1)
    return max(found, 0.0) + 1e-12  # the conversion is exact to about as much


def _by_quadrature(cost: Cost, order: float) -> float:
    """Of the pair itself. The integrand is a sum of Gaussians of this width: the trapezoidal rule is exact to rounding
    on a grid of a twentieth of it."""
    z = cost.noise_multiplier
    reach = order * (2 if replaces(cost) else cost.group) + 12 * z
    x = np.arange(-reach, reach, z / 20) if reach < 1e5 * z else np.linspace(-reach, reach, 4_000_001)
    if replaces(cost):
        places, chances = np.array([0.0, 1.0]), np.array([1 - cost.rate, cost.rate])
        first, second = (_log_mixture(x, sign * places, chances, z) for sign in (1, -1))
        return _divergence(first, second, order, x) * (1 + 1e-9)
    first, second = _log_mixture(x, *_coins(cost), z), _log_mixture(x, np.zeros(1), np.ones(1), z)
    return max(_divergence(first, second, order, x), _divergence(second, first, order, x)) * (1 + 1e-9)


def _log_mixture(x: np.ndarray, places: np.ndarray, chances: np.ndarray, z: float) -> np.ndarray:
    kept = chances > 0
    each = [
        math.log(chance) - ((x - place) / z) ** 2 / 2 for place, chance in zip(places[kept], chances[kept], strict=True)
    ]
    total = each[0]
    for one in each[1:]:
        total = np.logaddexp(total, one)
    return total - math.log(z * math.sqrt(2 * math.pi))


def _divergence(first: np.ndarray, second: np.ndarray, order: float, x: np.ndarray) -> float:
    logs = order * first - (order - 1) * second
    return max(0.0, (float(np.asarray(special.logsumexp(logs))) + math.log(x[1] - x[0])) / (order - 1))
