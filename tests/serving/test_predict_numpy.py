"""The program beside exported models reads tables as `kinfolk predict` does, and refuses what it cannot read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kinfolk.data.tables import csv_text, words
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.serving import predict_numpy, trained
from kinfolk.serving.to_onnx import as_onnx
from kinfolk.serving.trained import Fitted

SCHEMA = Schema(
    Column("risk", "yes_no", values=("low", "high")),
    (
        Column("age", low=0, high=100),
        Column("ward", "category", values=("a", "b")),
        Column("smokes", "yes_no"),
        Column("pulse", low=0, high=200, missing="indicate"),
    ),
)
PRIVACY: Any = {"level": "example", "epsilon": 1.0, "delta": 1e-5, "simulated": False, "not_private": []}
TABLE = "age,ward,smokes,pulse,note\n31,a,yes,80,?\n64,B,0,?,007\n50,,no,120,NA\n"


def made(schema: Schema = SCHEMA) -> Fitted:
    """Models nobody trained: predictions depend on every feature."""
    inputs, outputs = len(schema.feature_names()), {"classes": len(schema.target.values)}.get(schema.task, 1)
    weights = np.linspace(-1.0, 1.5, 2 * inputs * outputs).reshape(2, inputs, outputs).astype(np.float32)
    shared = ((weights[0] / 2, np.zeros(outputs, np.float32)),)
    return Fitted(schema, ("graz", "lyon"), ((weights, np.zeros((2, outputs), np.float32)),), shared, PRIVACY)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(TABLE)
    return trained.save(trained.for_client(made(), "lyon"), tmp_path / "model")


def answers(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    predict_numpy.main(list(words), folder)
    return capsys.readouterr().out


def test_the_copies_of_what_tables_say_are_the_same() -> None:
    assert predict_numpy.NO == words.NO
    assert predict_numpy.YES == words.YES
    assert predict_numpy.GAPS == words.GAPS
    assert predict_numpy.SEPARATORS == csv_text.SEPARATORS


def test_the_script_runs_alone_and_helps(folder: Path) -> None:
    run = [sys.executable, "-I", str(folder / "predict.py")]
    out = subprocess.run([*run, "t.csv"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0] == "prediction,probability"
    assert {line.split(",")[0] for line in out[1:]} <= {"low", "high"}
    assert "--allow-missing" in subprocess.run([*run, "--help"], capture_output=True, text=True, check=True).stdout
    wrong = subprocess.run([*run, "nowhere.csv"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert "Traceback" not in wrong.stderr
    assert "nowhere.csv" in wrong.stderr


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_marks_and_separators_change_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], separator: str, mark: bytes
) -> None:
    wanted = answers(folder, capsys, "t.csv")
    Path("u.csv").write_bytes(mark + TABLE.replace(",", separator).replace("\n", "\r\n").encode())
    assert answers(folder, capsys, "u.csv") == wanted


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"age,ward,pulse\n31,a,80\n", "lacks 'smokes'"),
        (b"x,y\n1,2\n", "none of the columns"),
        (b"", "line of names"),
        (b"age,ward,smokes,pulse\n", "no rows"),
        (b"age,age,ward,smokes,pulse\n1,1,a,no,3\n", "each of them once"),
        (b"age,ward,smokes,pulse\n31,a,yes\n", "line 2 has 3 cells"),
        (b"age,ward,smokes,pulse\n31,a,maybe,80\n", "'maybe'"),
        (b"age,ward,smokes,pulse\nold,a,yes,80\n", "'old' is none"),
        (b"age,ward,smokes,pulse\ninf,a,yes,80\n", "'inf' is none"),
        ("age,ward,smokes,pulse\n1,ä,yes,80\n".encode("latin-1"), "no UTF-8"),
    ],
)
def test_tables_it_cannot_read_are_refused(folder: Path, content: bytes, message: str) -> None:
    Path("u.csv").write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        predict_numpy.main(["u.csv"], folder)
    assert message in str(stop.value.code)


def test_columns_may_be_missing_by_declaration_or_by_asking(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("u.csv").write_text("age,ward,smokes\n31,a,yes\n")
    assert len(answers(folder, capsys, "u.csv").splitlines()) == 2
    Path("u.csv").write_text("age,ward\n31,a\n")
    assert len(answers(folder, capsys, "u.csv", "--allow-missing").splitlines()) == 2


def test_neither_the_table_nor_its_cells_are_changed(
    folder: Path, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="is the table itself"):
        predict_numpy.main(["t.csv", "--output", "./t.csv"], folder)
    code, out, _ = command("predict", folder, "t.csv", "--output", "./t.csv", "--json")
    assert code == 1
    assert "is the table itself" in json.loads(out)["error"]["message"]
    assert Path("t.csv").read_text() == TABLE
    code, out, _ = command("predict", folder, "t.csv", "--output", "o.csv", "--json")
    assert code == 0, out
    lines = Path("o.csv").read_text().splitlines()
    assert [",".join(line.split(",")[:5]) for line in lines] == TABLE.splitlines()
    alone = answers(folder, capsys, "t.csv").splitlines()
    assert [line.split(",")[5] for line in lines] == [line.split(",")[0] for line in alone]
    mine = [float(line.split(",")[6]) for line in lines[1:]]
    assert mine == pytest.approx([float(line.split(",")[1]) for line in alone[1:]], abs=1e-5)
    assert command("predict", folder, "t.csv", "--output", "o.parquet", "--json")[0] == 0
    assert pl.read_parquet("o.parquet")["age"].dtype == pl.Int64


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("x,y\n1,2\n2,3\n", (), "none of the columns"),
        ("age,ward,pulse\n31,a,80\n", (), "lacks 'smokes'"),
        (TABLE, ("--output", "o.xlsx"), "endings that can be written"),
        (TABLE, ("--output", "nowhere/o.csv"), "nowhere"),
        (TABLE.replace("note", "prediction"), (), "has a column 'prediction' already"),
    ],
)
def test_kinfolk_predict_refuses_the_same(
    folder: Path, command: Any, content: str, words: tuple[str, ...], message: str
) -> None:
    Path("t.csv").write_text(content)
    code, out, _ = command("predict", folder, "t.csv", *(words or ("--output", "o.csv")), "--json")
    assert code == 1
    assert message in json.loads(out)["error"]["message"]
    assert not Path("o.csv").exists()


def test_onnx_carries_names_and_the_encoding() -> None:
    import onnx

    model = onnx.load_from_string(as_onnx(made(), "lyon"))
    said = {prop.key: json.loads(prop.value) for prop in model.metadata_props}
    assert said["features"] == list(SCHEMA.feature_names())
    assert said["answers"] == ["low", "high"]
    assert said["columns"][0]["high"] == 100
    rows: Any = [{"age": 31, "ward": "a", "smokes": "yes", "pulse": None}]
    x = np.array([predict_numpy.features(said["columns"], row) for row in rows], np.float32)
    assert x.shape[1] == len(said["features"])


def test_labels_of_several_classes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = Schema(Column("kind", "category", values=("x", "y, z", "w")), SCHEMA.columns)
    (tmp_path / "t.csv").write_text(TABLE)
    folder = trained.save(made(schema), tmp_path / "m")
    out = answers(folder, capsys, str(tmp_path / "t.csv"), "--client", "graz")
    assert out.splitlines()[0] == 'prediction,probability_x,"probability_y, z",probability_w'
