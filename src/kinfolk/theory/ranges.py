"""What the numbers of a statement may be: outside of that a formula still has a value, but says nothing.

Every function here asks `require` first.

>>> require(RATE, rate=2.0)
Traceback (most recent call last):
    ...
ValueError: rate=2.0 must be above 0 and at most 1: it is the chance of a client to be in a round
"""

from __future__ import annotations

import math

import numpy as np

from kinfolk import limits
from kinfolk.limits import Limit
from kinfolk.toml import shown

COUNT = limits.whole(1, 10**9, "it counts something that is there")
COUNT_OR_NONE = limits.whole(0, 10**9, "it counts something")
POSITIVE = limits.above(0, remedy="give a size that is not 0")
NOT_NEGATIVE = limits.finite(0, remedy="give a size, or 0 for none")
FINITE = limits.finite(remedy="give a finite number")
CHANCE = limits.share("it is a chance, and neither never nor always", with_all=False, with_none=False)
CHANCE_OR_NEVER = limits.share("it is a chance, and not always", with_all=False)
CHANCE_OR_SURE = limits.share("it is a chance")
RATE = limits.share("it is the chance of a client to be in a round", with_none=False)
CONDITION = limits.share("it is strong convexity over smoothness; 0 means convex only")
STRONGLY_CONVEX = limits.share(
    "it is strong convexity over smoothness, of losses that differ", with_all=False, with_none=False
)
STRENGTH = limits.OR_INFINITE
SPENT = Limit(0, infinite=True, remedy="infinity is no privacy")


def require(limit: Limit, **numbers: object) -> None:
    """Refuses numbers outside of a range, by their names.

    `limit`: the range. `numbers`: one or more, each by the name that the caller knows.
    """
    for name, value in numbers.items():
        if np.ndim(value):  # type: ignore[arg-type]
            raise ValueError(f"{name}={shown(value)} must be one number, {limit.words}: {limit.remedy}")
        require_each(limit, **{name: value})


def require_each(limit: Limit, **several: object) -> None:
    """Refuses lists and arrays that are empty, or have a number outside of a range.

    `limit`: the range. `several`: one or more lists or arrays, each by the name that the caller knows.
    """
    for name, value in several.items():
        found = np.asarray(value)
        if found.dtype.kind not in ("iu" if limit.is_whole else "iuf") or not found.size:
            kind = "whole numbers" if limit.is_whole else "numbers"
            kind = kind if found.ndim else f"a {kind[:-1]}"
            raise ValueError(f"{name}={shown(value)} must be {kind}, {limit.words}: {limit.remedy}")
        if not (_holds(limit, float(found.min())) and _holds(limit, float(found.max()))):
            raise ValueError(f"{name}={shown(value)} must be {limit.words}: {limit.remedy}")


def _holds(limit: Limit, value: float) -> bool:
    """As `limit.holds`, but what has no limit of its own may be any finite number, not only one that float32 holds."""
    return limit.holds(value if math.isinf(value) else min(max(value, -limits.HUGE), limits.HUGE))
