"""What a statement at client level says of the aggregator: trusted, or given no more than noisy sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from kinfolk.accounting import composition
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.privacy.noise_shares import LAW

TRUSTED_AGGREGATOR = "the aggregator, which sees each round's messages before noise is added"


class SharedNoise(TypedDict):
    """Who adds the noise where no aggregator is trusted with it, and what that gives to whom."""

    survivors: int
    colluding: int
    epsilon_of_observers: float
    """Against those who see what is published and nothing else."""


@dataclass(frozen=True)
class Aggregator:
    """What to put into a statement."""

    not_covered: str
    facts: dict[str, Any] = field(default_factory=dict)
    """View, accountant and `shared_noise`, where they are others than with a trusted one."""


def against_the_aggregator(
    level: PrivacyLevel, charges: Sequence[composition.Charge], delta: float, *, adaptive: bool
) -> Aggregator:
    """What is promised against the aggregator and those who see less, and what is not.

    Those who see only what is published see the noise of all survivors: as much as `survivors` shares at least. Over
    several runs, which may have shared noise otherwise, they are granted no more than the aggregator.

    `level`: with its numbers settled. `charges`: of all runs. `delta`: at which epsilon is computed. `adaptive`: there
    are several runs.
    """
    if level.aggregator == "trusted":
        return Aggregator(TRUSTED_AGGREGATOR)
    if level.aggregator == "local" or level.survivors is None or level.colluding is None:
        view = "everybody else: all other clients together, and the aggregator"
        return Aggregator("messages as such: that a client sent one, and when", {"view": view})
    more = 1.0 if adaptive else math.sqrt(level.survivors / (level.survivors - level.colluding))
    seen = [(replace(cost, noise_multiplier=cost.noise_multiplier * more), uses) for cost, uses in charges]
    shared: SharedNoise = {
        "survivors": level.survivors,
        "colluding": level.colluding,
        "epsilon_of_observers": composition.epsilon(seen, delta, adaptive=adaptive),
    }
    earlier = "; aggregators of other runs on these data" if any(cost.mechanism != LAW for cost, _ in charges) else ""
    facts = {
        "view": f"the aggregator together with up to {level.colluding} clients, and whoever sees less than they do",
        "accountant": f"zero-concentrated privacy of discrete Gaussian noise{', over several runs' * adaptive}",
        "shared_noise": shared,
    }
    return Aggregator(
        f"more than {level.colluding} clients that work with the aggregator, add too little noise or deviate in some "
        f"way, identities that the aggregator made up among them; a client that lies in its messages{earlier}",
        facts,
    )


def shared_noise_text(shared: SharedNoise, epsilon: float, simulated: str) -> str:
    """The two numbers in words.

    `shared`: of the statement. `epsilon`: against the aggregator. `simulated`: a mark, or nothing.
    """
    return (
        f"Clients add the noise in shares, and a round is given up with fewer than {shared['survivors']} of them. "
        f"Against the aggregator with up to {shared['colluding']} clients: epsilon {epsilon:.4g}{simulated}. Against "
        f"those who see only what is published: epsilon {shared['epsilon_of_observers']:.4g}{simulated}."
    )
