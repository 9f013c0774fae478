"""How much noise a budget needs: the account of `accounting.py`, solved for the noise multiplier.

Noise multipliers err on the safe side: they are rounded up to what a float32 can hold, and verified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.accounting import composition
from kinfolk.accounting.composition import BudgetError, Charge
from kinfolk.limits import LARGEST_NOISE_MULTIPLIER
from kinfolk.privacy.release import Cost
from kinfolk.roots import root

TOLERANCE = 5e-4
"""How far, relatively, a calibrated noise multiplier may lie above the smallest one."""


@dataclass(frozen=True)
class Case:
    """A budget, and what it has to pay for apart from the noise multiplier."""

    epsilon: float
    delta: float
    uses: int
    rate: float = 1.0
    relation: str = "zero_out"
    overflow: float = 0.0
    """Probability per use of a sample overflowing its capacity."""
    also: tuple[Charge, ...] = ()
    """Other charges that the same budget has to pay."""
    factors: tuple[tuple[float, int], ...] = ()
    """Where the noise changes from round to round: what it is multiplied by, and for how many of the uses."""
    group: int = 1
    mechanism: str = "gaussian"
    """`discrete_gaussian`: noise in shares, accounted for by zero-concentrated privacy."""

    def charges(self, noise_multiplier: float) -> list[Charge]:
        parts = self.factors or ((1.0, self.uses),)
        return [*((self.cost(times(noise_multiplier, f)), u) for f, u in parts), *self.also]

    def spent(self, noise_multiplier: float) -> float:
        return composition.epsilon(self.charges(noise_multiplier), self.delta)

    def cost(self, noise_multiplier: float) -> Cost:
        return Cost(self.mechanism, noise_multiplier, self.rate, self.relation, self.overflow, group=self.group)

    @property
    def overflows(self) -> float:
        """Probability that any sample with one of the group's units overflows."""
        return self.overflow * self.uses * self.group

    @property
    def evenly(self) -> float:
        """What to multiply noise by so that, without sampling, equal noise in all uses costs the same."""
        return math.sqrt(sum(u / f**2 for f, u in self.factors) / self.uses) if self.factors else 1.0


def times(noise_multiplier: float, factor: float) -> float:
    """The product as a program in float32 computes it."""
    return float(np.float32(noise_multiplier) * np.float32(factor))


def laplace_multiplier(epsilon: float, uses: int, relation: str = "zero_out", group: int = 1) -> float:
    """The scale of Laplace noise, in bounds of a contribution, for pure `epsilon` over all uses."""
    scale = _round_up(
        composition.distance(Cost("laplace", 1.0, relation=relation, group=group)) * max(uses, 1) / epsilon
    )
    if scale > LARGEST_NOISE_MULTIPLIER:
        raise BudgetError(f"epsilon={epsilon:g} over {uses} uses needs noise of {scale:.3g} bounds: use fewer rounds")
    return scale


def noise_multipliers(cases: Sequence[Case]) -> list[float]:
    """The smallest noise multipliers that meet each case's budget, a little (TOLERANCE) above at most.

    Distinct cases are solved once, in an order in which each is a good guess for the next. The one of sampled Gaussians
    that may spend most is computed once more by dp_accounting.
    """
    solved: dict[Case, float] = {}
    correction = 1.0
    for case in sorted(set(cases), key=lambda c: (c.epsilon, c.delta, c.relation, c.uses, c.rate, c.factors)):
        solved[case], correction = _solve(case, correction)
    sampled = [case for case in solved if case.rate < 1 and case.mechanism == "gaussian" and not case.also]
    if sampled:
        dearest = max(sampled, key=lambda case: case.epsilon)
        composition.require_agreement(dearest.charges(solved[dearest]), dearest.delta)
    return [solved[case] for case in cases]


def _solve(case: Case, correction: float) -> tuple[float, float]:
    """The noise multiplier, and its ratio to the central-limit guess."""
    _check_budget(case)
    left = case.delta - case.overflows
    if case.rate == 1 and not case.also:
        sigma = composition.plain_sigma(case.epsilon, left) * math.sqrt(case.uses) * case.evenly
        z = sigma * composition.distance(case.cost(1.0))
        if case.mechanism != "gaussian":  # a weaker account of more noise: between once and four times as much
            z = math.exp(root(lambda x: math.log(case.spent(math.exp(x)) / case.epsilon), math.log(z), math.log(4 * z)))
        z = _round_up(_usable(z, case))
        while case.spent(z) > case.epsilon:
            z = _round_up(z * (1 + 1e-7))
        return z, correction

    def quick(log_z: float) -> float:
        return math.log(composition.central_limit(case.cost(math.exp(log_z)), case.uses, left) / case.epsilon)

    low, high = math.log(0.05), math.log(10 * LARGEST_NOISE_MULTIPLIER)
    guess = root(quick, low, high, 1e-6) if quick(low) > 0 > quick(high) else 0.0
    slope = min((quick(guess + 0.01) - quick(guess)) / 0.01, -0.3)
    start = math.log(correction * case.evenly)
    log_z, best, before = guess + start + TOLERANCE / 3, math.inf, None
    for _ in range(20):
        z = _round_up(_usable(math.exp(log_z), case))
        log_z, miss = math.log(z), math.log(max(case.spent(z), 1e-6) / case.epsilon)
        if miss <= 0:
            best = min(best, z)
            if miss >= slope * TOLERANCE:
                break
        if before is not None and abs(log_z - before[0]) > 1e-6:
            slope = min((miss - before[1]) / (log_z - before[0]), -0.1)
        before = (log_z, miss)
        log_z = max(log_z - miss / slope + TOLERANCE / 3, low)
    if not math.isfinite(best):
        raise BudgetError(f"no noise multiplier found for {case}: please report this with the settings used")
    return best, best / (math.exp(guess) * case.evenly)


def _round_up(value: float) -> float:
    single = np.float32(value)
    return float(single if single >= value else np.nextafter(single, np.float32(np.inf)))


def _check_budget(case: Case) -> None:
    if not case.epsilon > 0:
        raise BudgetError(f"epsilon={case.epsilon} must be above 0; for no privacy at all use level 'none'")
    if not 0 < case.delta < 1:
        raise BudgetError(f"delta={case.delta} must lie between 0 and 1; a usual value is 1e-5")
    if case.overflows >= case.delta:
        raise BudgetError(
            f"delta={case.delta:g} is used up by the chance that a batch overflows ({case.overflows:.2g} "
            f"over {case.uses} uses): use a larger delta, or fewer steps"
        )
    chosen = composition.epsilon(case.also, case.delta)
    if chosen >= case.epsilon:
        cost, uses = case.also[0]
        most = largest(lambda n: composition.epsilon([(cost, n)], case.delta) < case.epsilon, uses)
        raise BudgetError(
            f"{uses} private choices alone cost epsilon={chosen:.3g}, and the budget is {case.epsilon:g}: choose in at "
            f"most {most} rounds (fewer leave more for training), or with a smaller choice_epsilon"
        )


def _usable(noise_multiplier: float, case: Case) -> float:
    if noise_multiplier <= LARGEST_NOISE_MULTIPLIER:
        return noise_multiplier
    cost = case.cost(LARGEST_NOISE_MULTIPLIER)
    feasible = case.spent(cost.noise_multiplier)
    raise BudgetError(
        f"epsilon={case.epsilon:g} cannot be met over {case.uses} uses: it needs a noise multiplier of "
        f"{noise_multiplier:.3g}, more than {LARGEST_NOISE_MULTIPLIER:g}, and every release would be noise alone. "
        f"The smallest epsilon for these settings is {feasible:.2g}; fewer steps or a lower sampling rate also help"
    )


def largest(feasible: Callable[[int], bool], limit: int = 10**7) -> int:
    """The largest n in 1..limit with `feasible(n)`, for a test that only turns from true to false; 0 if none."""
    if not feasible(1):
        return 0
    good, bad = 1, 2
    while bad <= limit and feasible(bad):
        good, bad = bad, bad * 2
    bad = min(bad, limit + 1)  # which nobody asked about
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if feasible(middle) else (good, middle)
    return good
