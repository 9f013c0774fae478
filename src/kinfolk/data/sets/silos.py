"""Vehicle and GLEAM, the small silos of Liu, Hu, Wu and Smith (2022): sensors by the road, wearers of glasses.

Both come as one MATLAB file with a cell per silo. Features are standardised with each silo's own training statistics,
as its users do: that looks at raw data, and every statement says so.
"""

from __future__ import annotations

import numpy as np

from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.sets.download import kept, load_arrays
from kinfolk.data.sets.matlab_cells import BUNDLE, from_cells, standardised, two_classes
from kinfolk.data.sets.source import Facts, File, Source

OWN = "each silo's own statistics"
VEHICLE = Source(
    name="vehicle",
    title="kind of a passing vehicle (2) from 100 acoustic and seismic features; 23 sensors",
    home="https://github.com/kenziyuliu/private-cross-silo-fl",
    licence="none stated",
    files=(File("private_silos_data.zip", BUNDLE),),
    convert=from_cells("vehicle.mat", two_classes),
    facts=Facts(features=(100,), clients=23, labels=2),
    others=("vehicle_ditto_train",),
    also=("vehicle.mat",),
    by_hand="fetch private_silos_data.zip (School, Vehicle, GLEAM) named on that page, or vehicle.mat of Mocha",
)
GLEAM = Source(
    name="gleam",
    title="eating or not (2) from the motion of glasses; 38 wearers",
    home="https://github.com/kenziyuliu/private-cross-silo-fl",
    licence="none stated; free for research",
    files=(File("private_silos_data.zip", BUNDLE),),
    convert=from_cells("gleam.mat", two_classes),
    facts=Facts(clients=38, labels=2),
    also=("gleam.mat",),
    by_hand="fetch private_silos_data.zip (School, Vehicle, GLEAM) named on that page",
)


def vehicle(*, test_fraction: float = 0.25, seed: int = 0, directory: str | None = None) -> Federation:
    """One client per sensor.

    Where only `vehicle_ditto_train.npz` is there, the small part on which Ditto trains (1860 of 43 695 rows), that is
    read, and the federation is called `vehicle_part`.
    """
    path = kept(VEHICLE, directory)
    part = path is not None and path.stem != VEHICLE.name
    return _silos("vehicle_part" if part else "vehicle", VEHICLE, test_fraction, seed, directory)


def gleam(*, test_fraction: float = 0.25, seed: int = 0, directory: str | None = None) -> Federation:
    """One client per wearer."""
    return _silos("gleam", GLEAM, test_fraction, seed, directory)


def _silos(name: str, source: Source, test_fraction: float, seed: int, directory: str | None) -> Federation:
    arrays = load_arrays(source, directory)
    federation = from_rows(
        arrays["x"].astype(np.float32),
        arrays["y"].astype(np.int32),
        np.char.add("silo-", np.char.zfill(arrays["client"].astype(str), 2)),
        test_fraction=test_fraction,
        seed=seed,
        name=name,
        outcome="binary",
        scaling=OWN,
        scaling_is_private=False,
    )
    return standardised(federation)
