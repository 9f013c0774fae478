"""Files that are empty, cut short or another set's: one clear error, and nothing is kept."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from kinfolk.data.federation import DataError
from kinfolk.data.sets import celeba, cifar, femnist, har, mnist, patients, school, silos, stackoverflow
from kinfolk.data.sets.catalogue import BUILT_IN
from kinfolk.data.sets.download import load_arrays, obtain
from kinfolk.data.sets.source import Source

SOURCES = [entry.source for entry in BUILT_IN.values() if entry.source is not None]
every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)


def refused(source: Source, files: list[Path], tmp_path: Path) -> str:
    """What is said of files that must leave nothing behind."""
    with pytest.raises(DataError) as caught:
        obtain(source, tmp_path / "kept", files)
    assert not (tmp_path / "kept").exists()
    return str(caught.value)


def of_any_digest(source: Source) -> Source:
    """The same set, whose files may be any: what is left is what its own reader notices."""
    return replace(source, files=tuple(replace(file, digest="") for file in source.files), checksum="")


@every_source
@pytest.mark.parametrize("content", [b"", b"not at all\n", bytes(range(256)) * 20, b"PK\x03\x04", b"\x1f\x8b\x08\x00"])
def test_files_that_are_something_else_are_refused(source: Source, content: bytes, tmp_path: Path) -> None:
    files = [tmp_path / file.name for file in source.files]
    for path in files:
        path.write_bytes(content)
    said = refused(of_any_digest(source), files, tmp_path)
    assert any(path.name in said for path in files)


@every_source
def test_an_empty_folder_is_refused(source: Source, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(source, [tmp_path / "empty"], tmp_path)


def zipped(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, content)
    return out.getvalue()


def tarred(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        packed.addfile(entry, io.BytesIO(content))
    return out.getvalue()


NOISE = np.random.default_rng(0).bytes(20_000)


@pytest.mark.parametrize(
    ("source", "whole"),
    [
        (har.SOURCE, zipped("X_train.txt", NOISE)),
        (silos.VEHICLE, zipped("vehicle.mat", NOISE)),
        (cifar.SOURCE, tarred("data_batch_1.bin", NOISE)),
        (femnist.SOURCE, lzma.compress(NOISE)),
        (mnist.SOURCE, gzip.compress(NOISE)),
        (stackoverflow.SOURCE, lzma.compress(NOISE)),
    ],
    ids=lambda value: value.name if isinstance(value, Source) else "",
)
@pytest.mark.parametrize("flip", [False, True])
def test_archives_cut_short_or_with_other_bytes_are_refused(
    source: Source, whole: bytes, flip: bool, tmp_path: Path
) -> None:
    files = [tmp_path / file.name for file in source.files]
    middle = len(whole) // 2
    for path in files:
        path.write_bytes(
            whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :] if flip else whole[:middle]
        )
    refused(of_any_digest(source), files, tmp_path)


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    x, y = np.empty((1, 2), object), np.empty((1, 2), object)
    for k in range(2):
        x[0, k], y[0, k] = np.ones((10, 28)), np.arange(10.0)[:, None] + 1
    savemat(tmp_path / "school.mat", {"X": x, "Y": y})
    return tmp_path / "school.mat"


def test_scores_are_no_labels(scores: Path, tmp_path: Path) -> None:
    said = refused(silos.GLEAM, [scores], tmp_path)
    assert "Y holds 10 values from 1.0 to 10.0, not -1 and 1" in said


def test_other_rows_than_the_published_ones_are_refused(scores: Path, tmp_path: Path) -> None:
    said = refused(school.SOURCE, [scores], tmp_path)
    assert "not those of school as it is published (checksum " in said
    assert "nothing was kept: fetch school.mat from https://" in said


def test_some_of_the_files_are_not_enough(tmp_path: Path) -> None:
    patient = ",".join(["1"] * 14)
    (tmp_path / "processed.va.data").write_text(f"{patient}\n" * 3)
    said = refused(patients.HEART, [tmp_path / "processed.va.data"], tmp_path)
    assert "processed.cleveland.data, processed.hungarian.data, processed.switzerland.data is missing" in said
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b""))
    said = refused(mnist.SOURCE, [tmp_path / "train-images-idx3-ubyte.gz"], tmp_path)
    assert "train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz is missing" in said


def test_files_given_by_hand_are_held_to_the_digests_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "img_align_celeba").mkdir()
    for name in ("identity_CelebA.txt", "list_attr_celeba.txt"):
        (tmp_path / name).write_text("000001.jpg 1\n")
    files = [tmp_path / "img_align_celeba", *(tmp_path / file.name for file in celeba.SOURCE.files[1:])]
    said = refused(celeba.SOURCE, files, tmp_path)
    assert "identity_CelebA.txt is not the published identity_CelebA.txt (md5 " in said
    assert "expected 32bd1bd63d3c" in said


def written(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


WHOLE = written(x=np.ones((4, 28)), y=np.ones(4), client=np.zeros(4, int))


@pytest.mark.parametrize(
    ("content", "flaw"),
    [
        (b"", "No data left"),
        (b"name,score\n", "pickled"),
        (WHOLE[:-40], "zip"),
        (WHOLE[:300] + bytes([WHOLE[300] ^ 255]) + WHOLE[301:], "CRC"),
        (written(x=np.ones((4, 28)), client=np.zeros(4, int)), "it has no array y"),
        (written(x=np.ones((4, 28)), y=np.ones(3), client=np.zeros(4, int)), "4 rows of x, 3 rows of y"),
        (written(x=np.ones((0, 28)), y=np.ones(0), client=np.zeros(0, int)), "it has no rows"),
    ],
)
def test_a_kept_file_that_is_broken_is_named_with_the_remedy(content: bytes, flaw: str, tmp_path: Path) -> None:
    (tmp_path / "school.npz").write_bytes(content)
    with pytest.raises(
        DataError,
        match=rf"school.npz is broken \(.*({flaw}).*remove it and run `kinfolk data get school --data-dir {tmp_path}`",
    ):
        school.school(directory=str(tmp_path))


@pytest.mark.parametrize("load", [load_arrays, obtain])
def test_what_is_advised_exists(load: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(f"kinfolk data get {name}" == entry.source.command() for name, entry in BUILT_IN.items() if entry.source)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    with pytest.raises(DataError, match="kinfolk data get rotated_mnist"):
        load(mnist.SOURCE, tmp_path)
