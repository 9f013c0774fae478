"""Settings that are allowed and measure nothing, or go wrong while training; and options that would change nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.toml import ConfigError
from kinfolk.training.simulate import simulate
from tests.bad_input import tables
from tests.small import six_schools

FAST = ("--target", "risk", "--level", "none", "--method", "local", "--seed", 0)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    for name in ("lyon", "graz"):
        (tmp_path / f"{name}.csv").write_text(tables.GOOD)
    return ("lyon.csv", "graz.csv")


@pytest.mark.slow
def test_without_test_rows_nothing_is_measured(files: tuple[str, ...], command: Any) -> None:
    words = ("train", *files, *FAST, "--rounds", 1)
    code, out, _ = command(*words, "--test-fraction", 0, "--json")
    (row,) = json.loads(out)["results"]
    assert code == 0
    assert row["error"] is row["worst_decile_error"] is None
    assert "not measured" in command(*words, "--test-fraction", 0)[1]
    for also in (("runs", "show", row["run"]), ("report", row["run"], "--with-private"), ("runs", "list")):
        assert command(*also, "--json")[0] == 0
    code, out, _ = command(*words, "--test-fraction", 0.5, "--json")
    assert json.loads(out)["results"][0]["error"] > 0


@pytest.mark.slow
def test_a_simulation_that_diverges_stops(files: tuple[str, ...], command: Any, tmp_path: Path) -> None:
    for name in files:
        lines = (tmp_path / name).read_text().splitlines()
        rows = [lines[0], *(line.rsplit(",", 1)[0] + f",{k % 9}.5" for k, line in enumerate(lines[1:]))]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    code, out, _ = command("train", *files, *FAST, "--rounds", 30, "--step-size", 1e6, "--json")
    assert code == 1
    assert "weights are NaN or infinite, so the simulation stopped" in json.loads(out)["error"]["message"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, 1e308])
def test_numbers_of_an_algorithm_given_as_an_object_are_checked(value: float) -> None:
    with pytest.raises(ConfigError, match=r"step_size=.* must be above 0"):
        simulate(six_schools(), FedAvg(step_size=value))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lyon.csv", "--target", "risk", "--data", "school"), "--data: tables were given"),
        (("e.toml", "--epsilon", 1), "--epsilon: it is a setting"),
        (("e.toml", "--seed", 3), "--seed: it is a setting"),
        (("--target", "risk"), "--target: it is for tables"),
        (("--schema", "s.toml"), "--schema: it is for tables"),
    ],
)
def test_options_that_would_change_nothing_are_refused(
    files: tuple[str, ...], command: Any, words: tuple[Any, ...], message: str
) -> None:
    Path("e.toml").write_text("seed = 1\n")
    code, out, _ = command("train", *words, "--json")
    assert code == 1
    assert message in json.loads(out)["error"]["message"]
