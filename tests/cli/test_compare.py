"""Comparisons of methods and budgets, and their picture."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from kinfolk.cli import output
from kinfolk.cli.output import bar
from kinfolk.report import line_chart
from kinfolk.report.compare_chart import privacy_utility
from kinfolk.training.public_numbers import (
    automatic,
    curvature_of,
    descent,
    inputs_of,
    settings,
    step_size_of,
)

ROWS = [
    {
        "method": name,
        "budget": budget,
        "error_spread": 0.01,
        "measured": {
            "constant_is": "own mean",
            "scores": [{"metric": "MAE", "unit": "mm", "value": error, "constant": None}],
        },
    }
    for name, errors in (("local", (0.4, 0.3)), ("a<b", (0.3, 0.29)))
    for budget, error in zip((1.0, 10.0), errors, strict=True)
]


def test_the_picture_shows_every_point_in_its_place() -> None:
    root = ElementTree.fromstring(privacy_utility(ROWS))
    space = "{http://www.w3.org/2000/svg}"
    assert "a<b" in [text.text for text in root.iter(f"{space}text")]
    moves = [g.attrib["transform"] for g in root.iter(f"{space}g") if g.attrib["class"] == "point"]
    points = [tuple(map(float, move[len("translate(") : -1].split())) for move in moves]
    assert len(points) == 4
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = points
    assert x0 == x2 < x1 == x3
    assert y0 < y2  # a larger error is higher up
    assert y0 < y1
    assert y2 < y3 < 380
    whiskers = [line for line in root.iter(f"{space}line") if line.attrib.get("class") == "whisker"]
    assert len(whiskers) == 4, "one for each point"
    assert "± 1 standard deviation over seeds" in [text.text for text in root.iter(f"{space}text")]


def test_whiskers_stay_inside_the_plot_and_apart() -> None:
    rows = [{**row, "error_spread": 0.25} for row in ROWS]
    root = ElementTree.fromstring(privacy_utility(rows))
    lines = [line.attrib for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("class") == "whisker"]
    for line in lines:
        assert line_chart.TOP <= float(line["y2"]) < float(line["y1"]) <= line_chart.HEIGHT - line_chart.BOTTOM
    assert len({line["x1"] for line in lines}) == 4, "none hides another"
    labels = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0.2", "0.4", "0.6"} <= {*labels}, "round numbers"


def test_the_picture_of_one_budget_and_of_none() -> None:
    for rows in (ROWS[:1], [], [{**ROWS[0], "budget": None}]):
        ElementTree.fromstring(privacy_utility(rows))


@pytest.mark.slow
def test_several_methods_and_budgets_on_a_table(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{'xy'[k % 2]},{k % 50},{'yes' if k % 50 > 20 else 'no'}" for k in range(200)]
    Path("t.csv").write_text("\n".join(["who,age,ill", *lines]) + "\n")
    words = ("t.csv", "--client", "who", "--target", "ill", "--rounds", 3, "--seeds", 2, "--epsilon", 1, "--epsilon", 4)
    words += ("--strength", 2)
    code, out, _ = command("compare", *words, "--method", "local", "--method", "mean_regularized", "--json")
    answer = json.loads(out)
    assert code == 0, out
    found = [(row["method"], row["budget"]) for row in answer["results"]]
    assert found == [("local", 1), ("local", 4), ("mean_regularized", 1), ("mean_regularized", 4)]
    assert all(row["epsilon"] <= row["budget"] and row["simulated"] for row in answer["results"])
    assert Path(answer["picture"]).read_text().count('class="point"') == 4 + 2, "and the constant at each budget"
    judged = answer["results"][0]["measured"]
    assert judged["constant_is"] == "own majority"
    assert [score["metric"] for score in judged["scores"]] == ["share of wrong labels", "AUC"]
    assert judged["scores"][1]["constant"] == 0.5
    assert "4 runs compared" in Path(answer["page"]).read_text()
    assert Path("runs/latest").resolve() == Path(answer["results"][-1]["run"]).resolve()
    assert len(json.loads(command("runs", "list", "--json")[1])["runs"]) == 4, "latest is one of them"
    code, out, _ = command("report", *Path("runs").glob("*"), "--output", "r.html", "--json")
    assert code == 0, out
    assert "4 runs compared" in Path("r.html").read_text()
    assert Path("r.html").stat().st_mode & 0o777 == 0o644, "it shows what everybody may see"
    assert Path(answer["page"]).stat().st_mode & 0o777 == 0o600, "it shows private numbers"


def test_a_bar_in_a_file_is_one_whole_line(capsys: pytest.CaptureFixture[str]) -> None:
    name = "mean_regularized, epsilon 3, on a table with a rather long name"
    with bar(False, name) as progress:
        for done in (1, 2):
            progress(done, 2, {"loss": 0.123456, "error": 0.25, "MAE (points)": 4.217, "epsilon": 3.0})
    said = capsys.readouterr().err.splitlines()
    assert said == [f"{name}: 2 of 2 rounds, MAE (points) 4.22, epsilon 3 (simulated)"]


def test_a_bar_moves_before_there_is_anything_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """While counting, calibrating and compiling: it goes to and fro, and says for how long."""
    drawn = io.StringIO()
    monkeypatch.setattr(output, "Console", lambda **_: Console(file=drawn, force_terminal=True, width=120))
    with output.bar(False, "local"):
        time.sleep(1.3)
    frames = {frame for frame in drawn.getvalue().split("\r") if "compiling" in frame}
    assert len(frames) > 3
    assert any("0:00:01" in frame for frame in frames)


def test_after_some_rounds_it_is_known_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling took 50 s, a round takes 2; chunks may take longer than rich's own columns look back (30 s)."""
    clock, pace = iter((50.0, 50.2, 52.0, 152.0)), output._Pace()
    with monkeypatch.context() as patched:
        patched.setattr(output.time, "monotonic", lambda: next(clock))
        assert pace.ends(0, 121) is None, "everything is compiled"
        assert pace.ends(1, 121) is None, "too soon"
        assert pace.ends(1, 121) == 52 + 2 * 120
        assert pace.ends(51, 121) == 152 + 2 * 70


def test_a_bar_shows_how_long_the_rest_takes_and_a_file_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output._Pace, "ends", lambda *_: time.monotonic() + 239.9)
    with output.bar(False, "local") as progress:
        progress(2, 121, {})
        progress(12, 121, {"loss": 1.0})
    said = capsys.readouterr().err.splitlines()
    assert said == ["local: about 4 minutes for the other 119 of 121 rounds", "local: 12 of 121 rounds, not measured"]
    drawn = io.StringIO()
    monkeypatch.setattr(output, "Console", lambda **_: Console(file=drawn, force_terminal=True, width=120))
    with output.bar(False, "local") as progress:
        progress(2, 121, {})
    assert "rounds left: 0:03:5" in drawn.getvalue()


def test_times_are_said_as_people_say_them() -> None:
    said = [output.about(seconds) for seconds in (61, 89, 90, 3600, 5400, 100_000)]
    assert said[:3] == ["about 61 seconds", "about 89 seconds", "about 2 minutes"]
    assert said[3:] == ["about 60 minutes", "about 2 hours", "about 28 hours"]


def test_the_automatic_choice_follows_the_theory() -> None:
    assert automatic("example", [100], 5, 1.0).method == "fedavg"
    assert "only one client" in automatic("example", [100], 5, 1.0).why
    cases = {
        "rows": [automatic("example", [n] * 10, 20, 1.0) for n in (50, 20_000)],
        "budget": [automatic("example", [200] * 10, 20, epsilon) for epsilon in (0.1, 10.0)],
        "clients": [automatic("client", [8] * clients, 5, 1.0) for clients in (2000, 4)],
    }
    for name, (much, little) in cases.items():
        assert much.strength > little.strength, name
        assert ("held loosely" in much.why, "held loosely" in little.why) == (False, True), name
    assert automatic("none", [8] * 30, 5, None).method == "mean_regularized"


def test_training_is_as_long_as_the_noise_allows() -> None:
    strict, usual, weak = (descent("binary", 0, [100] * 20, 10, epsilon) for epsilon in (0.05, 1.0, 50.0))
    assert strict.step_size < usual.step_size < weak.step_size
    assert strict.step_size == pytest.approx(0.5 * 7.5 / 0.25 / 120, rel=0.05), "at least half the usual length"
    assert weak.step_size <= 1 / (0.25 * (1 + 10 / 3)), "no step beyond what the curvature allows"
    assert curvature_of("classes", 6) < curvature_of("classes", 3) < curvature_of("binary", 0) == 0.25
    assert descent("binary", 0, [10_000] * 100, 10, 1.0).rounds < usual.rounds, "what takes longer has fewer rounds"


def test_settings_depend_on_public_numbers_only() -> None:
    from kinfolk.data.tables.schema import Column, Schema

    narrow = Schema(Column("y", low=0, high=1), (Column("x", low=0, high=1),))
    wide = Schema(Column("y", low=0, high=1), tuple(Column(f"x{k}", low=0, high=1) for k in range(200)))
    assert settings("example", step_size_of("number", inputs_of(narrow)), [100]).step_size == 0.5
    assert settings("example", step_size_of("number", inputs_of(wide)), [100]).step_size == pytest.approx(
        3 / 203, rel=0.02
    )
    assert settings("example", step_size_of("number", inputs_of(wide)), [100]).batch_size is None
    assert settings("example", step_size_of("number", inputs_of(wide)), [20_000]).batch_size == 2048
    assert (
        settings("client", step_size_of("number", inputs_of(wide)), [20_000]).rounds
        < settings("example", step_size_of("number", inputs_of(wide)), [100]).rounds
    )


@pytest.mark.slow
def test_what_it_costs_not_to_trust_the_aggregator(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = ("secure",)
    options = [part for kind in kinds for part in ("--aggregator", kind)]
    more = ["--colluding", "6", "--method", "fedavg", "--rounds", "2", "--seeds", "1", "--epsilon", "4", "--json"]
    code, out, _ = command("compare", "--level", "client", *options, *more)
    assert code == 0, out
    found = json.loads(out)["results"]
    assert [row["method"] for row in found] == [f"fedavg, {kind}" for kind in kinds]
    assert all(row["epsilon"] == pytest.approx(4, rel=1e-2) for row in found)
    statements = [json.loads((Path(row["run"]) / "public" / "statement.json").read_text()) for row in found]
    assert [said.get("shared_noise", {}).get("colluding") for said in statements] == [6]
    code, out, said = command("compare", "--level", "client", "--colluding", "6")
    assert code != 0
    assert "--aggregator secure" in out + said
