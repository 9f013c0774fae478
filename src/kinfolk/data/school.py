"""School: exam scores of 15 362 pupils in 139 London schools (Inner London Education Authority), a regression task."""

from __future__ import annotations

import numpy as np

from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.files import load_arrays

SCALINGS = ("bounds", "as_published")


def school(*, scaling: str = "bounds", test_fraction: float = 0.2, seed: int = 0) -> Federation:
    """One client per school; the target is the score, scaled from 1..70 to 0..1.

    `bounds` divides the two percentages by 100 and leaves the indicators alone: public, so private. `as_published`
    standardises every feature with each school's own raw statistics, as Liu et al. did: not private, for comparison.
    """
    if scaling not in SCALINGS:
        raise DataError(f"scaling={scaling!r} is not one of {SCALINGS}")
    arrays = load_arrays("school")
    x, y, client = arrays["x"][:, :27].astype(np.float32), arrays["y"], arrays["client"]
    if scaling == "bounds":
        x[:, 3:5] /= 100
    else:
        for k in np.unique(client):
            own = x[client == k]
            spread = own.std(axis=0)
            x[client == k] = (own - own.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return from_rows(
        x,
        (y - 1) / 69,
        np.char.zfill(client.astype(str), 3),
        test_fraction=test_fraction,
        seed=seed,
        name="school",
        scaling=scaling,
        scaling_is_private=scaling == "bounds",
    )
