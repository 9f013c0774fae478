"""Commands that are many simulations: cut off, they go on where they were; `--on` is for those alone."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kinfolk.cli import output
from kinfolk.training import loop
from kinfolk.verify import attack_targets

COMPARE = ("compare", "--method", "local", "--method", "fedavg", "--rounds", 12, "--seeds", 1)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("small_schools")
def test_a_comparison_that_is_cut_off_goes_on_with_what_is_left(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(command(*COMPARE, "--output", "whole", "--json")[1])["results"]
    assert not Path("whole/unfinished").exists()

    saved = loop.run_directory.append_json
    chunks: list[Path] = []

    def cut_off(path: Path, value: object) -> None:
        saved(path, value)
        chunks.append(path)
        if sum("fedavg" in str(chunk) for chunk in chunks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop.run_directory, "append_json", cut_off)
    code, _, said = command(*COMPARE)
    assert code == 130
    assert "--resume" in said
    before = {path.name for path in Path("runs").glob("*-*")}
    assert len(before) == 2
    rounds = len(chunks)

    monkeypatch.setattr(
        loop.run_directory, "append_json", lambda path, value: (chunks.append(path), saved(path, value))
    )
    code, out, _ = command(*COMPARE, "--resume", "--json")
    assert code == 0, out
    again = json.loads(out)["results"]
    assert {Path(row["run"]).name for row in again} == before, "no run was begun anew"
    assert not any("local" in str(chunk) for chunk in chunks[rounds:]), "what was finished is not computed again"
    assert [{**row, "run": ""} for row in again] == [{**row, "run": ""} for row in whole]
    assert not Path("runs/unfinished").exists()


@pytest.mark.usefixtures("small_schools")
def test_there_is_nothing_to_go_on_with(command: Any) -> None:
    code, _, said = command(*COMPARE, "--resume")
    assert code == 1
    assert "nothing of this command with these settings, data and versions" in " ".join(said.split())


def test_an_attack_that_fails_names_itself_and_keeps_the_others(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [attack_targets.Target("gaussian_sum"), attack_targets.Target("nobody")]
    monkeypatch.setattr(attack_targets, "all_targets", lambda: some)
    made = attack_targets.problem

    def refused(target: attack_targets.Target) -> Any:
        if target.name == "nobody":
            raise ValueError("name='nobody' is unknown")
        return made(target)

    monkeypatch.setattr(attack_targets, "problem", refused)
    code, out, _ = command("attack", "--all", "--runs", 200, "--json")
    assert code == 1
    assert json.loads(out)["error"]["message"].splitlines() == [
        "name='nobody' is unknown",
        "That was nobody; 1 of 2 pieces are done.",
        "The same command with --resume goes on with what is left.",
    ]
    monkeypatch.setattr(attack_targets, "problem", lambda _: made(attack_targets.Target("private_choice")))
    code, out, _ = command("attack", "--all", "--runs", 200, "--resume", "--json")
    assert [row["name"] for row in json.loads(out)["results"]] == ["gaussian_sum", "private_choice"]
    assert code == 0


@pytest.mark.parametrize("words", [("attack", "gaussian_sum"), ("train", "--seed", 0)])
def test_one_piece_is_not_for_ray(command: Any, words: tuple[object, ...]) -> None:
    code, _, said = command(*words, "--on", "ray")
    assert code != 0
    assert "--on" in said


def test_a_bar_over_pieces_moves_and_counts_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    monkeypatch.setattr(output, "Console", lambda **_: Console(file=drawn, force_terminal=True, width=120))
    with output.count_bar(False, "attack", 3) as done:
        done("a result")
        done(ValueError("an error"))
        time.sleep(1.2)
    assert "2/3" in drawn.getvalue()
    assert "attack, 1 failed" in drawn.getvalue()
    assert "0:00:01" in drawn.getvalue()
