"""Every party's epsilon and delta, and deltas that would promise nothing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from kinfolk.accounting import composition
from kinfolk.accounting.composition import BudgetError
from kinfolk.privacy.levels import PrivacyLevel


def budget_of(level: PrivacyLevel, name: str, size: int) -> tuple[float | None, float]:
    """A party's epsilon (none when the noise is given instead) and delta."""
    own = level.budget(name)
    given = own.delta if own else level.delta
    delta = composition.default_delta(int(size)) if given is None else given
    return (own.epsilon if own else None), delta


def check_deltas(level: PrivacyLevel, ids: Sequence[str], sizes: np.ndarray) -> None:
    """Refuses a delta of 1/n or more, and warns from 1/(10 n) on; n is the number of protected units."""
    if not level.level.private:
        return
    unknown = sorted(set(level.budgets) - set(ids))
    if unknown:
        raise BudgetError(f"budgets name clients that are not in the data: {', '.join(unknown[:5])}")
    clients = zip(ids, sizes.tolist(), strict=True)
    parties = [("the federation", len(sizes))] if level.level.server_pays else list(clients)
    deltas = {who: (budget_of(level, who, n)[1], n) for who, n in parties}
    worst = max(deltas, key=lambda who: deltas[who][0] * deltas[who][1])
    delta, n = deltas[worst]
    if delta >= 1 / n and not level.allow_large_delta:
        raise BudgetError(
            f"delta={delta:g} is not below 1/{n}, one over the number of units of {worst!r}: such a guarantee would "
            f"allow publishing a whole unit. Use {composition.default_delta(n):.2g} or less, or set allow_large_delta"
        )
    if delta > 1 / (10 * n) and not level.allow_large_delta:
        text = f"delta={delta:g} is above a tenth of 1/{n} ({worst!r}): choose a smaller one, or set allow_large_delta"
        warnings.warn(text, stacklevel=2)
