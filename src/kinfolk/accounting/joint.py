"""Accounts of somebody who is at several parties: what any few of them come to together, at one delta.

Each party draws its own noise, so their costs compose, and epsilons need not be added. Nobody knows at which parties
somebody is: every value holds for any choice of so many.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, combinations_with_replacement

from kinfolk.accounting import composition, pairs
from kinfolk.accounting.composition import Charge

MANY = 100
"""Different choices of parties that are composed one by one; beyond it they are bounded together."""
ROOM = 1 + 1e-3
"""Left in limits: distributions on a grid are pessimistic by about a ten-thousandth of epsilon."""
Paid = tuple[Charge, ...]


def epsilon(parties: Sequence[Sequence[Charge]], count: int, delta: float, *, adaptive: bool = False) -> float:
    """The smallest epsilon we can prove for somebody at any `count` of these parties.

    `parties`: what each was charged. `count`: at most as many as there are. `delta`: of them all together. `adaptive`:
    as in `composition.epsilon`.

    >>> from kinfolk.privacy.release import Cost
    >>> silos = [[(Cost("gaussian", noise), 1)] for noise in (4.0, 5.0, 9.0)]
    >>> [round(composition.epsilon(silo, 1e-5), 2) for silo in silos], round(epsilon(silos, 2, 1e-5), 2)
    ([0.93, 0.73, 0.38], 1.22)
    """
    paid = [composition.counted(charges) for charges in parties]
    if all(_is_plain(charge) for charge in chain(*paid)):
        return composition.epsilon(chain(*sorted(paid, key=_squares)[-count:]), delta, adaptive=adaptive)
    kinds = Counter(paid)
    if math.comb(len(kinds) + count - 1, count) <= MANY:
        return max(composition.epsilon(chain(*some), delta, adaptive=adaptive) for some in _choices(kinds, count))
    return _of_all_choices(paid, count, delta, adaptive)


def budget(budgets: Sequence[tuple[float, float]], count: int) -> tuple[float, float]:
    """Epsilon and delta of any `count` of these budgets, if each is spent on Gaussian noise without sampling.

    The delta is the largest. Nothing is proven of other releases: it is a limit that they are held to, with a
    thousandth of room.

    `budgets`: epsilon and delta of each party. `count`: at most as many as there are.

    >>> epsilon, delta = budget([(1.0, 1e-5)] * 3, 2)
    >>> round(epsilon, 3), delta
    (1.467, 1e-05)
    """
    delta = max(delta for _, delta in budgets)
    noise = sorted(composition.plain_sigma(*one) for one in budgets)[:count]
    return ROOM * composition.gaussian_epsilon(sum(1 / one**2 for one in noise) ** -0.5, delta), delta


def budget_each(together: float, delta: float, count: int, least_delta: float) -> float:
    """The epsilon of each of `count` budgets that are limited to this epsilon together: `budget`, read backwards.

    `together`, `delta`: the limit. `least_delta`: the smallest delta of a budget.

    >>> round(budget_each(1.465, 1e-5, 2, 1e-5), 3)
    1.0
    """
    return composition.gaussian_epsilon(composition.plain_sigma(together, delta) * count**0.5, least_delta)


def _is_plain(charge: Charge) -> bool:
    """Of Gaussian noise without sampling: such costs have one order, whatever the delta."""
    cost, _ = charge
    return cost.mechanism == "gaussian" and pairs.plain(cost).rate == 1 and not cost.delta


def _squares(paid: Paid) -> float:
    """Squares of distance over noise, of all uses of plain Gaussian noise."""
    return sum(uses * (pairs.distance(cost) / cost.noise_multiplier) ** 2 for cost, uses in paid)


def _choices(kinds: Counter[Paid], count: int) -> Iterator[tuple[Paid, ...]]:
    """All different choices of so many parties."""
    for some in combinations_with_replacement(kinds, count):
        if all(often <= kinds[kind] for kind, often in Counter(some).items()):
            yield some


def _of_all_choices(parties: Sequence[Paid], count: int, delta: float, adaptive: bool) -> float:
    """A bound over all choices: of each order's Renyi divergences, and of chances of full batches, the largest."""
    composition.counted(chain(*parties))  # refuses different relations
    each = [composition.renyi(paid) for paid in parties]
    largest = [sum(sorted(column)[-count:]) for column in zip(*each, strict=True)]
    full = sum(sorted(composition.overflow(paid) for paid in parties)[-count:])
    return composition.from_renyi(largest, delta - full, adaptive=adaptive) + composition.LAW_GAP
