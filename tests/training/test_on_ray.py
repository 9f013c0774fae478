"""Pieces of work on Ray: the numbers of one process, whatever is killed. `make test-ray` installs it and runs these."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.training import on_ray
from kinfolk.training.pieces import each
from kinfolk.training.run_files import RunError
from kinfolk.verify import attack_targets
from tests.training.pieces_of_work import always_killed, killed_once, scaled

ray: Any = pytest.importorskip("ray", reason="Ray is not installed: `make test-ray` does it")

NUMBERS = np.arange(3, dtype=np.float32)
SCHOOLS = ("--data", "tests.small:six_schools")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """One Ray for all tests of this file; its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINFOLK_CACHE", "")
        with on_ray.connected(ray, on_ray.LOCAL):
            yield ray.get_runtime_context().gcs_address


def both(command: Any, *words: object) -> list[dict[str, Any]]:
    """What a command says when its pieces are done here, and on Ray."""
    found = []
    for more in ((), ("--on", "ray")):
        code, out, err = command(*words, *more, "--json")
        assert code == 0, out + err
        found.append(json.loads(out))
    return found


def test_pieces_are_done_elsewhere_and_come_back_in_order() -> None:
    pieces = {str(k): float(k) for k in range(6)}
    here, there = (each(scaled, NUMBERS, pieces, on=on) for on in (None, "ray"))
    assert list(there) == list(here)
    for name, result in here.items():
        assert there[name].values["sum"] == result.values["sum"]
        assert there[name].values["process"] != result.values["process"]
        np.testing.assert_array_equal(there[name].arrays["all"], result.arrays["all"])


def test_a_killed_process_loses_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = each(killed_once, tmp_path, {str(k): k for k in range(4)}, on="ray")
    assert capfd.readouterr().out == "", "standard output is for results"
    assert [result.values for result in found.values()] == [
        {"piece": k, "begun": 2 if k == 1 else 1} for k in range(4)
    ], "only the piece that was killed is done again"


def test_a_piece_that_kills_every_process_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "RETRIES", 0)
    with pytest.raises(RunError, match=r"was lost 1 times .WorkerCrashedError"):
        each(always_killed, None, {"greedy": 1}, on="ray")


def test_a_piece_that_fails_has_its_own_error_and_the_others_are_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^piece=-1 must be at least 0") as stop:
        each(scaled, NUMBERS, {"one": 1.0, "bad": -1.0, "two": 2.0}, on="ray", kept=tmp_path)
    assert stop.value.__notes__ == ["That was bad; 2 of 3 pieces are done."]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cluster_is_found_by_its_address(cluster: str) -> None:
    call = f"""
import numpy as np
from kinfolk.training.pieces import each
from tests.training.pieces_of_work import scaled
print(each(scaled, np.arange(3.0), {{"two": 2.0}}, on={cluster!r})["two"].values["sum"])
"""
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "6.0\n", done.stderr


def test_a_comparison_has_the_same_numbers_and_run_directories(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("compare", *SCHOOLS, "--method", "local", "--method", "fedavg", "--rounds", 2, "--seeds", 1)
    here, there = (answer["results"] for answer in both(command, *words, "--output", tmp_path / "runs"))
    paths = [Path(row.pop("run")) for row in (*here, *there)]
    assert there == here
    assert all((path / "public" / "statement.json").exists() for path in paths)
    assert {path.parent for path in paths} == {tmp_path / "runs"}
    for name in ("public/models.npz", "private/clients.json", "public/experiment.toml"):
        for one, other in zip(paths[:2], paths[2:], strict=True):
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_a_tuning_has_the_same_winner(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("tune", *SCHOOLS, "--option", "strength=0.1,10", "--rounds", 2, "--trials", 3, "--seed", 2)
    here, there = both(command, *words, "--epsilon", 5, "--delta", 1e-3, "--batch-size", 0)
    assert there == here
    assert there["options"]


def test_attacks_find_the_same(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    some = [attack_targets.Target(name) for name in ("private_choice", "gaussian_sum")]
    monkeypatch.setattr(attack_targets, "all_targets", lambda: some)
    here, there = (answer["results"] for answer in both(command, "attack", "--all", "--runs", 2000))
    assert there == here
    assert [row["name"] for row in there] == ["private_choice", "gaussian_sum"]
