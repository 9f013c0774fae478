"""MATLAB files of multi-task learning: one cell per client, with features `X` and targets `Y`."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from kinfolk.data.federation import DataError, Federation
from kinfolk.data.sets.source import Arrays

BUNDLE = "https://www.dropbox.com/s/gxgnu3imufuoddj/private_silos_data.zip?dl=1"
"""School, Vehicle and GLEAM, as Liu, Hu, Wu and Smith (2022) give them to download."""


def from_cells(name: str, label: Callable[[np.ndarray], np.ndarray]) -> Callable[[Sequence[Path]], Arrays]:
    """What converts `name`, or an archive that has it somewhere; `label` makes targets of what is in `Y`."""

    def convert(files: Sequence[Path]) -> Arrays:
        cells = loadmat(io.BytesIO(_content(files[0], name)))
        x, y = ([np.asarray(cell) for cell in cells[key].ravel()] for key in ("X", "Y"))
        _check(x, y)
        client = np.repeat(np.arange(len(x), dtype=np.int32), [len(rows) for rows in x])
        rows = np.concatenate(x).astype(np.float32)
        return {"x": rows, "y": label(np.concatenate([part.ravel() for part in y])), "client": client}

    return convert


def _check(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> None:
    """Refuses cells that are not one of `X` and one of `Y` per client, with as many rows and columns as they should."""
    if len(x) != len(y):
        raise DataError(f"X has {len(x)} cells and Y {len(y)}: give the set's file, with one of each per client")
    for k, (rows, targets) in enumerate(zip(x, y, strict=True)):
        if rows.ndim != 2 or targets.size != len(rows):
            raise DataError(
                f"cell {k} has X of shape {rows.shape} and Y of shape {targets.shape}: give the set's file, with one "
                "target per row"
            )


def two_classes(values: np.ndarray) -> np.ndarray:
    """Labels -1 and 1 as 0 and 1."""
    found = np.unique(values).tolist()
    if found not in ([-1, 1], [0, 1]):
        raise DataError(
            f"Y holds {len(found)} values from {min(found)} to {max(found)}, not -1 and 1: give the set's file"
        )
    return (values > 0).astype(np.uint8)


def _content(path: Path, name: str) -> bytes:
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        inside = [entry for entry in archive.namelist() if Path(entry).name == name and "__MACOSX" not in entry]
        if not inside:
            raise DataError(f"{path.name} has no {name}: give the file itself, `--from {name}`")
        return archive.read(inside[0])


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
