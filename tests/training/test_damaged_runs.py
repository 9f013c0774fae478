"""Run directories and exported models that were damaged: one message that names the file, and never a wrong number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.data.choice import DataChoice
from kinfolk.data.tables.schema import Column, Schema, to_toml
from kinfolk.privacy.levels import example_level
from kinfolk.training import loop
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training

pytestmark = pytest.mark.slow

ROWS = "ward,age,risk\n" + "".join(f"{'ab'[k % 2]},{20 + 7 * k % 60},{'yes' if k % 3 else 'no'}\n" for k in range(60))
SCHEMA = Schema(Column("risk", "yes_no"), (Column("age", low=0, high=100),), client="ward")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation on a table, trained once; tests damage copies of it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "t.csv").write_text(ROWS)
    (folder / "s.toml").write_text(to_toml(SCHEMA))
    experiment = Experiment(
        seed=0,
        data=DataChoice("t", files=(str(folder / "t.csv"),), schema=str(folder / "s.toml")),
        model=ModelChoice("logistic"),
        training=Training(None),
        privacy=example_level(epsilon=3.0),
        phases=(Phase("mean_regularized", 2),),
    )
    return loop.run(experiment, folder / "runs").path


def damages(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    yield "missing", None
    yield "empty", b""
    yield "cut", content[: len(content) // 2]
    yield "a list", b"[]"
    yield "foreign", bytes(range(256))
    for place in (3, len(content) // 3, len(content) // 2, 2 * len(content) // 3):
        yield f"byte {place}", content[:place] + bytes([content[place] ^ 0x15]) + content[place + 1 :]


COMMANDS = {
    "show": ("runs", "show", "RUN"),
    "list": ("runs", "list", "."),
    "report": ("report", "RUN", "--output", "r.html"),
    "inside": ("report", "RUN", "--with-private", "--output", "r.html"),
    "predict": ("predict", "RUN", "t.csv", "--output", "p.csv"),
    "export": ("export", "RUN", "--client", "a", "--for-study", "--output", "e"),
    "parquet": ("runs", "export", "RUN", "--with-private", "--output", "q"),
    "resume": ("train", "--resume", "RUN"),
}
READ_BY = {
    "public/experiment.toml": ("show", "report", "predict"),
    "public/environment.json": ("report",),
    "public/statement.json": ("show", "report", "predict"),
    "public/statement.txt": ("show", "report"),
    "public/ledger.jsonl": ("report", "parquet"),
    "public/shared.npz": ("predict", "export"),
    "public/models.npz": ("predict", "export"),
    "public/schema.toml": ("predict",),
    "private/metrics.jsonl": ("show", "inside", "parquet"),
    "private/clients.json": ("inside", "parquet"),
    "private/run.json": ("resume",),
}
"""Files, and commands that read them."""


@pytest.mark.parametrize("name", READ_BY)
def test_a_damaged_file_is_one_message(
    finished: Path, tmp_path: Path, monkeypatch: Any, command: Any, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(ROWS)
    shutil.copytree(finished, tmp_path / "RUN")
    path = tmp_path / "RUN" / name
    content = path.read_bytes()
    whole = predictions(command)
    for kind, damaged in damages(content):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        for used in READ_BY[name]:
            shutil.rmtree(tmp_path / "e", ignore_errors=True)
            (tmp_path / "p.csv").unlink(missing_ok=True)
            code, out, _ = command(*COMMANDS[used], "--json")
            said = json.loads(out)
            where = f"{name}, {kind}, {used}: {said}"
            assert code in (0, 1), where
            if code:
                assert "Traceback" not in said["error"]["message"], where
                assert (
                    Path(name).name in said["error"]["message"]
                    or "not finished" in said["error"]["message"]
                    or ("not a run directory" in said["error"]["message"])
                ), where
            elif used == "predict":
                assert (tmp_path / "p.csv").read_text() == whole, where
            if kind in ("empty", "cut", "a list", "foreign") and name.endswith((".json", ".npz", ".toml")):
                assert code == 1, where
        assert command(*COMMANDS["list"], "--json")[0] == 0, "one damaged run does not hide the others"
        path.write_bytes(content)


def predictions(command: Any) -> str:
    code, out, _ = command(*COMMANDS["predict"], "--json")
    assert code == 0, out
    return Path("p.csv").read_text()


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_an_exported_model_that_was_changed_is_refused(
    finished: Path, tmp_path: Path, monkeypatch: Any, command: Any, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(ROWS)
    assert command("export", finished, "--client", "a", "--for-study", "--output", "RUN", "--json")[0] == 0
    path = tmp_path / "RUN" / name
    content, whole = path.read_bytes(), predictions(command)
    for kind, damaged in damages(content):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        (tmp_path / "p.csv").unlink(missing_ok=True)
        code, out, _ = command(*COMMANDS["predict"], "--json")
        assert code == 1 or Path("p.csv").read_text() == whole, kind
        if code:
            assert any(word in json.loads(out)["error"]["message"] for word in ("model", "not a run directory")), out
        path.write_bytes(content)


def test_models_of_another_run_are_refused(finished: Path, tmp_path: Path, monkeypatch: Any, command: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(ROWS)
    shutil.copytree(finished, tmp_path / "RUN")
    path = tmp_path / "RUN" / "public" / "models.npz"
    with np.load(path) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    for change in ({"ids": np.array(["a"])}, {"ids": np.array([1.0, 2.0])}, {"[0]['weights']": np.zeros((2, 5, 1))}):
        np.savez(path, **{**arrays, **change})
        code, out, _ = command(*COMMANDS["predict"], "--json")
        assert code == 1
        assert "models.npz is damaged" in json.loads(out)["error"]["message"]


@pytest.mark.parametrize("content", [b"", b"PK", b"{}", bytes(300)])
def test_a_damaged_checkpoint_is_one_message(
    finished: Path, tmp_path: Path, monkeypatch: Any, command: Any, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "RUN")
    for name in ("statement.json", "statement.txt"):
        (tmp_path / "RUN" / "public" / name).unlink()
    (tmp_path / "RUN" / "private" / "checkpoint.npz").write_bytes(content)
    code, out, _ = command("train", "--resume", "RUN", "--json")
    assert code == 1
    assert "checkpoint.npz is damaged" in json.loads(out)["error"]["message"]
