"""Every kind of bad table through the front end: refused in one message, read with a note, or read as it should be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.serving import trained
from kinfolk.serving.trained import Fitted
from kinfolk.training import loop
from tests.bad_input import tables
from tests.bad_input.tables import Case

LONGEST = 1200
"""Characters of a message: a cell of a million is not echoed."""


class Accepted(BaseException):
    """Raised in place of training."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def instead(*_: object, **__: object) -> None:
        raise Accepted

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "run", instead)
    (tmp_path / "graz.csv").write_text(tables.GOOD)
    return tmp_path


def message(out: str) -> str:
    said = json.loads(out)
    assert "error" in said, said
    assert "Traceback" not in said["error"]["message"]
    assert len(said["error"]["message"]) < LONGEST
    return said["error"]["message"]


@pytest.mark.parametrize("case", tables.cases(), ids=lambda case: case.name[:40])
def test_a_table_is_drafted_trained_and_predicted_or_refused(folder: Path, command: Any, case: Case) -> None:
    case.write(folder)
    drafted, out, _ = command("schema", "graz.csv", "lyon.csv", "--target", "risk", "--json")
    notes = "" if drafted else "\n".join(json.loads(out)["notes"])
    refusal = message(out) if drafted else ""
    if not drafted:
        assert len(notes) < 5 * LONGEST
        assert schemas.load(folder / "schema.toml").unconfirmed(), "all of it is a guess"
    try:
        code, out, err = command("train", "graz.csv", "lyon.csv", "--target", "risk", "--seed", 0, "--epsilon", 1)
    except Accepted:
        err = ""
    else:
        assert code == 1
        assert "Traceback" not in err
        refusal = refusal or " ".join(err.split())
    if case.refused:
        assert re.search(case.refused, refusal, re.S), refusal or "it was accepted"
    else:
        assert not refusal
        seen = notes + folder_notes(folder, command)
        assert re.search(case.noted, seen), seen
    predicted(folder, command, case)


def folder_notes(folder: Path, command: Any) -> str:
    """What training says besides, on the way to its first round."""
    from kinfolk.data.choice import DataChoice
    from kinfolk.data.tables import encode

    choice = DataChoice("t", files=("graz.csv", "lyon.csv"), target="risk")
    rows = encode.encoded(encode.understand(choice))
    assert np.isfinite(rows.x).all()
    assert np.abs(rows.x).max() <= 1
    return "\n".join([*rows.notes, *rows.about_one_answer("fedavg")])


SCHEMA = Schema(
    Column("risk", "yes_no", values=("low", "high")),
    (Column("age", low=0, high=120), Column("sex", "category", values=("f", "m")), Column("smoker", "yes_no")),
)
PRIVACY: Any = {"level": "example", "epsilon": 1.0, "delta": 1e-5, "simulated": False, "not_private": []}


def predicted(folder: Path, command: Any, case: Case) -> None:
    """A model gives an answer for every row, or says why not; it never changes the table."""
    weights = np.array([[[0.5], [-0.3], [0.2], [1.0]]], np.float32)
    trained.save(Fitted(SCHEMA, ("lyon",), ((weights, np.zeros((1, 1), np.float32)),), None, PRIVACY), folder / "m")
    path = folder / "lyon.csv"
    before = path.read_bytes() if path.is_file() else b""
    code, out, _ = command("predict", "m", "lyon.csv", "--output", "p.csv", "--json")
    if code:
        assert code == 1
        message(out)
        assert not (folder / "p.csv").exists()
    else:
        assert json.loads(out)["rows"] == (folder / "p.csv").read_text().count("\n") - 1 or "line in it" in case.name
    assert before == (path.read_bytes() if path.is_file() else b"")
