"""Composition: what costs add up to. One draw's laws are in `pairs.py`, their losses on a grid in `losses.py`, how much
noise a budget needs in `noise_for_budget.py`.

This module and `pairs.py` alone import dp_accounting. Every value errs on the safe side: privacy-loss distributions
are discretised pessimistically.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import dp_accounting as dp
import numpy as np
from dp_accounting import gaussian_mechanism, rdp
from dp_accounting.pld import privacy_loss_distribution
from scipy import special, stats

from kinfolk.accounting import losses, pairs
from kinfolk.accounting.pairs import BudgetError, distance, event, pure_epsilon
from kinfolk.privacy.noise_shares import LAW
from kinfolk.privacy.release import Cost
from kinfolk.roots import root

logging.getLogger("absl").addFilter(lambda record: "Excluding this order" not in record.getMessage())
LAW_GAP = 1e-12
"""What is added to epsilon because sums of shares of noise are discrete Gaussians up to a factor exp(tau) for each
number: with shares of 1000 grid steps tau is below 10^-4000000, and 2 tau for each number and use far below this."""
AGREEMENT = 1e-5
"""How far, relatively, dp_accounting's epsilon may lie above ours."""
Charge = tuple[Cost, int]
"""A cost and how often it was paid."""

ORDERS = (*np.arange(2, 12, 0.1).round(1).tolist(), *range(12, 65), *range(72, 257, 8), 320, 384, 512, 768, 1024)

DEFAULT_ORDERS: tuple[float, ...] = tuple(rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
"""dp_accounting's own list, for comparison with published figures."""
ODOMETER_ORDERS = (1.5, 2, 3, 4, 6, 8, 11, 16, 23, 32, 64, 128)


def by_run(charges: Iterable[tuple[str, Cost, int]]) -> list[Charge]:
    """Charges of several runs, each given with its run; a cost that covers many uses of a run is rounded up in each."""
    counted: Counter[tuple[str, Cost]] = Counter()
    for run, cost, uses in charges:
        counted[run, cost] += uses
    return [(cost, cost.covers * -(-uses // cost.covers)) for (_, cost), uses in counted.items()]


def epsilon(charges: Iterable[Charge], delta: float, *, adaptive: bool = False) -> float:
    """The smallest epsilon we can prove for all charges together.

    `adaptive`: later costs were chosen after seeing earlier releases (a second run, say). Then the value is that of a
    Renyi odometer, which holds at any time and for any such choice; otherwise the tighter privacy-loss distribution.

    `charges`: pairs of a cost and how often it was paid. `delta`: at which epsilon is computed.

    >>> round(epsilon([(Cost("gaussian", 1.0, 0.01), 1000)], 1e-5), 2)
    1.83
    """
    paid = counted(charges)
    if not paid:
        return 0.0
    left = delta - overflow(paid)
    if left <= 0:
        return math.inf
    shared = any(cost.mechanism == LAW for cost, _ in paid)
    if adaptive:
        return from_renyi(renyi(paid), left, adaptive=True) + (LAW_GAP if shared else 0.0)
    if shared:
        return _rdp(paid, left) + LAW_GAP
    if all(cost.mechanism == "gaussian" for cost, _ in paid):
        if all(pairs.plain(cost).rate == 1 for cost, _ in paid):
            return _plain_gaussian(paid, left)
        return _pld(paid, left)
    return min(_pld(paid, left), _rdp(paid, left))


def counted(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """How often each cost was paid, in one order; a cost that covers several uses is paid once for them."""
    found: Counter[Cost] = Counter()
    for cost, uses in charges:
        found[cost] += uses
    paid = tuple(sorted(((replace(c, covers=1), -(-u // c.covers)) for c, u in found.items() if u), key=repr))
    if len({cost.relation for cost, _ in paid}) > 1:
        raise BudgetError("charges under different neighbour relations are never composed: keep them apart")
    return paid


def overflow(paid: Iterable[Charge]) -> float:
    """What full batches take from delta: any of the units that are met may be the one left out."""
    return sum(cost.delta * uses * pairs.touched(cost) for cost, uses in paid)


def plain_sigma(epsilon: float, delta: float) -> float:
    """The standard deviation of Gaussian noise on a sum of sensitivity 1, released once without sampling."""
    return gaussian_mechanism.get_sigma_gaussian(epsilon, delta)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Epsilon of one release with noise of this standard deviation on a sum of sensitivity 1, without sampling."""
    return gaussian_mechanism.get_epsilon_gaussian(sigma, delta)


def _plain_gaussian(paid: Sequence[Charge], delta: float) -> float:
    """Without sampling, uses of Gaussian noise are one use with squares of distance over noise added: exact."""
    mu = math.sqrt(sum(uses * (distance(cost) / cost.noise_multiplier) ** 2 for cost, uses in paid))
    return gaussian_epsilon(1 / mu, delta)


def epsilon_of_the_best(charges: Iterable[Charge], delta: float, *, mean: float, shape: float) -> float:
    """Epsilon of keeping the best of a random number of trials, each of which costs all charges (its score included).

    The number is truncated negative binomial (`shape` 0 or more: 0 logarithmic, 1 geometric) or Poisson (infinite
    shape) with this mean, drawn beforehand and hidden; only the winner leaves (Papernot and Steinke). `mean` trials'
    worth of batches may overflow.
    """
    paid = [(cost, uses) for cost, uses in charges if uses]
    left = delta - mean * overflow(paid)
    if not paid:
        return 0.0
    if left <= 0:
        return math.inf
    trial = dp.ComposedDpEvent([dp.SelfComposedDpEvent(event(cost), uses) for cost, uses in paid])
    accountant = rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp.dp_event.RepeatAndSelectDpEvent(trial, mean, shape))
    return float(accountant.get_epsilon(left))


def epsilon_if_coins_are_seen(charges: Iterable[Charge], delta: float, *, adaptive: bool = False) -> float:
    """Epsilon against somebody who sees who takes part in which round: no amplification by sampling.

    In one run of one cost a unit takes part in Binomial(uses, rate) rounds; given that number the releases are plain
    Gaussians, and delta is the mean over it. Anything else is bounded as if every unit always took part. Never below
    what somebody learns who sees less.
    """
    charges = [(replace(cost, covers=1), -(-uses // cost.covers)) for cost, uses in charges if uses]
    unseen = epsilon(charges, delta, adaptive=adaptive)
    costs = {cost for cost, _ in charges}
    if len(costs) == 1 and not adaptive:
        (cost,) = costs
        if cost.mechanism == "gaussian" and pairs.touched(cost) == 1:
            return max(unseen, _if_one_coin_is_seen(cost, sum(uses for _, uses in charges), delta))
    always = [(replace(cost, rate=1.0), uses) for cost, uses in charges]
    return max(unseen, epsilon(always, delta, adaptive=adaptive))


def _if_one_coin_is_seen(cost: Cost, uses: int, delta: float) -> float:
    delta -= cost.delta * uses
    if delta <= 0:
        return math.inf
    counts = np.arange(uses + 1)
    chances = stats.binom.pmf(counts, uses, cost.rate)
    mu = np.sqrt(counts[1:]) * distance(cost) / cost.noise_multiplier

    def excess(eps: float) -> float:
        first, second = special.log_ndtr(mu / 2 - eps / mu), eps + special.log_ndtr(-mu / 2 - eps / mu)
        return float(chances[1:] @ (np.exp(first) - np.exp(second))) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = float(mu[-1] ** 2 / 2 + 40 * mu[-1] + 10)
    return root(excess, 0.0, high, 1e-9) + 1e-8


@lru_cache(maxsize=4096)
def _pld(paid: tuple[Charge, ...], delta: float) -> float:
    if all(losses.known(cost) for cost, _ in paid):
        return losses.epsilon(paid, _grid(paid, delta), delta)
    return _by_dp_accounting(paid, delta)


@lru_cache(maxsize=4096)
def _by_dp_accounting(paid: tuple[Charge, ...], delta: float) -> float:
    grid = _grid(paid, delta)
    total = privacy_loss_distribution.identity(value_discretization_interval=grid)
    for cost, uses in paid:
        total = total.compose(_repeated(cost, uses, grid))
    return float(total.get_epsilon_for_delta(delta))


def require_agreement(charges: Sequence[Charge], delta: float) -> None:
    """Asks dp_accounting, slowly, for what `epsilon` computes quickly, and raises if that is too small.

    `charges`: of Gaussian noise on samples, not chosen after seeing releases. `delta`: at which epsilon is computed.
    """
    left, ours = delta - overflow(charges), epsilon(charges, delta)
    theirs = _by_dp_accounting(tuple(sorted(charges, key=repr)), left)
    if theirs > ours * (1 + AGREEMENT) + 1e-9:
        raise BudgetError(
            f"epsilon={ours:.9g}, and dp_accounting has {theirs:.9g}: please report this with the settings"
        )


def _repeated(cost: Cost, uses: int, grid: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Some uses of one mechanism. A few doublings come first: dp_accounting 0.6.0 stores a short distribution
    sparsely, and its own self-composition of a sparse one overflows an integer and then takes minutes.
    """
    once, total = pairs.loss(cost, grid), privacy_loss_distribution.identity(grid)
    for _ in range(1 if cost.mechanism == "gaussian" else 6):
        if uses % 2:
            total = total.compose(once)
        once, uses = (once.compose(once), uses // 2) if uses > 1 else (once, 0)
    return total.compose(once.self_compose(uses)) if uses else total


def _rdp(paid: Sequence[Charge], delta: float) -> float:
    accountant = rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for cost, uses in paid:
        accountant.compose(dp.SelfComposedDpEvent(event(cost), uses))
    return float(accountant.get_epsilon(delta))


def renyi(paid: Sequence[Charge]) -> list[float]:
    """The Renyi divergences of all charges together, of the odometer's orders."""
    return [sum(uses * pairs.renyi(cost, order) for cost, uses in paid) for order in ODOMETER_ORDERS]


def from_renyi(divergences: Sequence[float], delta: float, *, adaptive: bool) -> float:
    """Epsilon from Renyi divergences of the odometer's orders.

    `adaptive`: what holds at any time, however costs were chosen on the way: with probability 1 - delta the privacy
    loss is below rho(a) + log(N / delta) / (a - 1) for all of N orders a fixed beforehand, by Ville's inequality for
    each. Otherwise any order will do, by the conversion of Canonne, Kamath and Steinke.
    """
    if delta <= 0:
        return math.inf
    each = zip(divergences, ODOMETER_ORDERS, strict=True)
    if adaptive:
        return min(rho + math.log(len(ODOMETER_ORDERS) / delta) / (a - 1) for rho, a in each)
    return max(0.0, min(rho + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for rho, a in each))


def central_limit(cost: Cost, uses: int, delta: float) -> float:
    """A quick guess at epsilon, from the central limit theorem for sampled Gaussians. Never reported."""
    cost = pairs.plain(cost)
    z = cost.noise_multiplier / distance(cost)
    mu = cost.rate * math.sqrt(uses * math.expm1(min(1 / z**2, 600))) if cost.rate < 1 else math.sqrt(uses) / z
    mu = min(mu, 1e3)

    def excess(eps: float) -> float:
        first, second = special.log_ndtr(mu / 2 - eps / mu), eps + special.log_ndtr(-mu / 2 - eps / mu)
        return first + np.log1p(-np.exp(min(second - first, -1e-12))) - math.log(delta)

    if excess(0.0) <= 0:
        return 1e-6
    return max(1e-6, root(excess, 0.0, mu * mu / 2 + 12 * mu + 10, 1e-6))


def _grid(paid: Sequence[Charge], delta: float) -> float:
    """A grid on which the pessimism of discretisation is about 1e-4 of epsilon.

    That of Gaussians is about uses * grid^2 / 2; a private choice is rounded by nothing if its epsilon is a whole
    number of steps.
    """

    def of(cost: Cost, uses: int) -> float:
        wanted = math.sqrt(2e-4 * central_limit(cost, uses, delta) / uses)
        return float(np.clip(2.0 ** math.floor(math.log2(wanted)), 2**-14, 2**-8))

    choices = {pure_epsilon(cost) for cost, _ in paid if cost.mechanism == "choice"}
    gaussians = [of(cost, uses) for cost, uses in paid if cost.mechanism == "gaussian"]
    if len(choices) > 1 or not gaussians or any(cost.mechanism == "laplace" for cost, _ in paid):
        return min([1e-4, *gaussians])
    if not choices:
        return min(gaussians)
    (choice,) = choices
    steps = math.ceil(choice / min(gaussians))
    while choice / (choice / steps) != steps:  # in float64
        steps += 1
    return choice / steps


def overflow_probability(size: int, rate: float, capacity: int) -> float:
    """Chance that one unit is sampled into a batch that is already full: the others fill all places."""
    return float(stats.binom.sf(capacity - 1, size - 1, rate))


def capacity(size: int, rate: float, uses: int, delta: float) -> int:
    """The smallest batch that overflows, over all uses together, with at most a thousandth of delta."""
    if rate >= 1:
        return size
    allowed = 1e-3 * delta / max(uses, 1)
    return min(size, int(stats.binom.isf(min(allowed, 1.0), size - 1, rate)) + 1)


def default_delta(size: int) -> float:
    """min(1e-5, size^-1.1): well below one over the number of protected units.

    `size`: how many units are protected.

    >>> default_delta(1000)
    1e-05
    """
    return min(1e-5, size**-1.1)
