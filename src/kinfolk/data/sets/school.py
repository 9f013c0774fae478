"""School: exam scores of 15 362 pupils in 139 London schools (Inner London Education Authority), a regression task."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from scipy.io import loadmat

from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.sets.download import Arrays, load_arrays
from kinfolk.data.target import Target

SCALINGS = ("bounds", "as_published")
HOME = "https://github.com/jiayuzhou/MALSAR/raw/master/data/school.mat"
CHECKSUM = "c699e8163401c472ab599db327f00654b6ab881fd18cba6b8727f245d289bc79"


def school(
    *, scaling: str = "bounds", test_fraction: float = 0.2, seed: int = 0, directory: str | None = None
) -> Federation:
    """One client per school; the target is the score, scaled from 1..70 to 0..1.

    `bounds` divides the two percentages by 100 and leaves the indicators alone: public, so private. `as_published`
    standardises every feature with each school's raw training statistics, as Liu et al. did: not private.
    """
    if scaling not in SCALINGS:
        raise DataError(f"scaling={scaling!r} is not one of {SCALINGS}")
    arrays = load_arrays("school", [HOME], from_matlab, CHECKSUM, directory)
    x, y, client = arrays["x"][:, :27].astype(np.float32), arrays["y"], arrays["client"]
    if scaling == "bounds":
        x[:, 3:5] /= 100
    federation = from_rows(
        x,
        (y - 1) / 69,
        np.char.zfill(client.astype(str), 3),
        test_fraction=test_fraction,
        seed=seed,
        name="school",
        scaling=scaling,
        scaling_is_private=scaling == "bounds",
    )
    target = Target("score", "points", low=1, high=70, scaled_low=0, scaled_high=1)
    federation = replace(federation, target=target)
    return federation if scaling == "bounds" else standardised(federation)


def from_matlab(content: bytes) -> Arrays:
    """The arrays in MALSAR's file: one cell per school, with features `X` (the last is a constant) and scores `Y`."""
    cells = loadmat(io.BytesIO(content))
    x, y = ([np.asarray(cell, np.float32) for cell in cells[name].ravel()] for name in ("X", "Y"))
    client = np.repeat(np.arange(len(x), dtype=np.int32), [len(rows) for rows in x])
    return {"x": np.concatenate(x), "y": np.concatenate([scores.ravel() for scores in y]), "client": client}


def standardised(federation: Federation) -> Federation:
    """Features with mean 0 and standard deviation 1 on each client's training rows. Looks at raw data: not private."""
    parts = [replace(part, x=part.x.copy()) for part in (federation.train, federation.test)]
    for k, size in enumerate(federation.train.sizes):
        own = federation.train.x[k, :size]
        centre, spread = own.mean(axis=0), own.std(axis=0)
        for part in parts:
            rows = part.x[k, : part.sizes[k]]
            rows -= centre
            rows /= np.where(spread > 1e-6, spread, 1)
    return replace(federation, train=parts[0], test=parts[1])
