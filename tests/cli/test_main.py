"""The command line, as a user meets it."""

from __future__ import annotations

import json
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinfolk.algorithms import REGISTRY
from kinfolk.cli import main
from kinfolk.data.sets.catalogue import BUILT_IN


@pytest.fixture
def kinfolk(small_schools: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command line in this process; returns its exit code and what it printed."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kinfolk", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


def test_the_two_fixed_plans(kinfolk: Any) -> None:
    words = "plan --level client --clients 205 --cohort 100 --rounds 1000 --noise-multiplier 5 --delta 0.004878 --json"
    code, out, _ = kinfolk(*words.split())
    assert code == 0
    assert json.loads(out)["epsilon"] == pytest.approx(12.12, abs=0.01)
    closed_form = 4 * (1000 * math.log(1 / 0.004878)) ** 0.5 / json.loads(out)["epsilon"]
    assert json.loads(out)["noise_multiplier_by_theorem_1"] == pytest.approx(closed_form)
    assert closed_form > 4 * 5, "without sampling, and by a bound: far more noise"
    words = "plan --level example --rows 10000 --batch 100 --steps 1000 --epsilon 1 --delta 1e-5 --json"
    answer = json.loads(kinfolk(*words.split())[1])
    assert answer["noise_multiplier"] == pytest.approx(1.415, abs=0.001)
    assert answer["version"] == 1


def test_plan_in_words_warns_about_delta(kinfolk: Any) -> None:
    words = "plan --level client --clients 205 --cohort 100 --rounds 1000 --noise-multiplier 5 --delta 0.01"
    code, out, _ = kinfolk(*words.split())
    assert code == 0
    assert "epsilon if participation is seen" in out
    assert "allow_large_delta" in out


@pytest.mark.slow
def test_check_lists_everything_and_is_clean(kinfolk: Any) -> None:
    code, out, _ = kinfolk("check", "--json")
    assert code == 0
    assert json.loads(out)["passed"] is True
    assert {row["level"] for row in json.loads(out)["results"]} == {"example", "client", "none"}
    assert "mean_regularized" in kinfolk("check")[1]


@pytest.mark.slow
def test_train_and_compare(kinfolk: Any, tmp_path: Path) -> None:
    short = ("--rounds", 4, "--output", tmp_path, "--delta", 1e-4)
    code, out, _ = kinfolk("train", "--seed", 1, "--epsilon", 2, *short, "--json")
    (row,) = json.loads(out)["results"]
    assert code == 0
    assert row["epsilon"] <= 2
    assert Path(row["run"]).is_dir()
    assert row["simulated"] is True
    code, out, _ = kinfolk("compare", *short, "--seeds", 2)
    assert code == 0
    assert "mean_regularized" in out
    assert "(simulated)" in out


def test_train_from_a_file_and_resume_a_finished_run(kinfolk: Any, tmp_path: Path) -> None:
    config = tmp_path / "e.toml"
    config.write_text('seed = 1\n[privacy]\nlevel = "none"\n[[phases]]\nmethod = "fedavg"\nrounds = 2\n')
    code, out, _ = kinfolk("train", config, "--output", tmp_path / "runs", "--json")
    (row,) = json.loads(out)["results"]
    assert code == 0
    assert row["epsilon"] is None
    code, out, _ = kinfolk("train", "--resume", row["run"], "--json")
    assert (code, json.loads(out)["results"]) == (0, [row])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --epsilon 0 --json", "epsilon=0.0 must be above 0"),
        ("train --rounds 0 --epsilon 1 --json", "rounds=0 must be at least 1"),
        ("train --level secret --epsilon 1 --json", "level='secret'"),
        ("train --method averaging --json", "method='averaging'"),
        ("train --data nowhere --json", "data='nowhere'"),
        ("train missing.toml --json", "missing.toml cannot be read"),
        ("train --resume nowhere --json", "not a run directory"),
        ("report nowhere --json", "not a run directory"),
        ("report nowhere --format docx --json", "format='docx'"),
        ("plan --rows 10 --json", "exactly one"),
        ("plan --rows 10 --rounds 3 --epsilon 1 --json", "belong to the other level"),
        ("plan --level none --json", "level='none'"),
        ("plan --wrong 3 --json", "No such option"),
    ],
)
def test_errors_have_one_shape(kinfolk: Any, words: str, message: str) -> None:
    code, out, _ = kinfolk(*words.split())
    answer = json.loads(out)
    assert code in (1, 2)
    assert answer["version"] == 1
    assert message in answer["error"]["message"]
    code, out, err = kinfolk(*words.removesuffix("--json").split())
    assert "Error:" in err
    assert "Traceback" not in err


def test_an_error_with_brackets_is_shown_whole(kinfolk: Any, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("[[phases]]\nroundz = 3\n")
    assert "'phases[0].roundz'" in " ".join(kinfolk("train", tmp_path / "e.toml")[2].split())


def test_without_a_command_there_is_help_and_no_error(kinfolk: Any) -> None:
    for words in ((), ("deploy",)):
        _, out, err = kinfolk(*words)
        assert "Usage" in out + err
        assert "Error" not in out + err


def test_help_teaches(kinfolk: Any) -> None:
    assert "--resume" in kinfolk("train", "--help")[1]
    assert "leave out one number" in kinfolk("plan", "--help")[1]


def test_simulation_needs_jax_and_numpy_only() -> None:
    """So that a job calibrated elsewhere runs where the accounting library is not."""
    script = """
import sys
for name in ("dp_accounting", "typer", "rich", "mpmath"):
    sys.modules[name] = None
import kinfolk, kinfolk.engines.resident, kinfolk.engines.layout, kinfolk.algorithms, kinfolk.models
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_package_runs_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.argv", ["kinfolk", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("kinfolk", run_name="__main__")
    assert ended.value.code == 0
    assert "train" in capsys.readouterr().out


def test_the_readme_names_every_set_and_every_method() -> None:
    text = (ROOT / "README.md").read_text()
    data, shelf = text.split("## Data\n")[1].split("\n## ")[0], text.split("On the shelf:")[1].split("\n## ")[0]
    assert [name for name in BUILT_IN if f"`{name}`" not in data] == []
    assert f"the {len(BUILT_IN)} sets" in data
    # what has no name of its own there is an option of another
    assert [name for name in REGISTRY if f"`{name}`" not in shelf] == ["mean_regularized_auto"]


def test_the_first_page_links_every_other() -> None:
    """What the site's navigation lists, but for the pages of single papers, which have an index."""
    listed = set(
        re.findall(r"((?:start|guides|explain|results)/[\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    )
    listed -= {f"results/papers/{name}.md" for name in ("full-runs", "pmtl", "model-protected", "cross-silo")}
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert listed - linked == set()


def test_the_readme_links_what_became_of_the_papers() -> None:
    text = (ROOT / "README.md").read_text()
    pages = ("results/papers/index", "explain/theory", "results/pull", *(f"guides/{name}" for name in GUIDES))
    assert [page for page in pages if f"](docs/{page}.md)" not in text] == []


ROOT = Path(__file__).parents[2]
GUIDES = ("outcomes", "people", "publish", "account", "app")
