"""What is known of a set's arrays is asked of every conversion and of every file that was kept."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from kinfolk.data.federation import DataError
from kinfolk.data.sets import har, patients, silos, stackoverflow
from kinfolk.data.sets.download import load_arrays, obtain
from kinfolk.data.sets.source import Facts, Source, content_checksum, flaw, whole


def some(**other: Any) -> dict[str, np.ndarray]:
    return {"x": np.ones((4, 3)), "y": np.arange(4) % 2, "client": np.arange(4) // 2, **other}


FACTS = Facts(features=(3,), clients=2, labels=2)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({}, ""),
        ({"x": np.ones((4, 2))}, r"a row of x has shape \(2,\), not \(3,\)"),
        ({"x": np.full((4, 3), np.nan)}, "x has 12 values that are NaN or infinite"),
        ({"y": np.array([0, 1, 2, 1])}, "y reaches from 0 to 2, not whole numbers from 0 to 1"),
        ({"y": np.array([0, 1, 0.5, 1])}, "y holds float64 that are not whole numbers from 0 to 1"),
        ({"y": np.array([0, 1, np.nan, 1])}, "y holds float64 that are not whole"),
        ({"client": np.array([0, 1, 2, 2])}, "it has 3 clients, not 2"),
        ({"client": np.array([-4, 0, 1, 1])}, "client reaches from -4 to 1, not whole numbers from 0"),
        ({"client": np.array(list("abcd"))}, "client holds <U1 that are not whole numbers from 0"),
    ],
)
def test_arrays_that_are_not_as_they_are_known_to_be(other: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    source = replace(har.SOURCE, facts=FACTS)
    assert bool(flaw(source, some(**other))) == bool(words)
    np.savez(tmp_path / "har.npz", **some(**other))  # type: ignore[arg-type]
    if words:
        with pytest.raises(DataError, match=f"har.npz is broken .{words}"):
            load_arrays(source, tmp_path)
    else:
        assert len(load_arrays(source, tmp_path)["y"]) == 4


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({}, ""),
        ({"indices": np.array([0, 9, 3])}, "indices reaches from 0 to 9, not whole numbers from 0 to 4"),
        ({"indices": np.array([0, -5, 3])}, "indices reaches from -5 to 3"),
        ({"indices": np.array([0, 2])}, "indptr ends at 3, and there are 2 of indices"),
        ({"labels": np.array([0, 1, 7])}, "labels reaches from 0 to 7, not whole numbers from 0 to 1"),
        ({"label_starts": np.array([0, 4])}, "label_starts ends at 4, and there are 3 of labels"),
        ({"indptr": np.array([0, 2, 1, 3])}, "indptr holds no whole numbers that begin with 0 and never fall"),
        ({"indptr": np.array([1, 1, 3])}, "indptr holds no whole numbers that begin with 0"),
    ],
)
def test_sparse_rows_that_do_not_fit_together_are_refused(other: dict[str, np.ndarray], words: str) -> None:
    rows = {"indices": np.array([0, 2, 3]), "x": np.ones(3), "labels": np.array([0, 1, 1])}
    starts = other.get("indptr", other.get("label_starts", np.array([0, 1, 3])))
    if len(starts) == 2:
        starts = {"indptr": np.array([0, 3]), "label_starts": starts}
    else:
        starts = {"indptr": starts, "label_starts": np.linspace(0, 3, len(starts)).astype(int)}
    arrays = rows | starts | {"client": np.zeros(len(starts["indptr"]) - 1, int)} | other
    source = replace(stackoverflow.SOURCE, facts=Facts(features=(5,), labels=2))
    found = flaw(source, arrays)
    assert (words in found) if words else not found
    assert stackoverflow.SOURCE.facts == Facts(features=(10_000,), labels=500)


def test_a_file_of_another_name_may_have_other_features_and_fewer_clients(tmp_path: Path) -> None:
    rows = {"x": np.ones((4, 2)), "client": np.zeros(4, int)}
    np.savez(tmp_path / "har_features.npz", **some(**rows))  # type: ignore[arg-type]
    assert load_arrays(replace(har.SOURCE, facts=FACTS), tmp_path)["x"].shape == (4, 2)
    np.savez(tmp_path / "har_features.npz", **some(y=np.full(4, 9)))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="y reaches from 9 to 9"):
        load_arrays(replace(har.SOURCE, facts=FACTS), tmp_path)


def test_numbers_are_whole_or_refused() -> None:
    assert whole("y", [1.0, 255]).tolist() == [1, 255]
    for values, word in (([2.5], "2.5"), ([-1], "-1"), ([256], "256"), ([float("nan")], "nan"), (["a"], "'a'")):
        with pytest.raises(DataError, match=f"y holds {word}, which is no whole number from 0 to 255"):
            whole("y", values)


def archive(path: Path, columns: int = 561, label: float = 1, subject: float = 1) -> Path:
    """HAR in its published form, 30 people with two rows each; the first as said."""
    people = [subject, *range(2, 31)] * 2
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as packed:
        for half in har.HALVES:
            labels = [label] + [n % 6 + 1 for n in range(59)]
            packed.writestr(f"{half}/X_{half}.txt", "\n".join(" ".join(["0.5"] * columns) for _ in people))
            packed.writestr(f"{half}/y_{half}.txt", "\n".join(map(str, labels)))
            packed.writestr(f"{half}/subject_{half}.txt", "\n".join(map(str, people)))
    path.write_bytes(inner.getvalue())
    return path


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"columns": 7}, r"a row of x has shape \(7,\), not \(561,\)"),
        ({"label": 0}, "y holds -1.0, which is no whole number"),
        ({"label": 2.5}, "y holds 1.5, which is no whole number"),
        ({"label": 7}, "y reaches from 0 to 6, not whole numbers from 0 to 5"),
        ({"subject": -4}, "client holds -5.0"),
        ({"subject": 2}, "it has 29 clients, not 30"),
    ],
)
def test_har_of_another_shape_or_with_other_labels_is_refused(
    other: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=words):
        obtain(har.SOURCE, tmp_path / "kept", [archive(tmp_path / "har.zip", **other)])
    assert not (tmp_path / "kept").exists()
    obtain(har.SOURCE, tmp_path / "kept", [archive(tmp_path / "har.zip")])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: y.__setitem__(0, y[0][:-1]), r"cell 0 has X of shape \(4, 100\) and Y of shape \(3, 1\)"),
        (lambda x, y: x[3].__setitem__((0, 0), np.nan), "x has 1 values that are NaN or infinite"),
        (lambda x, y: y[3].__setitem__((0, 0), np.nan), "Y holds 3 values"),
        (lambda x, y: x.pop(), "X has 22 cells and Y 23"),
        (lambda x, y: (x.pop(), y.pop()), "it has 22 clients, not 23"),
        (lambda x, y: x.__setitem__(slice(None), [part[:, 1:] for part in x]), r"a row of x has shape \(99,\)"),
        (lambda x, y: None, ""),
    ],
)
def test_cells_that_do_not_fit_together_are_refused(change: Any, words: str, tmp_path: Path) -> None:
    x, y = [np.ones((4, 100)) for _ in range(23)], [np.array([[-1.0], [1], [-1], [1]]) for _ in range(23)]
    change(x, y)
    cells = {name: np.empty(len(parts), object) for name, parts in (("X", x), ("Y", y))}
    for name, parts in (("X", x), ("Y", y)):
        cells[name][:] = parts
    savemat(tmp_path / "vehicle.mat", cells)
    if words:
        with pytest.raises(DataError, match=words):
            obtain(silos.VEHICLE, tmp_path / "kept", [tmp_path / "vehicle.mat"])
        assert not (tmp_path / "kept").exists()
    else:
        assert len(obtain(silos.VEHICLE, tmp_path / "kept", [tmp_path / "vehicle.mat"])[0]["y"]) == 92


@pytest.mark.parametrize("source", [patients.PARKINSONS, patients.BRCA], ids=lambda source: source.name)
def test_a_kept_file_of_other_rows_than_the_published_ones_is_refused(source: Source, tmp_path: Path) -> None:
    arrays = {name: np.ones(4, np.float32) for name in source.needs} | {"client": np.arange(4)}
    np.savez(tmp_path / f"{source.name}.npz", **arrays)  # type: ignore[arg-type]
    remedy = rf"remove it and run `kinfolk data get {source.name} --data-dir {tmp_path}`"
    with pytest.raises(DataError, match=rf"holds other rows than .*checksum .*, expected .*: {remedy}"):
        load_arrays(source, tmp_path)
    assert len(load_arrays(replace(source, checksum=content_checksum(arrays)), tmp_path)["client"]) == 4
