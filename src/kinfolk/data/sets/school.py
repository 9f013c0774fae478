"""School: exam scores of 15 362 pupils in 139 London schools (Inner London Education Authority), a regression task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.matlab_cells import from_cells, standardised
from kinfolk.data.sets.source import File, Source
from kinfolk.data.target import Target

SCALINGS = ("bounds", "as_published")
SOURCE = Source(
    name="school",
    title="exam scores of 15 362 pupils; 139 schools",
    home="https://github.com/jiayuzhou/MALSAR",
    licence="none stated; public for research since the 1980s",
    files=(File("school.mat", "https://github.com/jiayuzhou/MALSAR/raw/master/data/school.mat"),),
    convert=from_cells("school.mat", lambda scores: scores.astype(np.float32)),
    checksum="c699e8163401c472ab599db327f00654b6ab881fd18cba6b8727f245d289bc79",
)


def school(
    *, scaling: str = "bounds", test_fraction: float = 0.2, seed: int = 0, directory: str | None = None
) -> Federation:
    """One client per school; the target is the score, scaled from 1..70 to 0..1.

    `bounds` divides the two percentages by 100 and leaves the indicators alone: public, so private. `as_published`
    standardises every feature with each school's raw training statistics, as Liu et al. did: not private.
    """
    if scaling not in SCALINGS:
        raise DataError(f"scaling={scaling!r} is not one of {SCALINGS}")
    arrays = load_arrays(SOURCE, directory)
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
