"""Clients' files of pickled arrays: pictures come back byte by byte, and nothing else is run."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.data.federation import DataError
from kinfolk.data.sets import cifar
from kinfolk.data.sets.download import obtain
from kinfolk.data.sets.pickled import one_client

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), np.uint8)
LABELS = np.arange(60) % 10


def written(path: Path, rows: Any, **change: Any) -> Path:
    """A client's file as PFLlib writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x = (PIXELS[rows].transpose(0, 3, 1, 2) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    np.savez_compressed(path, data=np.array({"x": x, "y": LABELS[rows]} | change))
    return path


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(cifar, "PICTURES", 60)
    for k in range(2):
        written(tmp_path / "Cifar10" / "train" / f"{k}.npz", slice(20 * k, 20 * k + 20))
        written(tmp_path / "Cifar10" / "test" / f"{k}.npz", slice(40 + 10 * k, 50 + 10 * k))
    (tmp_path / "Cifar10" / "config.json").write_text("{}")
    return [tmp_path / "Cifar10" / half for half in ("train", "test")]


def test_cifar_comes_from_folders_of_clients_byte_by_byte(folders: list[Path], tmp_path: Path) -> None:
    for number, given in enumerate((folders, folders[::-1], [folders[0].parent])):
        arrays, _ = obtain(cifar.SOURCE, tmp_path / str(number), given)
        np.testing.assert_array_equal(arrays["x"], PIXELS)
        np.testing.assert_array_equal(arrays["y"], LABELS)
        np.testing.assert_array_equal(arrays["is_test"], np.arange(60) >= 40)
    data = cifar.cifar10(directory=str(tmp_path / "0"), silos=2, classes=5)
    assert (len(data.ids), int(data.train.sizes.sum()), int(data.test.sizes.sum())) == (2, 40, 20)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": LABELS[:9]}, "has 10 rows of x and 9 of y"),
        ({"y": LABELS[:10] + 0.5}, "y holds 0.5, which is no whole number"),
        ({"y": LABELS[:10] + 9}, "y reaches from 0 to 18, not whole numbers from 0 to 9"),
        ({"x": np.zeros((10, 3, 16, 32), np.float32)}, "no pictures of 3x32x32 values from -1 to 1"),
        ({"x": np.full((10, 3, 32, 32), 0.3, np.float32)}, "no pictures of"),
        ({"x": np.full((10, 3, 32, 32), 3, np.float32)}, "no pictures of"),
        ({"x": np.full((10, 3, 32, 32), np.nan, np.float32)}, "no pictures of"),
        ({"x": None}, "has no arrays x and y"),
    ],
)
def test_other_files_of_clients_are_refused(
    change: dict[str, Any], words: str, folders: list[Path], tmp_path: Path
) -> None:
    written(folders[1] / "0.npz", slice(40, 50), **change)
    with pytest.raises(DataError, match=words):
        obtain(cifar.SOURCE, tmp_path / "kept", folders)
    assert not (tmp_path / "kept").exists()


def test_one_of_the_folders_is_not_enough(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="2 files have 40 pictures, not 60: a client's file is missing, or one of the folders"
    ):
        obtain(cifar.SOURCE, tmp_path / "kept", folders[:1])


class Harm:
    """A pickle of it makes a folder when it is read by pickle itself."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_asks_for_more_than_arrays_is_not_run(tmp_path: Path) -> None:
    path = written(tmp_path / "0.npz", slice(0, 2), more=Harm(tmp_path / "harmed"))
    with pytest.raises(DataError, match=r"mkdir is asked for, which no arrays need"):
        one_client(path)
    assert not (tmp_path / "harmed").exists()
    with zipfile.ZipFile(path) as archive:
        content = archive.read("data.npy")
    pickle.loads(content[content.index(b"\n") + 1 :])
    assert (tmp_path / "harmed").exists()  # the test can fail
