"""Data by name, whatever they hold: the model that nobody chose fits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk import Federation, from_rows
from kinfolk.data import registry
from kinfolk.data.sets.catalogue import BuiltIn
from kinfolk.training import run_directory

SHORT = ("--seed", 0, "--rounds", 2, "--json")


def hospitals(*, seed: int = 0, test_fraction: float = 0.2, outcome: str = "binary") -> Federation:
    x = np.random.default_rng(seed).uniform(-1, 1, size=(60, 2)).astype(np.float32)
    y = {"binary": (x[:, 0] > 0).astype(np.int32), "classes": np.arange(60) % 3}[outcome]
    who, classes = np.repeat(["graz", "lyon", "oslo"], 20), 3 if outcome == "classes" else 0
    return from_rows(x, y, who, outcome=outcome, classes=classes, test_fraction=test_fraction, seed=seed)


def wards(*, seed: int = 0, test_fraction: float = 0.2) -> Federation:
    return hospitals(seed=seed, test_fraction=test_fraction, outcome="classes")


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "hospitals", BuiltIn(hospitals))
    monkeypatch.setitem(registry.BUILT_IN, "wards", BuiltIn(wards))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["hospitals", "wards"])
def test_a_set_of_labels_is_trained_by_name(name: str, command: Any) -> None:
    code, out, err = command("train", "--data", name, "--method", "fedavg", "--level", "none", *SHORT)
    assert code == 0, out + err
    (row,) = json.loads(out)["results"]
    assert row["measured"]["scores"][0]["metric"] == "share of wrong labels"
    assert run_directory.open_run(Path(row["run"])).experiment().model.name == "linear"


def test_a_file_without_a_model_is_for_any_outcome(command: Any) -> None:
    text = (
        'seed = 0\n[data]\nname = "hospitals"\n[privacy]\nlevel = "none"\n[[phases]]\nmethod = "fedavg"\nrounds = 2\n'
    )
    Path("e.toml").write_text(text)
    code, out, err = command("train", "e.toml", "--json")
    assert code == 0, out + err
    Path("e.toml").write_text(text + '[model]\nname = "softmax"\n')
    code, _, err = command("train", "e.toml")
    assert code == 1
    assert "predicts classes, but the data holds binary: use 'linear', which fits any" in " ".join(err.split())


@pytest.mark.slow
def test_sets_of_labels_are_compared_and_tuned_by_name(command: Any) -> None:
    code, out, err = command("compare", "--data", "hospitals", "--method", "local", "--seeds", 1, *SHORT)
    assert code == 0, out + err
    words = ("--data", "hospitals", "--option", "step_size=0.1,0.3", "--trials", 2, "--epsilon", 8)
    code, out, err = command("tune", *words, *SHORT)
    assert code == 0, out + err
