"""LEAF's JSON files (Caldas et al., 2018): users, and for each user features `x` and targets `y`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinfolk.data.federation import DataError

User = tuple[str, bool, list, list]
"""Name, whether it is from a test file, features, targets."""


def json_files(paths: Sequence[Path]) -> list[Path]:
    """The JSON files among these, and in these folders, in the order of their names."""
    found = [file for path in paths for file in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]
    return [file for file in found if file.suffix == ".json"]


def users(paths: Sequence[Path]) -> Iterator[User]:
    """All users of LEAF's files; a file is for testing if it, or its folder, is called so."""
    for path in json_files(paths):
        content = json.loads(path.read_text())
        if not {"users", "user_data"} <= set(content):
            raise DataError(f"{path.name} has no users and user_data: give files that LEAF's preprocess.sh wrote")
        test = "test" in path.name or path.parent.name == "test"
        for user in content["users"]:
            rows = content["user_data"][user]
            yield str(user), test, rows["x"], rows["y"]
