"""CelebA: faces by celebrity (Liu et al., 2015; clients as in LEAF), smiling or not.

There is no direct download: its home asks to agree to terms. Converted from the aligned images (`img_align_celeba`,
as a folder or zip) with either LEAF's JSON lists or the two lists that come with the images. Reading JPEG needs Pillow.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.given_rows import drawing, whole_number
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.leaf import HALVES, json_files, users
from kinfolk.data.sets.source import Arrays, Facts, File, Source, whole

ATTRIBUTE = "Smiling"
SIDE = 84
"""Pixels along the side of an image, as in LEAF."""
FEWEST = 5
"""LEAF leaves out celebrities with fewer images."""


def from_files(files: Sequence[Path]) -> Arrays:
    """From images and lists: LEAF's JSON (which also divides training from test images) or CelebA's own two."""
    lists = json_files([path for path in files if path.suffix == ".json" or _is_leaf_folder(path)])
    listed = _of_leaf(lists) if lists else _of_texts(files)
    images = [path for path in files if path not in lists and path.suffix not in (".txt", ".json")]
    images = [path for path in images if not _is_leaf_folder(path)]
    if len(images) != 1:
        raise DataError(f"{len(images)} of the files hold images: give img_align_celeba, as one folder or zip")
    with _opened(images[0]) as read:
        x = np.stack([_pixels(read(name)) for name, _, _, _ in listed])
    names = sorted({user for _, user, _, _ in listed})
    place = {name: number for number, name in enumerate(names)}
    return {
        "x": x,
        "y": whole("y", [label for _, _, label, _ in listed]),
        "client": np.array([place[user] for _, user, _, _ in listed], np.int32),
        "is_test": np.array([test for _, _, _, test in listed]),
        "client_name": np.array(names),
    }


Listed = list[tuple[str, str, float, bool]]
"""Image, celebrity, label, whether it is for testing."""


def _is_leaf_folder(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.json"))


def _of_leaf(lists: Sequence[Path]) -> Listed:
    found = [
        (str(image), user, label, test)
        for user, test, images, labels in users(lists)
        for image, label in zip(images, labels, strict=True)
    ]
    named = [word for path in lists for word in HALVES if word in (path.parent.name, path.stem)]
    if named and len({test for *_, test in found}) == 1:
        raise DataError("LEAF's lists are of one half alone: give both folders, train and test")
    return found


def _of_texts(files: Sequence[Path]) -> Listed:
    texts = {path.name: path for path in files}
    missing = [name for name in ("identity_CelebA.txt", "list_attr_celeba.txt") if name not in texts]
    if missing:
        raise DataError(f"{' and '.join(missing)} is missing: give both lists of CelebA, or LEAF's JSON lists")
    owner = dict(line.split() for line in texts["identity_CelebA.txt"].read_text().splitlines() if line.strip())
    lines = texts["list_attr_celeba.txt"].read_text().splitlines()
    column = lines[1].split().index(ATTRIBUTE) + 1
    listed = []
    for line in lines[2:]:
        words = line.split()
        listed.append((words[0], owner[words[0]], int(int(words[column]) > 0), False))
    counts = Counter(user for _, user, _, _ in listed)
    return [entry for entry in listed if counts[entry[1]] >= FEWEST]


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[str], bytes]]:
    """A function that reads an image by its name, from a folder or an archive."""
    if path.is_dir():
        yield lambda name: (path / name).read_bytes()
        return
    with zipfile.ZipFile(path) as archive:
        places = {Path(entry).name: entry for entry in archive.namelist()}
        yield lambda name: archive.read(places[name])


def _pixels(content: bytes) -> np.ndarray:
    """An image of 84 x 84 pixels and three colours."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading JPEG images needs Pillow: pip install 'kinfolk[images]'") from error
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.uint8)


SOURCE = Source(
    name="celeba",
    title="faces, smiling or not; 9343 celebrities",
    home="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    licence="non-commercial research only",
    files=(
        File("img_align_celeba.zip", digest="md5:00d2c5bc6d35e252742224ab0c1e8fcb"),
        File("identity_CelebA.txt", digest="md5:32bd1bd63d3c78cd57e08160ec5ed1e2"),
        File("list_attr_celeba.txt", digest="md5:75e246fa4810816ffd6ee81facbd244c"),
    ),
    convert=from_files,
    needs=("x", "y", "client", "is_test"),
    facts=Facts(features=(SIDE, SIDE, 3), labels=2),
    reads_folders=True,
    by_hand="agree to its terms at https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, fetch img_align_celeba.zip and "
    "the lists identity_CelebA.txt and list_attr_celeba.txt (or LEAF's JSON lists)",
)


def celeba(
    *,
    celebrities: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    directory: str | None = None,
) -> Federation:
    """One client per celebrity; `celebrities`: only so many, picked by `seed`. LEAF's split is kept."""
    if celebrities is not None:
        whole_number("celebrities", celebrities, 1, 10**6, "leave it out for all")
    arrays = load_arrays(SOURCE, directory)
    chosen = np.unique(arrays["client"])
    chosen = drawing(seed).permutation(chosen)[:celebrities]
    keep = np.isin(arrays["client"], chosen)
    test = arrays["is_test"][keep].astype(bool)
    return from_rows(
        arrays["x"][keep].astype(np.float32) / 255,
        arrays["y"][keep].astype(np.int32),
        np.char.add("celebrity-", np.char.zfill(arrays["client"][keep].astype(str), 5)),
        test=test if test.any() else None,
        test_fraction=None if test.any() else test_fraction,
        seed=seed,
        name="celeba",
        outcome="binary",
        scaling="pixels divided by 255",
    )
