"""Human activity recognition by phone (Anguita et al., 2013): 30 people, 6 activities, 273 features of raw windows.

Read from `har_features.npz` (arrays `x`, `y`, `client`, `is_test`) in KINFOLK_DATA. The features were derived from the
raw signals; they are not the 561 of the published table.
"""

from __future__ import annotations

import numpy as np

from kinfolk.data.federation import DataError, Federation, padded
from kinfolk.data.sets.download import load_arrays

HOME = "https://archive.ics.uci.edu/dataset/240"


def har(*, seed: int = 0, directory: str | None = None) -> Federation:
    """One client per person, features standardised with the person's own training statistics.

    That looks at raw data: free at client level, where it stays at home; outside the account at example level.
    """
    arrays = load_arrays("har_features", [], _unavailable, "", directory)
    x, y, client = arrays["x"].astype(np.float32).copy(), arrays["y"].astype(np.int32), arrays["client"]
    test = arrays["is_test"].astype(bool)
    parts = []
    for k in np.unique(client):
        own = np.flatnonzero(client == k)
        rows = x[own[~test[own]]]
        x[own] = (x[own] - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-6)
        parts.append((f"person-{k:02d}", own[~test[own]], own[test[own]]))
    x = np.clip(x, -5, 5) / np.sqrt(np.float32(x.shape[1]))
    parts.sort(key=lambda part: (len(part[1]), part[0]))
    halves = [padded(x, y, [part[n] for part in parts]) for n in (1, 2)]
    ids = tuple(part[0] for part in parts)
    return Federation(
        name="har",
        ids=ids,
        train=halves[0],
        test=halves[1],
        outcome="classes",
        classes=6,
        scaling="each person's own statistics",
        scaling_is_private=False,
    )


def _unavailable(*_: bytes) -> dict[str, np.ndarray]:
    raise DataError(f"har_features.npz is derived from {HOME}: set KINFOLK_DATA to a directory that has it")
