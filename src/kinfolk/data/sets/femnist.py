"""FEMNIST: hand-written digits and letters by writer (LEAF, Caldas et al., 2018), 62 classes.

Downloaded in TensorFlow Federated's form (3400 writers), or converted from the JSON files that LEAF's scripts write.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from kinfolk.data.client_data import padded
from kinfolk.data.federation import DataError, Federation
from kinfolk.data.given_rows import drawing, whole_number
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.leaf import json_files, users
from kinfolk.data.sets.source import Arrays, Facts, File, Source, whole
from kinfolk.data.sets.tf_example import clients_of, rows, unpacked

PIXELS = 28 * 28
FEWEST = 20
"""Writers with fewer images are left out."""


def from_files(files: Sequence[Path]) -> Arrays:
    """From LEAF's JSON files (or a folder of them), or from TensorFlow Federated's SQLite file, packed or not."""
    if json_files(files):
        return _from_leaf(files)
    if len(files) != 1 or not files[0].is_file():
        raise DataError(
            f"{', '.join(path.name for path in files)}: neither LEAF's JSON nor one SQLite file: give all of the one, "
            "or the other"
        )
    with unpacked(files[0]) as path:
        return _from_tff(path)


def _from_leaf(files: Sequence[Path]) -> Arrays:
    names: dict[str, int] = {}
    parts = []
    for name, test, x, y in users(files):
        parts.append((names.setdefault(name, len(names)), test, _images(name, x), whole("y", y)))
    return _joined(parts, list(names))


def _from_tff(path: Path) -> Arrays:
    parts, names = [], clients_of(path, "all_train")
    place = {name: number for number, name in enumerate(names)}
    for test, split in enumerate(("all_train", "all_test")):
        for name, row in rows(path, split, names):
            parts.append((place[name], bool(test), _images(name, [row["pixels"]]), whole("y", row["label"])))
    return _joined(parts, names)


def _images(writer: str, rows: Sequence[ArrayLike]) -> np.ndarray:
    """Rows of grey values from 0 to 1 as images of bytes."""
    pixels = np.asarray(rows, np.float32)
    if len(rows) and (pixels.ndim != 2 or pixels.shape[1] != PIXELS):
        raise DataError(f"writer {writer!r} has rows of shape {pixels.shape[1:]}, and an image has {PIXELS} pixels")
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise DataError(f"writer {writer!r} has pixels that are no numbers from 0 to 1: make the files again")
    return np.rint(255 * pixels).astype(np.uint8).reshape(-1, 28, 28)


def _joined(parts: list[tuple[int, bool, np.ndarray, np.ndarray]], names: list[str]) -> Arrays:
    if not parts:
        raise DataError("no writer was found: give files that have some")
    if wrong := [names[number] for number, _, x, y in parts if len(x) != len(y)]:
        raise DataError(f"writer {wrong[0]!r} has not as many labels as images: make the files again")
    client = np.concatenate([np.full(len(y), number, np.int32) for number, _, _, y in parts])
    order = np.argsort(client, kind="stable")
    return {
        "x": np.concatenate([x for _, _, x, _ in parts])[order],
        "y": np.concatenate([y for _, _, _, y in parts])[order],
        "client": client[order],
        "is_test": np.concatenate([np.full(len(y), test) for _, test, _, y in parts])[order],
        "client_name": np.array(names),
    }


SOURCE = Source(
    name="femnist",
    title="hand-written digits and letters (62); 3400 writers",
    home="https://github.com/TalwalkarLab/leaf",
    licence="NIST Special Database 19, free use; LEAF is BSD-2",
    files=(
        File(
            "emnist_all.sqlite.lzma",
            "https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma",
            "sha256:c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48",
        ),
    ),
    convert=from_files,
    needs=("x", "y", "client", "is_test"),
    facts=Facts(features=(28, 28), labels=62, halves=True),
    also=("emnist_all.sqlite",),
    reads_folders=True,
    given=("train", "test"),
    by_hand="make it with LEAF (data/femnist/preprocess.sh -s niid --sf 0.05 -k 0 -t sample) and give its folders "
    "train and test, or fetch emnist_all.sqlite.lzma of TensorFlow Federated",
)


def femnist(
    *, writers: int | None = None, most_images: int | None = None, seed: int = 0, directory: str | None = None
) -> Federation:
    """One client per writer, with LEAF's split into training and test images; ink is 1, paper 0.

    `writers`: only so many, picked by `seed`; `most_images`: at most so many training images of each.
    """
    for name, count in (("writers", writers), ("most_images", most_images)):
        if count is not None:
            whole_number(name, count, 1, 10**6, "leave it out for all")
    arrays = load_arrays(SOURCE, directory)
    x, y, client, test = (arrays[name] for name in ("x", "y", "client", "is_test"))
    x = (255 - x.astype(np.float32))[..., None] / 255
    generator = drawing(seed)
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
