"""CIFAR-10: small colour pictures of ten things (Krizhevsky, 2009), in silos that have few of the classes each."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.partition import classes_per_client, dirichlet
from kinfolk.data.sets.download import Arrays, File, Source, load_arrays

RECORD = 1 + 3 * 32 * 32
"""Bytes of a label and an image."""


def from_binary(files: Sequence[Path]) -> Arrays:
    """From the archive of the binary version: five batches for training, then one for testing."""
    with tarfile.open(files[0]) as archive:
        members = {Path(member.name).name: member for member in archive.getmembers() if member.name.endswith(".bin")}
        names = [*sorted(name for name in members if name.startswith("data_batch")), "test_batch.bin"]
        parts = []
        for name in names:
            content = archive.extractfile(members[name])
            raw = np.frombuffer(b"" if content is None else content.read(), np.uint8)
            if len(raw) % RECORD:
                raise DataError(f"{name} has {len(raw)} bytes, which are no whole images: give {SOURCE.files[0].name}")
            parts.append(raw.reshape(-1, RECORD))
    rows = np.concatenate(parts)
    return {
        "x": rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(),
        "y": rows[:, 0].copy(),
        "client": np.zeros(len(rows), np.int32),
        "is_test": np.arange(len(rows)) >= len(rows) - len(parts[-1]),
    }


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
    convert=from_binary,
    needs=("x", "y", "client", "is_test"),
)


def cifar10(
    *,
    silos: int = 30,
    classes: int = 5,
    concentration: float | None = None,
    seed: int = 0,
    directory: str | None = None,
) -> Federation:
    """Silos with `classes` of the ten classes each, in shares of random size; test images are those of CIFAR-10.

    `concentration`: a Dirichlet distribution of labels instead.
    """
    arrays = load_arrays(SOURCE, directory)
    y, test = arrays["y"].astype(np.int32), arrays["is_test"].astype(bool)
    if concentration is None:
        owner = classes_per_client(y, clients=silos, classes=classes, seed=seed)
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
