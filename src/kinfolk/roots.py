"""Where a function crosses zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize


def root(excess: Callable[[float], float], low: float, high: float, within: float = 2e-12) -> float:
    """A number between `low` and `high`, where the function has other signs, at which it is zero.

    `excess`: the function. `within`: how far the answer may be off.

    >>> round(root(lambda x: x * x - 2, 0.0, 2.0), 6)
    1.414214
    """
    return float(np.asarray(optimize.brentq(excess, low, high, xtol=within)))
