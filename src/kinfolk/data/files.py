"""Where built-in data sets come from: a directory the user names, or the cache of an earlier download."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from kinfolk.data.federation import DataError


def data_directory() -> Path:
    """`KINFOLK_DATA`, or the user's cache."""
    named = os.environ.get("KINFOLK_DATA")
    return Path(named) if named else Path.home() / ".cache" / "kinfolk"


def load_arrays(name: str) -> dict[str, np.ndarray]:
    """The arrays of `NAME.npz`: rows of all clients one after another, with `x`, `y` and `client`."""
    path = data_directory() / f"{name}.npz"
    if not path.exists():
        raise DataError(
            f"data set {name!r} is not in {path.parent}: set KINFOLK_DATA (or --data-dir) to where {path.name} is"
        )
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}
