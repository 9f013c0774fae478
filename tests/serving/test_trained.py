"""What comes after training, from the command line: predictions, exports, runs, ledgers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kinfolk.data.tables import encode, read
from kinfolk.serving import predict_numpy
from kinfolk.serving.export import export
from kinfolk.serving.trained import ExportError, open_models


def write(path: Path) -> Path:
    lines = []
    for k in range(120):
        age, code = (20 + (37 * k) % 70), k % 3
        lines.append(f"{'xyz'[k % 3]},{age if k % 11 else ''},{code},{'yes' if k % 2 else 'no'},{age / 10 + code:.1f}")
    path.write_text("\n".join(["hospital,age,code,smokes,days", *lines]) + "\n")
    return path


SCHEMA = """
client = "hospital"
[target]
name = "TARGET"
[[columns]]
name = "age"
low = 0
high = 100
missing = "indicate"
[[columns]]
name = "code"
kind = "category"
values = ["0", "1", "2"]
"""
TARGETS = {
    "number": ("days", "low = 0\nhigh = 15"),
    "binary": ("smokes", 'kind = "yes_no"'),
    "classes": ("hospital2", 'kind = "category"\nvalues = ["x", "y", "z"]'),
}


@pytest.fixture
def trained(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Trains a release for a task; returns the run and the table."""
    monkeypatch.chdir(tmp_path)
    table = write(tmp_path / "t.csv")
    frame = pl.read_csv(table)
    frame.with_columns(hospital2=frame["hospital"]).write_csv(table)

    def go(task: str = "binary", *words: object, level: str = "example", method: str = "mean_regularized") -> Path:
        name, more = TARGETS[task]
        Path("s.toml").write_text(SCHEMA.replace('name = "TARGET"', f'name = "{name}"\n{more}'))
        own = "--name" in words or "--seed" in words
        named = () if own else ("--name", "study", "--ledger", f"{len(list(Path.cwd().glob('*.jsonl')))}.jsonl")
        fixed = ("--epsilon", 5, "--rounds", 3, "--level", level, "--method", method, "--json")
        code, out, _ = command("train", table, "--schema", "s.toml", *named, *fixed, *words)
        assert code == 0, out
        return Path(json.loads(out)["results"][0]["run"])

    return go


@pytest.mark.parametrize(
    "task", [pytest.param("number", marks=pytest.mark.slow), "binary", pytest.param("classes", marks=pytest.mark.slow)]
)
def test_predictions_are_the_same_in_kinfolk_numpy_and_onnx(
    command: Any, trained: Any, tmp_path: Path, task: str
) -> None:
    import onnxruntime

    run = trained(task)
    code, out, _ = command("predict", run, "t.csv", "--output", "p.parquet", "--json")
    assert code == 0, out
    found = pl.read_parquet("p.parquet")
    assert found.height == 120
    added = {"number": [], "binary": ["probability"], "classes": ["probability_x", "probability_y", "probability_z"]}
    assert json.loads(out)["columns"] == ["prediction", *added[task]]
    code, out, _ = command("export", run, "--client", "y", "--output", "y", "--onnx", "--json")
    answer = json.loads(out)
    assert code == 0, out
    assert answer["notice"] == ""
    assert answer["files"] == ["model.json", "model.onnx", "model.safetensors", "predict.py", "shared.onnx"]
    rows = [row for row in pl.read_csv("t.csv").to_dicts() if row["hospital"] == "y"]
    guesses, chances = predict_numpy.predict("y", rows)
    mine = found.filter(pl.col("hospital") == "y")
    wanted: Any = pytest.approx(guesses.tolist(), rel=1e-5) if task == "number" else guesses.tolist()
    assert mine["prediction"].to_list() == wanted
    x = encode.encode(open_models(Path("y")).schema, read.read(Path("t.csv")))[0][1::3]
    session = onnxruntime.InferenceSession("y/model.onnx", providers=["CPUExecutionProvider"])
    answers: Any = session.run(None, {"features": x})[0]
    if task == "number":
        assert answers[:, 0] == pytest.approx(mine["prediction"].to_numpy(), rel=1e-4)
        assert 0 <= answers.min() <= answers.max() <= 15
    else:
        assert answers == pytest.approx(mine.select(added[task]).to_numpy() if task == "classes" else chances, abs=1e-4)


@pytest.mark.slow
def test_newcomers(command: Any, trained: Any, tmp_path: Path) -> None:
    run = trained()
    pl.read_csv("t.csv").with_columns(hospital=pl.lit("new")).write_csv("new.csv")
    code, out, _ = command("predict", run, "new.csv", "--output", "p.csv", "--json")
    assert code == 0
    assert any("by the shared model: new" in note for note in json.loads(out)["notes"])
    pl.read_csv("t.csv").drop("hospital").write_csv("bare.csv")
    assert (
        "whose rows these are"
        in json.loads(command("predict", run, "bare.csv", "--output", "q.csv", "--json")[1])["error"]["message"]
    )
    assert command("predict", run, "bare.csv", "--client", "x", "--output", "q.csv", "--json")[0] == 0
    code, out, _ = command("predict", run, "p.csv", "--output", "q.csv", "--json")
    assert "has a column 'prediction' already" in json.loads(out)["error"]["message"]
    alone = trained("binary", "--name", "other", method="local")
    code, out, _ = command("predict", alone, "new.csv", "--output", "r.csv", "--json")
    assert code == 1
    assert "'new' was not there in training" in json.loads(out)["error"]["message"]
    assert not Path("r.csv").exists()


@pytest.mark.slow
def test_who_may_have_which_model(command: Any, trained: Any) -> None:
    def message(*words: object) -> str:
        code, out, _ = command("export", *words, "--json")
        return json.loads(out)["error"]["message"] if code else ""

    simulated = trained("binary", "--seed", 1)
    assert "is a simulation" in message(simulated, "--output", "a")
    _, out, _ = command("export", simulated, "--output", "a", "--for-study", "--json")
    assert "SIMULATED" in json.loads(out)["notice"]
    run = trained(level="client")
    assert "its own client only" in message(run, "--output", "b")
    assert not Path("b").exists()
    assert "no model of its own; did you mean" in message(run, "--client", "xx", "--output", "b")
    _, out, _ = command("export", run, "--client", "x", "--output", "b", "--json")
    assert "FOR client 'x' ONLY" in json.loads(out)["notice"]
    assert json.loads(Path("b/model.json").read_text())["clients"] == ["x"]
    _, out, _ = command("export", run, "--shared-only", "--output", "c", "--json")
    assert json.loads(out)["notice"] == ""
    assert open_models(Path("c")).layers[0][0].shape[0] == 0
    assert "is there already" in message(run, "--client", "x", "--output", "b")


def test_onnx_that_disagrees_is_not_written(trained: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fitted = open_models(trained())
    monkeypatch.setattr("kinfolk.serving.to_onnx._expected", lambda *_: np.zeros((64, 2)))
    with pytest.raises(ExportError, match="disagree"):
        export(fitted, tmp_path / "m", client="x", onnx=True)
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_runs_and_ledger(command: Any, trained: Any, tmp_path: Path) -> None:
    first, second = trained("binary", "--seed", 1), trained("binary", "--name", "study")
    rows = json.loads(command("runs", "list", "--json")[1])["runs"]
    assert [row["name"] for row in rows] == [first.name, second.name]
    assert [row["simulated"] for row in rows] == [True, False]
    assert "(simulated)" in command("runs", "list")[1]
    shown = json.loads(command("runs", "show", second, "--json")[1])
    assert shown["statement"]["epsilon"] == rows[1]["epsilon"]
    assert "PRIVACY STATEMENT" in command("runs", "show", second)[1]
    assert command("runs", "resume", second, "--json")[0] == 0
    assert "not a folder" in json.loads(command("runs", "list", "nowhere", "--json")[1])["error"]["message"]
    spent = json.loads(command("ledger", "show", "--json")[1])["parties"]
    promised = {party["party"]: party["epsilon"] for party in shown["statement"]["parties"]}
    assert {row["party"]: row["epsilon"] for row in spent} == pytest.approx(promised, rel=1e-3)
    assert "(simulated)" in command("ledger", "show", first)[1]
    assert command("ledger", "show", tmp_path / "nowhere", "--json")[0] == 1
    command("runs", "export", second, "--output", "tables")
    assert sorted(path.name for path in Path("tables").iterdir()) == ["ledger.parquet", "parties.parquet"]
    _, out, _ = command("runs", "export", second, "--output", "tables", "--with-private", "--json")
    assert json.loads(out)["files"] == ["ledger.parquet", "parties.parquet", "metrics.parquet", "clients.parquet"]
    assert pl.read_parquet("tables/metrics.parquet")["round"].to_list() == [1, 2, 3]


@pytest.mark.slow
def test_four_hospitals_from_raw_files_to_predictions_in_two_commands(
    command: Any, heart_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("train", *heart_files, "--target", "disease", "--epsilon", 1, "--seed", 0, "--json")
    (row,) = json.loads(out)["results"]
    assert code == 0
    assert row["error"] < 0.35  # always guessing the more frequent answer is wrong for 0.45 of all patients
    code, out, _ = command("predict", row["run"], heart_files[0], "--output", "p.csv", "--json")
    assert code == 0
    found = pl.read_csv("p.csv")
    assert (found["prediction"] == found["disease"]).mean() > 0.65  # type: ignore[operator]
