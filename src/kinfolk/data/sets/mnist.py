"""Rotated and masked MNIST, as in Liu, Hu, Wu and Smith (2022): silos whose images are turned by one of four angles,
and covered by white patches that are each silo's own.

Read from `mnist.npz` (arrays `x`, `y`; 60 000 training rows first) in KINFOLK_DATA, or downloaded.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kinfolk.data.client_data import ClientData
from kinfolk.data.federation import DataError, Federation
from kinfolk.data.given_rows import drawing, whole_number
from kinfolk.data.partition import masked, patches, turned
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.source import Arrays, File, Source

TRAIN = 60000


def from_idx(files: Sequence[Path]) -> Arrays:
    """Images and labels of the four published files (packed or not, in any order), training rows first."""
    by_part = {path.name.replace(".idx", "-idx").partition("-ubyte")[0]: path for path in files}
    if missing := [f"{part}-ubyte.gz" for part in PARTS if part not in by_part]:
        raise DataError(f"{', '.join(missing)} is missing: give all four files, by their own names")
    raw = [_unpacked(by_part[part].read_bytes()) for part in PARTS]
    x = np.concatenate([np.frombuffer(raw[n], np.uint8, offset=16).reshape(-1, 28, 28) for n in (0, 2)])
    y = np.concatenate([np.frombuffer(raw[n], np.uint8, offset=8) for n in (1, 3)])
    return {"x": x, "y": y, "client": np.zeros(len(y), np.int32)}


def _unpacked(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
SOURCE = Source(
    name="mnist",
    title="70 000 hand-written digits; silos are made, rotated and masked",
    home="https://storage.googleapis.com/cvdf-datasets/mnist/",
    licence="commonly given as CC BY-SA 3.0",
    files=tuple(
        File(f"{part}-ubyte.gz", f"https://storage.googleapis.com/cvdf-datasets/mnist/{part}-ubyte.gz")
        for part in PARTS
    ),
    convert=from_idx,
    called="rotated_mnist",
    needs=("x", "y"),
    checksum="895b8c38a8cf3b7db546c48bb7c436ec021f3f9864578a9c3a5e80b5624487ed",
    by_hand="fetch the four files from there or from https://ossci-datasets.s3.amazonaws.com/mnist/",
)


def rotated_mnist(
    *,
    masks: int = 0,
    silos: int = 40,
    train_rows: int = 1500,
    test_rows: int = 250,
    seed: int = 0,
    rotations: int = 4,
    directory: str | None = None,
) -> Federation:
    """`silos` clients with `train_rows` images each, turned by (client mod `rotations`, 1 to 4) times 90 degrees.

    `masks`: how many 2x2 patches of every image (of 196) a silo paints white, at places of its own.
    """
    whole_number("rotations", rotations, 1, 4, "1 turns nothing, 4 uses all quarters of a circle")
    whole_number("masks", masks, 0, 196, "an image has so many patches of 2x2")
    for name, count in (("silos", silos), ("train_rows", train_rows), ("test_rows", test_rows)):
        whole_number(name, count, 1, TRAIN, "MNIST has so many images")
    arrays = load_arrays(SOURCE, directory)
    x, test_x = arrays["x"][:TRAIN], arrays["x"][TRAIN:]
    y, test_y = arrays["y"][:TRAIN], arrays["y"][TRAIN:]
    generator = drawing(seed)
    if silos * train_rows > len(y) or silos * test_rows > len(test_y):
        raise DataError(f"{silos} silos of {train_rows} + {test_rows} images are more than MNIST has: take fewer")
    train, test = generator.permutation(len(y)), generator.permutation(len(test_y))
    parts = []
    for k in range(silos):
        covered = patches((28, 28), masks, generator)
        for images, labels, order, count in ((x, y, train, train_rows), (test_x, test_y, test, test_rows)):
            own = order[k * count : (k + 1) * count]
            rows = masked(turned(images[own], k % rotations).astype(np.float32) / 255, covered)
            parts.append((rows[..., None], labels[own].astype(np.int32)))
    train_part, test_part = (
        ClientData(np.stack([p[0] for p in half]), np.stack([p[1] for p in half]), np.full(silos, len(half[0][1])))
        for half in (parts[::2], parts[1::2])
    )
    ids = tuple(f"silo-{k:02d}" for k in range(silos))
    return Federation(f"rotated_mnist_{masks}", ids, train_part, test_part, "classes", 10, "pixels divided by 255")
