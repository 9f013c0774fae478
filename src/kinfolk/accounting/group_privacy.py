"""From protecting one example to protecting a whole client: group privacy, and what it costs.

>>> by_definition(0.1, 1e-9, 30)[0]
3.0
"""

from __future__ import annotations

import math

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.privacy.mechanisms import Cost


def by_definition(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """What (epsilon, delta) for one example is for a client of `size` examples: (n epsilon, n e^(n epsilon) delta).

    Delta is at most 1; at 1 nothing is promised.
    """
    exponent = math.log(size) + size * epsilon + (math.log(delta) if delta > 0 else -math.inf)
    return size * epsilon, min(1.0, math.exp(min(exponent, 0.0)))


def epsilon_for_client(noise_multiplier: float, uses: int, size: int, delta: float) -> float:
    """Epsilon for a client of `size` examples, each protected by Gaussian noise of this multiplier.

    A group moves the sum `size` times as far, so rho of zero-concentrated privacy grows with its square; the exact
    Gaussian account of that distance is used, which is tighter than the conversion from rho.
    """
    return composition.epsilon([(Cost("gaussian", noise_multiplier, group=size), uses)], delta)


def noise_for_client(epsilon: float, delta: float, uses: int, size: int) -> float:
    """The example-level noise multiplier that protects a client of `size` examples by group privacy."""
    return size * noise_for_budget.noise_multipliers([noise_for_budget.Case(epsilon, delta, uses)])[0]
