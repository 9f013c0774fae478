"""FEMNIST: hand-written digits and letters by writer (LEAF, Caldas et al., 2018), 62 classes.

Read from `femnist.npz` (arrays `x`, `y`, `client`, `is_test`) in KINFOLK_DATA: LEAF's own scripts make the images, so
there is nothing to download that is ready to use.
"""

from __future__ import annotations

import numpy as np

from kinfolk.data.federation import DataError, Federation, padded
from kinfolk.data.sets.download import load_arrays

HOME = "https://github.com/TalwalkarLab/leaf"
FEWEST = 20
"""Writers with fewer images are left out."""


def femnist(
    *, writers: int | None = None, most_images: int | None = None, seed: int = 0, directory: str | None = None
) -> Federation:
    """One client per writer, with LEAF's split into training and test images; ink is 1, paper 0.

    `writers`: only so many, picked by `seed`; `most_images`: at most so many training images of each.
    """
    arrays = load_arrays("femnist", [], _unavailable, "", directory)
    x, y, client, test = (arrays[name] for name in ("x", "y", "client", "is_test"))
    x = (255 - x.astype(np.float32))[..., None] / 255
    generator = np.random.default_rng(seed)
    counts = np.bincount(client)
    known = np.flatnonzero(counts >= FEWEST)
    chosen = np.sort(generator.permutation(known)[:writers])
    parts = []
    for k in chosen:
        own = generator.permutation(np.flatnonzero((client == k) & ~test.astype(bool)))[:most_images]
        parts.append((f"writer-{k:03d}", own, np.flatnonzero((client == k) & test.astype(bool))))
    parts.sort(key=lambda part: (len(part[1]), part[0]))
    return Federation(
        "femnist",
        tuple(part[0] for part in parts),
        padded(x, y.astype(np.int32), [part[1] for part in parts]),
        padded(x, y.astype(np.int32), [part[2] for part in parts]),
        "classes",
        62,
        "pixels divided by 255",
    )


def _unavailable(*_: bytes) -> dict[str, np.ndarray]:
    raise DataError(
        f"FEMNIST has no ready-made home: make it with LEAF ({HOME}), save arrays x, y, client and is_test as "
        "femnist.npz, and set KINFOLK_DATA to its directory"
    )
