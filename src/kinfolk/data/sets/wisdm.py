"""WISDM: what the carrier of a phone does (6 activities), from features of its acceleration; 36 people."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.patients import BOUNDS, number, within
from kinfolk.data.sets.source import Arrays, Facts, File, Source

ARFF = "WISDM_ar_v1.1_transformed.arff"
HISTOGRAM, AVERAGE, PEAK, REST = (-0.1, 0.3), (-10.0, 10.0), (0.0, 5000.0), (0.0, 10.0)
"""Bounds of the kinds of features, from their units."""
COLUMNS = {
    **{f"{axis}{k}": HISTOGRAM for axis in "XYZ" for k in range(10)},
    **{f"{axis}AVG": AVERAGE for axis in "XYZ"},
    **{f"{axis}PEAK": PEAK for axis in "XYZ"},
    **{f"{axis}ABSOLDEV": REST for axis in "XYZ"},
    **{f"{axis}STANDDEV": REST for axis in "XYZ"},
    "RESULTANT": (0.0, 20.0),
}
ACTIVITIES = ("Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking")


def from_arff(files: Sequence[Path]) -> Arrays:
    """From the transformed ARFF file, or the archive that has it: number, user, 43 features, activity."""
    lines = [line.strip() for line in _text(files[0]).splitlines()]
    found = [line.split(",") for line in lines if line and line[0] not in "@%"]
    wrong = next((line for line in found if len(line) != len(COLUMNS) + 3), None)
    if wrong is not None or not found:
        raise DataError(f"{files[0].name} has a row of {len(wrong or [])} values, not {len(COLUMNS) + 3}: give {ARFF}")
    users = np.array([int(line[1]) for line in found])
    names, client = np.unique(users, return_inverse=True)
    return {
        "x": np.array([[number(word) for word in line[2:-1]] for line in found], np.float32),
        "y": np.array([ACTIVITIES.index(line[-1].strip()) for line in found], np.uint8),
        "client": client.astype(np.int32),
        "client_name": names.astype(str),
        "feature_name": np.array(list(COLUMNS)),
    }


def _text(path: Path) -> str:
    if not tarfile.is_tarfile(path):
        return path.read_text()
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if Path(member.name).name == ARFF else None
            if content is not None:
                return content.read().decode()
    raise DataError(f"{path.name} has no {ARFF}: give that file")


SOURCE = Source(
    name="wisdm",
    title="what a phone's carrier does (6) from 43 features of acceleration; 36 people",
    home="https://www.cis.fordham.edu/wisdm/dataset.php",
    licence="free for research, with a citation",
    files=(
        File(
            "WISDM_ar_latest.tar.gz",
            "https://www.cis.fordham.edu/wisdm/includes/datasets/latest/WISDM_ar_latest.tar.gz",
        ),
    ),
    convert=from_arff,
    facts=Facts(gaps=True),
    also=(ARFF,),
    checksum="990db4a8ef2c85f5f42efae1361e03a3209f06d2a73828ff93d9d4fa7dd5880f",
)


def wisdm(*, test_fraction: float = 0.2, seed: int = 0, directory: str | None = None) -> Federation:
    """One client per person; features scaled by bounds from their units, peaks that were not found in the middle."""
    arrays = load_arrays(SOURCE, directory)
    low, high = np.array(list(COLUMNS.values()), np.float32).T
    return from_rows(
        within(arrays["x"], low, high),
        arrays["y"].astype(np.int32),
        np.char.add("person-", np.char.zfill(arrays["client"].astype(str), 2)),
        test_fraction=test_fraction,
        seed=seed,
        name="wisdm",
        outcome="classes",
        classes=len(ACTIVITIES),
        scaling=BOUNDS,
        grouping="person",
    )
