"""`kinfolk data`: what there is, getting it by hand, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from kinfolk.cli.train import about_test_rows
from kinfolk.data.choice import DataChoice
from kinfolk.data.sets import patients, school
from kinfolk.data.sets.catalogue import BUILT_IN
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.source import content_checksum


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small School in its published form; what its rows should be is not known."""
    monkeypatch.setitem(BUILT_IN, "school", replace(BUILT_IN["school"], source=replace(school.SOURCE, checksum="")))
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
    assert (said["rows"], said["clients"], said["checksum_is"]) == (20, 2, "none is known to compare")
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
        (("describe", "scool"), "did you mean 'school'?"),
        (("describe", "mnist"), "did you mean 'rotated_mnist'?"),
        (("get", "synthetic_schools"), "there is nothing to get"),
        (("get", "school", "--from", published / "nothing"), "is not there"),
        (("get", "celeba"), "has no direct download"),
        (("get", "gleam", "--from", published / "school.mat"), "Y holds 10 values from 1.0 to 10.0, not -1 and 1"),
    ):
        code, _, err = command("data", *words)
        assert code == 1
        assert message in " ".join(err.split())
    assert not (published / "kept").exists()


def test_other_rows_than_the_published_ones_are_not_kept(
    published: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUILT_IN, "school", replace(BUILT_IN["school"], source=school.SOURCE))
    code, _, err = command("data", "get", "school", "--from", published / "school.mat")
    assert code == 1
    assert "nothing was kept" in " ".join(err.split())
    assert not (published / "kept").exists()


@pytest.mark.parametrize("content", [b"", b"not at all"])
def test_a_kept_file_that_is_broken_is_said_to_be_so(content: bytes, published: Path, command: Any) -> None:
    (published / "kept").mkdir()
    (published / "kept" / "school.npz").write_bytes(content)
    code, _, err = command("data", "describe", "school")
    assert code == 1
    assert "remove it and run `kinfolk data get school`" in " ".join(err.split())
    listed = {row["name"]: row["here"] for row in json.loads(command("data", "list", "--json")[1])["sets"]}
    assert listed["school"].startswith("broken")


def test_an_error_names_the_page_and_how_several_files_are_given(published: Path, command: Any) -> None:
    code, _, err = command("data", "get", "vehicle", "--from", published / "school.mat")
    said = " ".join(err.split())
    assert code == 1
    assert "https://github.com/kenziyuliu/private-cross-silo-fl" in said
    assert "--from A --from B" in said
    assert "once for each" in " ".join(command("data", "get", "--help")[1].replace("│", " ").split())


def test_what_was_not_kept_is_an_error_that_names_the_place(published: Path, command: Any) -> None:
    (published / "kept").write_text("a file, not a directory")
    code, out, err = command("data", "get", "school", "--from", published / "school.mat")
    assert (code, out) == (1, "")
    assert f"{published}/kept/school.npz cannot be written (File exists)" in err


def test_what_is_said_of_a_set_is_not_cut_and_says_whose_rows_are_kept(
    published: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = command("data", "describe", "heart_disease")
    assert code == 0
    assert all(file.url in out for file in patients.HEART.files)
    command("data", "get", "school", "--from", published / "school.mat")
    for checksum, words in (
        ("", "none is known to compare"),
        ("0" * 64, "another than expected"),
        (content_checksum(load_arrays(replace(school.SOURCE, checksum=""))), "as expected"),
    ):
        source = replace(school.SOURCE, checksum=checksum)
        monkeypatch.setitem(BUILT_IN, "school", replace(BUILT_IN["school"], source=source))
        assert f"checksum is: {words}\n" in command("data", "describe", "school")[1]
        assert json.loads(command("data", "describe", "school", "--json")[1])["checksum_is"] == words


def test_advice_goes_where_the_directory_was_named(published: Path, command: Any) -> None:
    elsewhere = published / "else where"
    code, _, err = command("train", "--data", "school", "--data-dir", elsewhere, "--seed", 0, "--rounds", 1)
    assert code == 1
    advice = f"`kinfolk data get school --data-dir '{elsewhere}'`"
    assert advice in err


def test_ctrl_c_says_how_to_go_on_where_there_is_something_to_go_on_with(
    published: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kinfolk.data.sets.download.obtain", interrupted)
    code, _, err = command("data", "get", "school", "--from", published / "school.mat")
    assert (code, err.strip()) == (130, "Error: interrupted")
    monkeypatch.setattr("kinfolk.training.inputs.load_data", interrupted)
    code, _, err = command("train", "--data", "school", "--seed", 0, "--rounds", 1)
    assert code == 130
    assert "kinfolk train --resume RUN" in " ".join(err.split())


def test_a_set_with_its_own_rows_to_test_on_keeps_none_back() -> None:
    assert about_test_rows(DataChoice("femnist")) == []
    assert about_test_rows(DataChoice("school", test_fraction=0.0)) == []
    assert "20% of the rows are kept to test on" in about_test_rows(DataChoice("school"))[0]
