"""Downloads, tried on a file of our own: converted, checked, kept; refused when it has changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from kinfolk.data.federation import DataError
from kinfolk.data.sets import download, school


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file like MALSAR's at another address, and an empty cache."""
    generator = np.random.default_rng(0)
    x, y = np.empty((1, 3), object), np.empty((1, 3), object)
    for k, size in enumerate((5, 7, 6)):
        x[0, k] = generator.integers(0, 90, size=(size, 28)).astype(float)
        y[0, k] = generator.integers(1, 70, size=(size, 1)).astype(float)
    savemat(tmp_path / "school.mat", {"X": x, "Y": y})
    monkeypatch.delenv("KINFOLK_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(school, "HOME", (tmp_path / "school.mat").as_uri())
    return tmp_path


def test_a_download_is_converted_checked_and_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = school.from_matlab((home / "school.mat").read_bytes())
    assert arrays["x"].shape == (18, 28)
    assert arrays["client"].tolist() == [0] * 5 + [1] * 7 + [2] * 6
    monkeypatch.setattr(school, "CHECKSUM", download.content_checksum(arrays))
    first = school.school()
    assert first.ids == ("000", "002", "001")
    (home / "school.mat").unlink()
    np.testing.assert_array_equal(school.school().train.x, first.train.x)  # from the cache


def test_a_changed_download_is_refused(home: Path) -> None:
    with pytest.raises(DataError, match="has changed"):
        school.school()
    assert not (home / "home").exists()


def test_no_network_says_what_to_do(home: Path) -> None:
    (home / "school.mat").unlink()
    with pytest.raises(DataError, match="set KINFOLK_DATA"):
        school.school()


@pytest.mark.usefixtures("school_data")
def test_the_expected_checksum_is_that_of_the_published_set() -> None:
    import os

    with np.load(Path(os.environ["KINFOLK_DATA"]) / "school.npz") as file:
        assert download.content_checksum({name: file[name] for name in file.files}) == school.CHECKSUM
