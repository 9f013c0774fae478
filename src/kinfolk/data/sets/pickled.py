"""Arrays that others pickled into npz files, one file per client (PFLlib and what was made from it): read without
running anything that a pickle may name."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np

from kinfolk.data.given_rows import DataError

KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
"""All that pickled arrays of numbers need."""


class _Arrays(pickle.Unpickler):
    """Makes arrays, and refuses whatever else a pickle asks for."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in KNOWN:
            raise DataError(f"{module}.{name} is asked for, which no arrays need: do not use a file that does so")
        return super().find_class(module, name)


def one_client(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets of the client whose rows a file has, as a mapping with `x` and `y` in its array `data`."""
    with zipfile.ZipFile(path) as archive:
        content = io.BytesIO(archive.read("data.npy"))
    np.lib.format.read_magic(content)
    np.lib.format.read_array_header_1_0(content)
    rows = _Arrays(content).load().item()
    if not isinstance(rows, dict) or not all(isinstance(rows.get(name), np.ndarray) for name in "xy"):
        raise DataError(f"{path} has no arrays x and y: give files with one client's rows each")
    if len(rows["x"]) != len(rows["y"]):
        raise DataError(f"{path} has {len(rows['x'])} rows of x and {len(rows['y'])} of y: fetch it again")
    return rows["x"], rows["y"]
