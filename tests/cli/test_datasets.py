"""`kinfolk data`: what there is, getting it by hand, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    x, y = np.empty((1, 2), object), np.empty((1, 2), object)
    for k in range(2):
        x[0, k], y[0, k] = np.ones((10, 28)), np.arange(10.0)[:, None] + 1
    savemat(tmp_path / "school.mat", {"X": x, "Y": y})
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path / "kept"))
    return tmp_path


def test_files_fetched_by_hand_are_converted_kept_and_found(published: Path, command: Any) -> None:
    code, out, _ = command("data", "list", "--json")
    assert code == 0
    before = {row["name"]: row["here"] for row in json.loads(out)["sets"]}
    assert (before["school"], before["celeba"], before["synthetic_schools"]) == ("no", "no (by hand only)", "yes")
    code, out, err = command("data", "get", "school", "--from", published / "school.mat", "--json")
    assert code == 0, err
    said = json.loads(out)
    assert (said["rows"], said["clients"], said["checksum_is"]) == (20, 2, "another than expected")
    assert Path(said["file"]) == published / "kept" / "school.npz"
    code, out, _ = command("data", "describe", "school", "--json")
    said = json.loads(out)
    assert said["arrays"]["x"] == "float32 (20, 28)"
    assert said["options"]["test_fraction"] == 0.2
    code, out, _ = command("data", "list")
    assert code == 0
    assert "stackoverflow" in out


def test_what_is_not_there_is_refused_with_the_remedy(published: Path, command: Any) -> None:
    for words, message in (
        (("get", "nobody"), "data='nobody' is not one of"),
        (("get", "synthetic_schools"), "there is nothing to get"),
        (("get", "school", "--from", published / "nothing"), "is not there"),
        (("get", "celeba"), "has no direct download"),
        (("get", "gleam", "--from", published / "school.mat", "--from", published / "school.mat"), ""),
    ):
        code, _, err = command("data", *words)
        if message:
            assert code == 1
            assert message in " ".join(err.split())
    assert not list((published / "kept").glob("school*"))
