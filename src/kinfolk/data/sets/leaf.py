"""LEAF's JSON files (Caldas et al., 2018): users, and for each user features `x` and targets `y`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinfolk.data.given_rows import DataError

User = tuple[str, bool, list, list]
"""Name, whether it is from a test file, features, targets."""
HALVES = ("train", "test")
"""The folders, in LEAF's `data`, of what is trained and tested on; others there have the same rows again."""


def json_files(paths: Sequence[Path]) -> list[Path]:
    """The JSON files among these, and in these folders, in the order of their names; each once."""
    found = [file for path in paths for file in (_inside(path) if path.is_dir() else [path])]
    return list({file.resolve(): file for file in found if file.suffix == ".json"}.values())


def _inside(path: Path) -> list[Path]:
    """The JSON files in a folder: where there are halves, of both and of nothing else."""
    halves = next(([home / half for half in HALVES] for home in (path, path / "data") if _has_halves(home)), [path])
    return [file for half in halves for file in sorted(half.rglob("*.json"))]


def _has_halves(path: Path) -> bool:
    return all((path / half).is_dir() for half in HALVES)


def is_test(path: Path) -> bool:
    """Whether a file is for testing: its folder says so, or else its name."""
    if path.parent.name in HALVES:
        return path.parent.name == "test"
    return "test" in re.split("[^a-z]+", path.stem.lower())


def users(paths: Sequence[Path]) -> Iterator[User]:
    """All users of LEAF's files, each once in a half, with as many targets as rows."""
    seen: dict[tuple[str, bool], Path] = {}
    for path in json_files(paths):
        content = json.loads(path.read_text())
        if not {"users", "user_data"} <= set(content):
            raise DataError(f"{path.name} has no users and user_data: give files that LEAF's preprocess.sh wrote")
        test, counts = is_test(path), content.get("num_samples", [None] * len(content["users"]))
        for user, count in zip(content["users"], counts, strict=True):
            rows, half = content["user_data"][user], (str(user), test)
            if half in seen:
                raise DataError(
                    f"user={user!r} is twice among those to {HALVES[test]} on, in {seen[half]} and in {path}: give the "
                    "folders train and test of one sample alone"
                )
            seen[half] = path
            if len(rows["x"]) != len(rows["y"]) or count not in (None, len(rows["y"])):
                said = "" if count is None else f", and num_samples {count}"
                raise DataError(
                    f"user={user!r} in {path.name} has {len(rows['x'])} rows of x and {len(rows['y'])} of y{said}: "
                    "they must agree, so make the file again"
                )
            yield str(user), test, rows["x"], rows["y"]
