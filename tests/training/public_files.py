"""What a release may leave in its public folder."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinfolk.accounting.statement import Statement
from kinfolk.training import run_directory


def nothing_else_is_public(run: run_directory.Run) -> None:
    """Files and fields of a release's public folder are those that are listed."""
    assert run_directory.unlisted(run.public) == []
    assert set(run.statement()) <= set(Statement.__annotations__)
    environment = json.loads((run.public / "environment.json").read_text())
    assert set(environment) == set(run_directory.Environment.__annotations__)
    for path in (run.public / "shared").iterdir():
        with np.load(path) as file:
            assert set(file.files) == {"[0]['weights']", "[0]['bias']", "round"}
    with np.load(run.public / "models.npz") as file:
        assert set(file.files) == {"[0]['weights']", "[0]['bias']", "ids"}
    with pytest.raises(run_directory.RunError, match="would be public"):
        run_directory.append_json(run.public / "metrics.jsonl", {"error": 0.1})
    with pytest.raises(run_directory.RunError, match="would be public"):
        run_directory.write_json(run.public / "shared" / "errors.json", {"error": 0.1})
