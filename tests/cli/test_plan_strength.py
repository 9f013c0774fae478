"""`kinfolk plan strength` and `plan defaults`, as a user meets them."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from kinfolk.cli import main

WORDS = "plan strength --clients 20 --examples 200 --sigma 0.4 --tau 0.08 --epsilon 0.25 --delta 1e-5"


def call(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["kinfolk", *words.split()])
    with pytest.raises(SystemExit) as stop:
        main.main()
    return int(stop.value.code or 0), capsys.readouterr().out


def test_a_plan_with_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.svg"
    code, out = call(f"{WORDS} --picture {path} --json", monkeypatch, capsys)
    answer = json.loads(out)
    assert code == 0
    assert answer["command"] == "plan strength"
    assert answer["best_error"] < min(answer["error_of_training_alone"], answer["error_of_averaging"])
    # exact calibration needs a little less noise than the 14.567 of Renyi orders
    assert 13 < answer["noise_multiplier"] < 14.567
    assert answer["best_strength"] == pytest.approx(answer["variance_of_an_estimate"] / 0.08**2)
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_words_and_advice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = call(WORDS, monkeypatch, capsys)
    assert code == 0
    assert "best strength" in out
    assert "costs nothing" in " ".join(out.split())
    alike = call(WORDS.replace("--tau 0.08", "--tau 0"), monkeypatch, capsys)[1]
    assert "no strength to choose" in " ".join(alike.split())


def test_errors_and_the_old_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = call(WORDS.replace("--clients 20", "--clients 0") + " --json", monkeypatch, capsys)
    assert (code, json.loads(out)["error"]["kind"]) == (1, "ConfigError")
    words = "plan --level example --rows 10000 --batch 100 --steps 1000 --epsilon 1 --delta 1e-5 --json"
    assert json.loads(call(words, monkeypatch, capsys)[1])["noise_multiplier"] == pytest.approx(1.415, abs=0.001)


@pytest.mark.parametrize("level", ["example", "client", "none"])
def test_what_would_be_chosen_before_there_are_data(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"plan defaults --clients 20 --rows 100 --features 10 --outcome binary --level {level}"
    code, out = call(words, monkeypatch, capsys)
    assert code == 0
    assert "with 20 clients of 100 rows" in out
    answer = json.loads(call(f"{words} --json", monkeypatch, capsys)[1])
    method = "few_releases_binary" if level == "example" else "mean_regularized"
    assert (answer["model"], answer["method"]) == ("logistic", method)
    assert answer["why"] in out
    numbers = json.loads(call(f"{words} --json".replace("binary", "number"), monkeypatch, capsys)[1])
    assert (numbers["method"] == "few_releases") == (level == "example")
    code, out = call(f"{words} --classes 4", monkeypatch, capsys)
    assert (code, "classes=4 does not go with outcome='binary'" in out) == (1, False), "errors are not results"
