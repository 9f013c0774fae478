"""LEAF's folders: the halves and nothing else, every user once, and images that are images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kinfolk.data.federation import DataError
from kinfolk.data.sets import femnist
from kinfolk.data.sets.download import obtain
from kinfolk.data.sets.leaf import is_test, json_files

PAPER = [1.0] * 784


def written(path: Path, users: dict[str, tuple[list[Any], list[Any]]], /, **more: Any) -> Path:
    """A file as LEAF writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    counts = [len(y) for _, y in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": data} | more))
    return path


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    """LEAF's own folder: everything, a sample of it, and its halves."""
    data = tmp_path / "femnist" / "data"
    written(data / "all_data" / "all_data_0.json", {"f1": ([PAPER] * 4, [0, 1, 2, 3])})
    written(data / "sampled_data" / "all_data_niid.json", {"f1": ([PAPER] * 4, [0, 1, 2, 3])})
    written(data / "train" / "all_data_niid_train_9.json", {"f1": ([PAPER] * 3, [0, 1, 2])})
    written(data / "test" / "all_data_niid_test_9.json", {"f1": ([PAPER], [3])})
    return data


def test_of_leafs_own_folder_the_halves_are_read_and_each_row_once(leaf: Path) -> None:
    halves = [leaf / "train", leaf / "test"]
    for given in ([leaf], [leaf.parent], halves, [*halves, leaf], [leaf / "train" / ".." / "train", *halves]):
        arrays = femnist.from_files(given)
        assert (arrays["y"].tolist(), arrays["is_test"].tolist()) == ([0, 1, 2, 3], [False, False, False, True])
    assert [path.parent.name for path in json_files([leaf])] == ["train", "test"]


def test_a_folder_says_the_half_and_else_a_word_of_the_name() -> None:
    assert is_test(Path("test/all_data_0.json"))
    assert is_test(Path("mine/all_data_0_niid_0_keep_0_test_9.json"))
    assert not is_test(Path("train/latest_test.json"))
    assert not is_test(Path("mine/latest.json"))


def test_a_user_who_is_twice_in_one_half_is_refused(leaf: Path) -> None:
    other = written(leaf / "train" / "more.json", {"f1": ([PAPER], [5])})
    with pytest.raises(
        DataError, match=r"user='f1' is twice among those to train on, in .*_train_9.json and in .*more"
    ):
        femnist.from_files([leaf])
    written(other, {"f2": ([PAPER], [5])}, users=["f2", "f2"], num_samples=[1, 1])
    with pytest.raises(DataError, match="user='f2' is twice"):
        femnist.from_files([leaf])


@pytest.mark.parametrize(
    ("x", "y", "more", "words"),
    [
        ([PAPER] * 2, [1], {}, "'f2' in .* has 2 rows of x and 1 of y, and num_samples 1: they must agree"),
        ([PAPER], [1, 2], {"num_samples": [1]}, "has 1 rows of x and 2 of y"),
        ([PAPER], [1], {"num_samples": [2]}, "and num_samples 2"),
        ([PAPER[:783]], [1], {}, r"writer 'f2' has rows of shape \(783,\), and an image has 784 pixels"),
        ([[1.5, *PAPER[1:]]], [1], {}, "writer 'f2' has pixels that are no numbers from 0 to 1"),
        ([[-0.1, *PAPER[1:]]], [1], {}, "writer 'f2' has pixels"),
        ([[float("nan"), *PAPER[1:]]], [1], {}, "writer 'f2' has pixels"),
        ([PAPER], [2.5], {}, "y holds 2.5, which is no whole number"),
        ([PAPER], [-1], {}, "y holds -1, which is no whole number"),
        ([PAPER], [300], {}, "y holds 300, which is no whole number"),
        ([PAPER], [62], {}, "y reaches from 0 to 62, not whole numbers from 0 to 61"),
    ],
)
def test_images_that_are_none_and_labels_without_an_image_are_refused(
    x: list[Any], y: list[Any], more: dict[str, Any], words: str, leaf: Path, tmp_path: Path
) -> None:
    written(leaf / "train" / "more.json", {"f2": (x, y)}, **more)
    with pytest.raises(DataError, match=words):
        obtain(femnist.SOURCE, tmp_path / "kept", [leaf])
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("half", ["train", "test"])
def test_femnist_needs_both_halves(half: str, leaf: Path, tmp_path: Path) -> None:
    missing = {"train": "testing", "test": "training"}[half]
    with pytest.raises(DataError, match=f"it has no rows for {missing}: both halves are needed"):
        obtain(femnist.SOURCE, tmp_path / "kept", [leaf / half])
    assert not (tmp_path / "kept").exists()
