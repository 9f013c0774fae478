"""Data of one's own, by name and by reference."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinfolk
from kinfolk import DataChoice, Experiment, Phase, from_rows, none, register_dataset, resume, run
from kinfolk.data import registry
from kinfolk.data.federation import DataError, Federation
from kinfolk.data.identity import label
from kinfolk.data.registry import load_data, recorded
from kinfolk.toml import from_toml, to_toml

MODULE = """
import numpy as np
from kinfolk import from_rows

def load(seed, test_fraction):
    x = np.random.default_rng(0).uniform(-1, 1, size=(40, 2)).astype(np.float32)
    return from_rows(x, x.sum(axis=1), ["a", "b"] * 20, test_fraction=test_fraction, seed=seed, name="theirs")

number = 3
"""


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own, beside nothing of ours."""
    (tmp_path / "their_data.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    sys.modules.pop("their_data", None)
    return "their_data"


def small(seed: int = 0) -> Federation:
    x = np.ones((20, 2), np.float32)
    return from_rows(x, x[:, 0], ["a", "b"] * 10, seed=seed, name="small")


def test_a_registered_set_is_loaded_with_what_it_asks_for() -> None:
    asked: dict[str, Any] = {}

    def load(seed: int, *, directory: str | None, more: int = 7) -> Federation:
        asked.update(seed=seed, directory=directory, more=more)
        return small(seed)

    register_dataset("mine", load)
    assert load_data(DataChoice("mine", directory="here"), 5).ids == ("a", "b")
    assert asked == {"seed": 5, "directory": "here", "more": 7}
    assert load_data(DataChoice("mine", pooled=True), 5).ids == ("everybody",)


def test_what_cannot_be_registered_is_refused_with_the_remedy() -> None:
    register_dataset("mine", small)
    with pytest.raises(DataError, match="name='mine' is registered already: choose another"):
        register_dataset("mine", small)
    with pytest.raises(DataError, match="name='school' is built in"):
        register_dataset("school", small)
    with pytest.raises(DataError, match="name='a:b' must be a word without a colon"):
        register_dataset("a:b", small)
    with pytest.raises(DataError, match=r"takes 'split', and is given seed, .* give it a default"):
        register_dataset("other", lambda split: small(split))
    with pytest.raises(DataError, match=r"takes '\*\*options'"):
        register_dataset("other", lambda **options: small(**options))
    register_dataset("wrong", lambda: "rows")  # type: ignore[arg-type,return-value]
    with pytest.raises(DataError, match="returned a str: return a Federation"):
        load_data(DataChoice("wrong"), 0)
    with pytest.raises(DataError, match=r"scaling='mine' changes nothing in data='mine'"):
        load_data(DataChoice("mine", scaling="mine"), 0)
    with pytest.raises(DataError, match=r"data='nobody' is not one of .*'mine'.* register_dataset it in this process"):
        load_data(DataChoice("nobody"), 0)


def test_a_function_that_can_be_imported_needs_no_registration(module: str) -> None:
    data = load_data(DataChoice(f"{module}:load", test_fraction=0.5), 0)
    assert (data.name, data.train.sizes.tolist()) == ("theirs", [10, 10])
    for name, words in (
        (f"{module}:other", "has no attribute 'other'"),
        (f"{module}s:load", "No module named"),
        (":load", "cannot be imported"),
        (f"{module}:number", "is a int: name a function"),
    ):
        with pytest.raises(DataError, match=words):
            load_data(DataChoice(name), 0)


@pytest.mark.slow
def test_a_registered_function_is_recorded_so_that_another_process_finds_it(module: str, tmp_path: Path) -> None:
    from importlib import import_module

    register_dataset("mine", import_module(module).load)
    register_dataset("nameless", lambda: small())
    assert recorded(DataChoice("mine", test_fraction=0.5)) == DataChoice(f"{module}:load", test_fraction=0.5)
    assert recorded(DataChoice("nameless")).name == "nameless"
    experiment = Experiment(seed=0, data=DataChoice("mine"), privacy=none(), phases=(Phase("local", 2),))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "runs", progress=stop)
    (path,) = (tmp_path / "runs").iterdir()
    program = "import sys; from pathlib import Path; from kinfolk import resume; resume(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert resume(path).statement()["data"] == "theirs"


@pytest.mark.slow
def test_a_run_on_a_nameless_function_says_what_resume_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_dataset("nameless", lambda: small())
    experiment = Experiment(seed=0, data=DataChoice("nameless"), privacy=none(), phases=(Phase("local", 2),))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path, progress=stop)
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr(registry, "_REGISTERED", {})
    with pytest.raises(DataError, match=r"data='nameless' is not one of .* as data= of run or resume"):
        resume(path)
    register_dataset("nameless", lambda: small())
    assert resume(path).done()


@pytest.mark.slow
def test_the_command_line_takes_a_reference_and_a_directory(module: str, tmp_path: Path, command: Any) -> None:
    words = ("--level", "none", "--seed", 0, "--rounds", 2, "--output", tmp_path / "runs")
    code, _, err = command("train", "--data", f"{module}:load", "--test-fraction", 0.5, *words)
    assert code == 0, err
    code, _, err = command("train", "--data", "school", "--data-dir", tmp_path / "nowhere", *words)
    assert code == 1
    assert "school.npz is not in" in err
    assert "nowhere" in err
    assert os.environ.get("KINFOLK_DATA") != str(tmp_path / "nowhere")


def test_the_directory_is_part_of_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match=r"har_features.npz is not in .*here"):
        load_data(DataChoice("har", directory=str(tmp_path / "here")), 0)
    assert replace(DataChoice("har"), directory="d").directory == "d"


def of_two(*, clients: int = 2, spread: float = 0.0, words: str = "no", which: int | None = None) -> Federation:
    return from_rows(np.full((12, 1), spread), np.arange(12.0), np.arange(12) % clients, name=f"{words}{which}")


def test_a_function_is_told_options_by_an_experiment() -> None:
    register_dataset("two", of_two)
    text = 'seed = 0\n[data]\nname = "two"\n[data.options]\nclients = 3\nspread = 1\nwhich = 7\n'
    choice = from_toml(text, Experiment).data
    found, plain = load_data(choice, 0), load_data(DataChoice("two"), 0)
    assert (len(found.ids), found.name, float(found.train.x[0, 0, 0])) == (3, "no7", 1.0)
    assert (len(plain.ids), plain.grouping) == (2, "data set two")
    assert found.grouping.startswith("data set two, clients=3, spread=1, which=7 (")  # its client 0 has other rows
    words = [load_data(replace(choice, options={"words": word}), 0).grouping for word in ("a", "A", "a ", "a")]
    assert len({label(word) for word in words}) == 3, "a function may tell apart what accounts take for the same word"
    long = [f"exports/monthly/admissions/of/all/wards/{year}/cleaned/tables" for year in (2023, 2024)]
    assert len({load_data(replace(choice, options={"words": word}), 0).grouping for word in long}) == 2
    once, again = (load_data(replace(choice, options={"which": of}), 0).grouping for of in ((2, 3), [2, 3]))
    assert once == again, "TOML has no tuples"
    assert from_toml(to_toml(Experiment(data=choice)), Experiment).data == choice


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client": 3}, "data.options.client=3: data='two' has no option of that name; did you mean 'clients'?"),
        ({"seed": 3}, "data.options.seed=3 has a place of its own: give seed"),
        ({"directory": "x"}, "data.options.directory='x' has a place of its own: give data.directory"),
        ({"clients": 2.5}, "data.options.clients=2.5 must be like its default, 2: give a int"),
        ({"clients": True}, "data.options.clients=True must be like its default"),
        ({"spread": "much"}, "data.options.spread='much' must be like its default, 0.0: give a float"),
    ],
)
def test_an_option_that_a_function_does_not_have_is_refused(options: dict[str, Any], words: str) -> None:
    register_dataset("two", of_two)
    with pytest.raises(DataError, match=words):
        load_data(DataChoice("two", options=options), 0)


def test_tables_have_no_options_and_a_function_may_have_none() -> None:
    with pytest.raises(DataError, match="belong to a set's function, and tables have none"):
        load_data(DataChoice("mine", files=("a.csv",), options={"clients": 2}), 0)
    register_dataset("none", lambda: of_two())
    with pytest.raises(DataError, match="it has none: leave it out"):
        load_data(DataChoice("none", options={"clients": 2}), 0)


def test_a_name_that_is_nearly_right_is_recognised() -> None:
    with pytest.raises(DataError, match=r"data='scool' is not one of .*did you mean 'school'"):
        load_data(DataChoice("scool"), 0)


def test_the_package_lists_its_public_names() -> None:
    assert set(kinfolk.__all__) | {"__version__"} == set(dir(kinfolk))
    assert all(getattr(kinfolk, name) is not None for name in dir(kinfolk))
