"""Planning a budget without data: from any four of five numbers, the fifth.

>>> answer = plan("example", units=10_000, sample=100, uses=1000, epsilon=1, delta=1e-5)
>>> round(answer.noise_multiplier, 1)
1.4
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kinfolk import limits
from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.composition import BudgetError
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.privacy.mechanisms import Cost, coin_rate
from kinfolk.privacy.noise_shares import LAW, usual
from kinfolk.theory.client_level import published_multiplier

WORDS = {
    "example": {"units": "rows", "sample": "batch", "uses": "steps"},
    "client": {"units": "clients", "sample": "cohort", "uses": "rounds"},
}
"""What the numbers are called at each level."""


@dataclass(frozen=True)
class Answer:
    """A complete plan. `solved` names the number that was not given."""

    level: str
    """`example` or `client`."""
    units: int
    """How many are protected: rows, or clients."""
    sample: float
    """Expected batch or cohort."""
    uses: int
    """Steps, or rounds."""
    noise_multiplier: float
    """Noise standard deviation divided by the clip norm."""
    epsilon: float
    """Epsilon of all uses together."""
    delta: float
    """The delta at which epsilon is computed."""
    solved: str
    warning: str | None
    """A warning about a delta that is too large, if it is."""
    epsilon_if_participation_is_seen: float | None
    """Client level: epsilon against somebody who sees who takes part."""
    noise_multiplier_by_theorem_1: float | None = None
    """Client level: what the closed form of Hu, Wu and Smith (2021) asks for at this epsilon, without sampling."""
    survivors: int | None = None
    """Secure aggregation: the fewest clients that must be left of a round."""
    colluding: int | None = None
    """Likewise: how many of them may work with the aggregator."""
    noise_multiplier_of_the_sum: float | None = None
    """Likewise: of everybody's shares together, when nobody drops out."""
    noise_multiplier_if_trusted: float | None = None
    """Likewise: what an aggregator that is trusted would add for the same epsilon."""


def plan(
    level: str,
    *,
    units: int | None = None,
    sample: float | None = None,
    uses: int | None = None,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    relation: str = "zero_out",
    colluding: int | None = None,
    survivors: int | None = None,
) -> Answer:
    """Solves for the one of units, sample, uses, noise_multiplier and epsilon that is missing.

    The largest number of uses, the largest sample, the smallest number of units, the smallest noise or epsilon.

    `level`: `example` or `client`. `units`: how many are protected: rows, or clients. `sample`: expected batch or
    cohort. `uses`: steps, or rounds. `noise_multiplier`: noise standard deviation divided by the clip norm. `epsilon`:
    of all uses together. `delta`: default min(1e-5, n^-1.1). `relation`: which data sets are neighbours, `zero_out` or
    `replace_one`. `colluding`: secure aggregation (client level, everybody in every round), against the aggregator with
    so many clients. `survivors`: likewise, the fewest that must be left.
    """
    if colluding is not None or survivors is not None:
        if level != "client" or units is None or sample is not None:
            raise BudgetError("colluding and survivors need level='client', the number of clients, and no cohort")
        sample = units
    words = WORDS[level]
    given = {"units": units, "sample": sample, "uses": uses, "noise_multiplier": noise_multiplier, "epsilon": epsilon}
    missing = [name for name, value in given.items() if value is None]
    if missing in (["sample", "epsilon"], ["sample", "noise_multiplier"]):
        given["sample"] = units  # everybody, every time
        missing = missing[1:]
    if len(missing) != 1:
        every, left = (", ".join(words.get(name, name) for name in names) for names in (given, missing))
        raise BudgetError(f"leave out exactly one of {every}; left out: {left or 'none'}")
    for name, value in {**given, "delta": delta}.items():
        if value is not None:
            limits.checked(words.get(name, name), value, "Plan")
    (unknown,) = missing
    secure = colluding is not None or survivors is not None
    shares = usual(units, survivors, colluding) if secure and units is not None else None
    plan = _Plan(relation, delta, LAW if shares else "gaussian", **{name: value or 0 for name, value in given.items()})
    if unknown not in ("sample", "units") and plan.sample > plan.units:
        raise BudgetError(f"{words['sample']}={plan.sample:g} is more than {words['units']}={plan.units}")
    if unknown == "noise_multiplier":
        plan = replace(plan, noise_multiplier=plan.needed())
    elif unknown == "uses":
        plan = replace(plan, uses=noise_for_budget.largest(lambda n: replace(plan, uses=n).fits(), 10**6))
    elif unknown == "sample":
        plan = replace(plan, sample=noise_for_budget.largest(lambda n: replace(plan, sample=n).fits(), plan.units))
    elif unknown == "units":
        least = max(1, math.ceil(plan.sample))
        short = noise_for_budget.largest(lambda n: not replace(plan, units=least + n - 1).fits(), 10**8)
        plan = replace(plan, units=least + short if short < 10**8 else 0)
    name = words.get(unknown, unknown)
    if not (plan.units and plan.sample and plan.uses):
        raise BudgetError(f"no number of {name} meets epsilon={plan.epsilon:g} with this noise: use more noise")
    together: dict[str, int | float] = {}
    if shares is not None:
        together = {
            "survivors": shares.survivors,
            "colluding": shares.colluding,
            "noise_multiplier_of_the_sum": plan.noise_multiplier * math.sqrt(shares.excess),
            "noise_multiplier_if_trusted": replace(plan, mechanism="gaussian", epsilon=plan.spent()).needed(),
        }
    return Answer(
        level=level,
        units=plan.units,
        sample=plan.sample,
        uses=plan.uses,
        noise_multiplier=plan.noise_multiplier,
        epsilon=plan.spent(),
        delta=plan.own_delta,
        solved=name,
        warning=delta_warning(plan.own_delta, plan.units, words["units"]),
        epsilon_if_participation_is_seen=plan.spent_if_seen() if level == "client" else None,
        noise_multiplier_by_theorem_1=(
            published_multiplier(plan.spent(), plan.own_delta, plan.uses) if level == "client" else None
        ),
        **together,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class _Plan:
    relation: str
    delta: float | None
    mechanism: str
    units: int
    sample: float
    uses: int
    noise_multiplier: float
    epsilon: float

    def needed(self) -> float:
        case = Case(self.epsilon, self.own_delta, self.uses, self.rate, self.relation, mechanism=self.mechanism)
        return noise_for_budget.noise_multipliers([case])[0]

    @property
    def own_delta(self) -> float:
        return composition.default_delta(self.units) if self.delta is None else self.delta

    @property
    def rate(self) -> float:
        return coin_rate(self.sample / self.units)

    def spent(self) -> float:
        cost = Cost(self.mechanism, self.noise_multiplier, self.rate, self.relation)
        return composition.epsilon([(cost, self.uses)], self.own_delta)

    def spent_if_seen(self) -> float:
        cost = Cost(self.mechanism, self.noise_multiplier, self.rate, self.relation)
        return composition.epsilon_if_coins_are_seen([(cost, self.uses)], self.own_delta)

    def fits(self) -> bool:
        return self.spent() <= self.epsilon


def delta_warning(delta: float, units: int, word: str) -> str | None:
    """A warning for a delta that is large for this number of units."""
    if delta >= 1 / units:
        return f"delta={delta:g} is not below 1/{word}={1 / units:g}: train refuses it without allow_large_delta"
    if delta > 1 / (10 * units):
        return f"delta={delta:g} is above a tenth of 1/{word}={1 / units:g}: choose a smaller one"
    return None
