"""From raw files to models, as somebody new types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kinfolk.accounting import ledger
from kinfolk.data.tables import schema
from kinfolk.training import loop, run_directory


def write(path: Path, clients: str = "xyz", rows: int = 90) -> Path:
    lines = [f"{clients[k % len(clients)]},{30 + k % 40},{'ab'[k % 2]},{int(k % 3 > 0)}" for k in range(rows)]
    path.write_text("\n".join(["hospital,age,ward,outcome", *lines]) + "\n")
    return path


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "hospitals.csv")


WORDS = ("--client", "hospital", "--target", "outcome", "--epsilon", 1, "--rounds", 3, "--json")


def confirmed(draft: Path) -> Path:
    """The draft as its owner would leave it."""
    text = draft.read_text().replace("confirmed = false", "confirmed = true")
    draft.write_text(text)
    return draft


@pytest.mark.slow
def test_a_release_needs_every_entry_of_the_schema_confirmed(command: Any, table: Path, tmp_path: Path) -> None:
    code, out, _ = command("schema", table, "--client", "hospital", "--target", "outcome", "--json")
    assert (code, json.loads(out)["guesses"]) == (0, ["outcome", "age", "ward"])
    code, out, _ = command("train", table, "--schema", "schema.toml", "--name", "patients", *WORDS)
    assert code == 1
    assert "outcome, age, ward" in json.loads(out)["error"]["message"]
    assert not (tmp_path / "ledgers").exists()
    confirmed(tmp_path / "schema.toml")
    code, out, _ = command("train", table, "--schema", "schema.toml", *WORDS, "--name", "ward-2024")
    answer = json.loads(out)
    assert code == 0
    (row,) = answer["results"]
    assert row["simulated"] is False
    assert row["private"] == ["error", "worst_decile_error", "measured"], "test errors are private in a release"
    assert any("ward-2024" in note for note in answer["notes"])
    lines = ledger.read_lines(tmp_path / "ledgers" / "ledger.jsonl")
    assert {line.party for line in lines} == {"x", "y", "z"}
    run = run_directory.open_run(Path(row["run"]))
    assert (run.public / "schema.toml").exists()
    assert run.statement()["not_private"] == []
    for words in (("runs", "show", run.path), ("runs", "list", run.path.parent)):
        code, out, _ = command(*words)
        assert code == 0
        assert "(private)" in out
    code, out, _ = command("runs", "show", run.path, "--json")
    assert json.loads(out)["private"] == ["error", "measured", "metrics"]


@pytest.mark.parametrize("level", ["example", pytest.param("client", marks=pytest.mark.slow)])
def test_a_simulation_says_that_scaling_looked_at_data(command: Any, table: Path, level: str) -> None:
    code, out, _ = command("train", table, *WORDS, "--seed", 1, "--level", level)
    assert code == 0
    run = run_directory.open_run(Path(json.loads(out)["results"][0]["run"]))
    assert "guessed" in run.statement()["not_private"][0]
    assert not (run.public / "schema.toml").exists()
    assert schema.from_toml(run.schema() or "").client == "hospital"


@pytest.mark.slow
def test_a_run_on_tables_is_resumed_and_a_changed_schema_is_not(
    command: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("schema", table, "--client", "hospital", "--target", "outcome")
    words = ("train", table, "--schema", "schema.toml", *WORDS, "--seed", 3, "--method", "fedavg", "--rounds", 4)
    whole = json.loads(command(*words)[1])["results"][0]

    def stop(done: int, *_: Any) -> None:
        if done == 2:
            raise KeyboardInterrupt

    path = Path(whole["run"])
    with pytest.raises(KeyboardInterrupt):
        loop.run(run_directory.open_run(path).experiment(), tmp_path / "again", progress=stop)
    (begun,) = (tmp_path / "again").iterdir()
    text = (tmp_path / "schema.toml").read_text()
    (tmp_path / "schema.toml").write_text(text.replace("high = 70.0", "high = 80.0"))
    code, out, _ = command("train", "--resume", begun, "--json")
    assert "schema was changed" in json.loads(out)["error"]["message"]
    (tmp_path / "schema.toml").write_text(text)
    code, out, _ = command("train", "--resume", begun, "--json")
    assert code == 0
    assert json.loads(out)["results"][0]["error"] == whole["error"]


@pytest.mark.slow
def test_the_method_is_picked_in_public_and_explained(command: Any, table: Path) -> None:
    _, out, err = command("train", table, *WORDS[:-1], "--seed", 0)
    assert "was picked" in err
    assert "(simulated)" in out
    code, out, _ = command("train", table, *WORDS, "--seed", 0, "--method", "ditto")
    assert json.loads(out)["results"][0]["method"] == "ditto"
    code, out, _ = command("train", "--method", "auto", "--json")
    assert code == 1
    said = json.loads(out)["error"]["message"]
    assert "is for tables" in said
    assert "mean_regularized" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--target", "outcom"), "did you mean 'outcome'?"),
        (("--target", "outcome", "--client", "hospitl"), "did you mean 'hospital'?"),
        (("--client", "hospital"), "Give --target"),
        (("--target", "outcome", "--epsilon", 0), "epsilon=0.0 must be above 0"),
        (("--target", "outcome", "--rounds", 0), "rounds=0 must be at least 1"),
        (("--target", "outcome", "--test-fraction", 1), "test_fraction=1.0"),
        (("--target", "outcome", "--schema", "nowhere.toml"), "nowhere.toml cannot be read"),
    ],
)
def test_first_mistakes_are_answered(command: Any, table: Path, words: tuple[Any, ...], message: str) -> None:
    code, out, _ = command("train", table, *words, "--seed", 0, "--json")
    assert code == 1
    assert message in json.loads(out)["error"]["message"]
    code, _, err = command("train", table, *words, "--seed", 0)
    assert message in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.slow
def test_text_among_numbers_and_a_hospital_with_one_class(command: Any, table: Path) -> None:
    text = table.read_text()
    table.write_text(text.replace("\ny,31,", "\ny,unknown,", 1))
    code, out, _ = command("train", table, *WORDS, "--seed", 0)
    assert "'unknown' in line 3 of hospitals.csv" in json.loads(out)["error"]["message"]
    table.write_text(text + "w,40,a,1\n" * 8)
    code, out, _ = command("train", table, *WORDS, "--seed", 0)
    assert code == 0
    assert any("client 'w'" in note and "every row" in note for note in json.loads(out)["notes"])


def test_a_draft_is_never_overwritten(command: Any, table: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text("mine")
    code, out, _ = command("schema", table, "--target", "outcome", "--json")
    assert code == 1
    assert "is there already" in json.loads(out)["error"]["message"]
    assert (tmp_path / "schema.toml").read_text() == "mine"


def test_automatic_methods_are_for_tables_and_the_others_are_named(command: Any) -> None:
    code, out, _ = command("train", "--method", "auto", "--json")
    assert code == 1
    said = json.loads(out)["error"]["message"]
    assert "for data='synthetic_schools' leave it out (mean_regularized), or name one of local, fedavg" in said


@pytest.mark.parametrize("words", [(), ("--level", "none")])
def test_a_method_without_relations_says_which_has_them(command: Any, table: Path, words: tuple[Any, ...]) -> None:
    Path("g.csv").write_text("client,group\nx,a\ny,a\nz,b\n")
    asked = ("--relation", "g.csv", "--method", "mean_regularized", "--seed", 0, "--json", *words)
    for files in ((), (table, "--client", "hospital", "--target", "outcome")):
        code, out, _ = command("train", *files, *asked)
        assert code == 1
        said = json.loads(out)["error"]["message"]
        assert "method='mean_regularized' takes no relation: name relation_regularized" in said


@pytest.mark.usefixtures("small_schools")
def test_an_error_inside_a_program_comes_without_jaxs_words(command: Any, tmp_path: Path) -> None:
    words = ("--method", "few_releases_binary", "--rounds", 14, "--level", "none", "--seed", 0)
    code, out, err = command("train", *words, "--output", tmp_path)
    assert code == 1
    assert "two classes" in err
    assert "JAX" not in out + err
