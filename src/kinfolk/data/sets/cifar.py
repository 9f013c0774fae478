"""CIFAR-10: small colour pictures of ten things (Krizhevsky, 2009), in silos that have few of the classes each.

Downloaded in its binary form, or converted from folders `train` and `test` of npz files with one client's pictures
each, as PFLlib makes them and FedLoRE (github.com/zeruishao/FedLoRE, `dataset/Cifar10`) has them.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.partition import classes_per_client, dirichlet
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.leaf import is_test
from kinfolk.data.sets.pickled import one_client
from kinfolk.data.sets.source import Arrays, Facts, File, Source, whole

PFLLIB = "PFLlib or FedLoRE"
RECORD = 1 + 3 * 32 * 32
"""Bytes of a label and an image."""
PICTURES = 60_000
"""In both halves together."""


def from_files(files: Sequence[Path]) -> Arrays:
    """From the archive of the binary version, or from folders of clients' npz files."""
    inside = [file for path in files for file in (path.rglob("*.npz") if path.is_dir() else [path])]
    clients = sorted((file for file in inside if file.suffix == ".npz"), key=lambda file: (is_test(file), file.name))
    return _from_clients(clients) if clients else from_binary(files)


def _from_clients(files: Sequence[Path]) -> Arrays:
    """All clients' pictures, whose values reach from -1 to 1; who had them is forgotten, as silos are made."""
    images, labels = [], []
    for path in files:
        x, y = one_client(path)
        values = 127.5 * (x + 1)
        pixels = np.rint(values)
        if x.shape[1:] != (3, 32, 32) or not ((pixels >= 0) & (pixels < 256) & (abs(pixels - values) < 0.01)).all():
            raise DataError(f"{path} has no pictures of 3x32x32 values from -1 to 1: give those of {PFLLIB}")
        images.append(pixels.astype(np.uint8).transpose(0, 2, 3, 1))
        labels.append(whole("y", y))
    if (count := sum(map(len, images))) != PICTURES:
        raise DataError(
            f"{len(files)} files have {count} pictures, not {PICTURES}: a client's file is missing, or one of the "
            "folders train and test; give all of them"
        )
    return {
        "x": np.concatenate(images),
        "y": np.concatenate(labels),
        "client": np.zeros(count, np.int32),
        "is_test": np.repeat([is_test(path) for path in files], [len(y) for y in labels]),
    }


def from_binary(files: Sequence[Path]) -> Arrays:
    """From the archive of the binary version, or its folder: five batches for training, then one for testing."""
    parts = []
    for name, raw in _batches(files[0]):
        if len(raw) % RECORD:
            raise DataError(f"{name} has {len(raw)} bytes, which are no whole images: give {SOURCE.files[0].name}")
        parts.append(raw.reshape(-1, RECORD))
    if (count := sum(map(len, parts))) != PICTURES:
        raise DataError(f"{files[0]} has {count} pictures in .bin files, not {PICTURES}: give {SOURCE.files[0].name}")
    rows = np.concatenate(parts)
    return {
        "x": rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(),
        "y": rows[:, 0].copy(),
        "client": np.zeros(len(rows), np.int32),
        "is_test": np.arange(len(rows)) >= len(rows) - len(parts[-1]),
    }


def _batches(path: Path) -> list[tuple[str, np.ndarray]]:
    """The batches of the binary version, packed or not, the one for testing last; none where it is another version."""
    if path.is_dir():
        return [(file.name, np.fromfile(file, np.uint8)) for file in sorted(path.rglob("*.bin"))]
    with tarfile.open(path) as archive:
        members = {member.name: archive.extractfile(member) for member in archive if member.name.endswith(".bin")}
        contents = [(name, own.read()) for name, own in sorted(members.items()) if own is not None]
    return [(name, np.frombuffer(content, np.uint8)) for name, content in contents]


SOURCE = Source(
    name="cifar10",
    title="60 000 pictures of ten things; silos are made, with few classes each",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; free for research",
    files=(
        File(
            "cifar-10-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    convert=from_files,
    facts=Facts(features=(32, 32, 3), labels=10, halves=True),
    needs=("x", "y", "client", "is_test"),
    reads_folders=True,
    by_hand="fetch cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html (or folders train and test "
    "of PFLlib's npz files, dataset/Cifar10 of https://github.com/zeruishao/FedLoRE: `--from train --from test`)",
)


def cifar10(
    *,
    silos: int = 30,
    classes: int | None = None,
    concentration: float | None = None,
    seed: int = 0,
    directory: str | None = None,
) -> Federation:
    """Silos with `classes` (5) of the ten classes each, in shares of random size; test images are those of
    CIFAR-10, or of the folder `test`.

    `concentration`: a Dirichlet distribution of labels instead.
    """
    if concentration is not None and classes is not None:
        raise DataError(
            f"classes={classes!r} and concentration={concentration!r} are two ways to make silos: give one of them"
        )
    arrays = load_arrays(SOURCE, directory)
    y, test = arrays["y"].astype(np.int32), arrays["is_test"].astype(bool)
    if concentration is None:
        owner = classes_per_client(y, clients=silos, classes=5 if classes is None else classes, seed=seed)
    else:
        owner = dirichlet(y, clients=silos, concentration=concentration, seed=seed)
    keep = owner >= 0
    return from_rows(
        arrays["x"][keep].astype(np.float32) / 255,
        y[keep],
        np.char.add("silo-", np.char.zfill(owner[keep].astype(str), 2)),
        test=test[keep],
        seed=seed,
        name="cifar10",
        outcome="classes",
        classes=10,
        scaling="pixels divided by 255",
    )
