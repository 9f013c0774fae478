"""Every number that a user can give is in range and of its type, or refused in one shape, before a ledger is made."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk import limits
from kinfolk.accounting import noise_for_budget
from kinfolk.algorithms.registry import REGISTRY
from kinfolk.cli import main
from kinfolk.data.choice import DataChoice
from kinfolk.data.tables.schema import Column
from kinfolk.deploy.policy import Columns, Policy
from kinfolk.deploy.study import SAID_BY, Roster
from kinfolk.limits import ALLOWED
from kinfolk.personalize.registry import AFTERWARDS
from kinfolk.privacy.levels import Budget, Level, PrivacyLevel, client_level, example_level
from kinfolk.theory.mean_estimation import Problem
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training import loop
from kinfolk.training.experiment import Afterwards, Experiment, ModelChoice, Phase, Training
from kinfolk.training.recipes import Given
from kinfolk.training.tune import Tuning
from kinfolk.verify import attack as attacks
from kinfolk.verify import registry_check

NUMBERS: tuple[object, ...] = (
    *(math.nan, math.inf, -math.inf, -1, 0, 0.5, 1, 7, 1e-300, 1e308, 2**31, 4294967297, 2**63 - 1, 10**400),
    *(True, False, "3", "nan", "", None, [1], (3, 4), (1.0, 2.0), {}, b"1", 1j, object),
    *(np.float32(0.5), np.int64(3), np.float64(math.nan), np.bool_(True), np.arange(2), np.array(4)),
)
SHAPE = r"^(column 'age': )?{name}=.+ must be .+: .+"
"""Of every refusal: name=value, limit, remedy."""


def plain_policy(**own: Any) -> Policy:
    return Policy("a", Columns("d.csv", "d", "y"), example_level(1.0), Training(), ("local",), **{"rounds": 3, **own})


def roster(**own: Any) -> Roster:
    """With the outcome that has such a number."""
    outcome = next((known for known, name in SAID_BY.items() if name in own), "binary")
    return Roster("s", ("a", "b"), ("x",), outcome, **own)


RECORDS: dict[type, Callable[..., Any]] = {
    Experiment: lambda **own: Experiment(**{"seed": 3, **own}),
    Training: Training,
    ModelChoice: ModelChoice,
    Phase: Phase,
    DataChoice: DataChoice,
    PrivacyLevel: lambda **own: PrivacyLevel(Level.CLIENT, **{"epsilon": 1.0, **own}),
    Budget: lambda **own: Budget(**{"epsilon": 1.0, **own}),
    Given: Given,
    Tuning: lambda **own: Tuning({"strength": [1.0]}, **own),
    Policy: plain_policy,
    Roster: roster,
    Column: lambda **own: Column("age", **{"low": -1e9, "high": 1e9, **own}),
    Problem: lambda **own: Problem(**{"clients": 2, "examples": 3, "sigma": 1.0, "tau": 1.0, "noise": 0.0, **own}),
}
NUMERIC = re.compile(r"^(int|float|bool|tuple\[(int|float), \.\.\.\])( \| None)?$")
FIELDS = [(kind, f.name) for kind in RECORDS for f in dataclasses.fields(kind) if NUMERIC.match(str(f.type))]


def require_in_range(name: str, value: Any, of: str) -> None:
    """A number that was accepted is one of Python's own, and in range."""
    if value is None or type(value) is bool:
        return
    if isinstance(value, tuple):
        for one in value:
            require_in_range(name, one, of)
        return
    limit = ALLOWED.get(f"{of}.{name}") or ALLOWED[name]
    assert type(value) is (int if limit.is_whole else float)
    assert limit.holds(value)


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_every_number_of_every_record(kind: type, name: str) -> None:
    accepted = 0
    for value in NUMBERS:
        try:
            made = RECORDS[kind](**{name: value})
        except ValueError as error:  # limits first; then what fields say of each other
            said = str(error)
            assert re.match(SHAPE.format(name=name), said) or " must be a" not in said, said
            assert "Traceback" not in said
            continue
        except TypeError as error:
            pytest.fail(f"{name}={value!r}: {error!r}")
        accepted += 1
        require_in_range(name, getattr(made, name), kind.__name__)
    assert 0 < accepted < len(NUMBERS) - 8, "nan, -inf, text, bytes and others are never right"


@pytest.mark.parametrize("value", [math.nan, -math.inf, "3", True, b"1", 10**400], ids=repr)
def test_what_is_never_a_number_is_refused_by_name(value: object) -> None:
    for kind, name in FIELDS:
        if str({f.name: f.type for f in dataclasses.fields(kind)}[name]) == "bool":
            continue
        with pytest.raises(ValueError, match=rf"{name}=.+ must be .+: .+"):
            RECORDS[kind](**{name: value})


def numeric_options() -> Iterator[tuple[str, str, Callable[[object], Any]]]:
    for method, entry in REGISTRY.items():
        for name, default in entry.options().items():
            if limits.is_number(default):
                yield method, name, lambda value, m=method, n=name: Phase(m, 1, {n: value}).options[n]
    for method, kind in AFTERWARDS.items():
        for field in dataclasses.fields(kind):
            if limits.is_number(field.default):
                make = lambda value, m=method, n=field.name: Afterwards(m, {n: value}).options[n]  # noqa: E731
                yield "afterwards", field.name, make


@pytest.mark.parametrize(
    ("method", "name", "made"), [*numeric_options()], ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_option_of_every_method(method: str, name: str, made: Callable[[object], Any]) -> None:
    for value in NUMBERS:
        try:
            found = made(value)
        except ConfigError as error:
            assert re.match(rf"({name}|factor|every)=.+ must be|{name}=.* is a schedule", str(error))  # noqa: PT017
        else:
            require_in_range(name, found, method)
    for never in (math.nan, -math.inf, -1e7, 1e308, "much", True, [0.1]):
        with pytest.raises(ConfigError, match=f"{name}=.* must be .*: "):
            made(never)


@pytest.mark.parametrize("part", ["start", "factor", "every"])
def test_numbers_of_a_schedule(part: str) -> None:
    for value in (math.nan, math.inf if part != "every" else 0, -1, "1", True):
        with pytest.raises(ConfigError, match=r"(step_size|factor|every)=.* must be"):
            Phase("local", 1, {"step_size": {"start": 0.1, part: value}})
    with pytest.raises(ConfigError, match="is a schedule, and needs start"):
        Phase("local", 1, {"step_size": {"begin": 0.1}})


TOML_VALUES = (
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "0.0",
    "0.5",
    "1e308",
    "4294967297",
    "1" + "0" * 400,
    "true",
    "'3'",
    "[1]",
)
TABLES = {"": Experiment, "training": Training, "privacy": PrivacyLevel, "data": DataChoice, "model": ModelChoice}


@pytest.mark.parametrize("table", [*TABLES, "phases", "phases.options"])
def test_every_number_of_an_experiment_file(table: str) -> None:
    base = 'level = "client"\nepsilon = 1.0\n' if table == "privacy" else ""
    head = {"": "", "phases": "[[phases]]\n", "phases.options": "[[phases]]\n[phases.options]\n"}
    names = {"phases": ["rounds"], "phases.options": ["step_size", "strength"]}.get(table) or [
        name for kind, name in FIELDS if kind is TABLES[table]
    ]
    for name in names:
        for value in TOML_VALUES:
            lines = base.replace("epsilon = 1.0\n", "") if name == "epsilon" else base
            text = f"{head.get(table, f'[{table}]')}\n{lines}{name} = {value}\n"
            try:
                found = from_toml(text, Experiment)
            except ConfigError as error:
                assert name in str(error), (text, error)  # noqa: PT017
                assert len(str(error)) < 400  # noqa: PT017
            else:
                assert from_toml(to_toml(found), Experiment) == found
                part: Any = getattr(found, table) if table in TABLES and table else found
                if table.startswith("phases"):
                    (phase,) = found.phases
                    part = phase
                value_found = part.options[name] if table == "phases.options" else getattr(part, name)
                require_in_range(name, value_found, type(part).__name__)


class Accepted(BaseException):
    """Raised in place of work."""


SILENT = {
    "train": ("train",),
    "compare": ("compare", "--method", "local"),
    "tune": ("tune", "--option", "strength=1,2", "--seed", 0),
    "check": ("check",),
    "attack": ("attack", "local", "--level", "example"),
    "plan": ("plan", "--rows", 100, "--batch", 10, "--steps", 5, "--epsilon", 1),
    "plan strength": ("plan", "strength", "--clients", 2, "--examples", 9, "--sigma", 1, "--tau", 1, "--epsilon", 1),
    "plan defaults": ("plan", "defaults", "--clients", 2, "--rows", 9, "--features", 3),
    "ledger show": ("ledger", "show", "nowhere.jsonl"),
    "deploy server": ("deploy", "server", "nowhere", "--explain"),
    "deploy silo": ("deploy", "silo", "nowhere", "--explain"),
    "predict": ("predict", "nowhere", "t.csv", "--output", "o.csv"),
    "evaluate": ("evaluate", "nowhere"),
    "sets": ("sets", "nowhere"),
    "deploy init": ("deploy", "init", "nowhere"),
    "app": ("app", "--no-browser"),
}
"""A valid call of every command that takes numbers."""


def options_of_commands() -> Iterator[tuple[str, str]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for name, part in getattr(command, "commands", {}).items():
            yield from walk(part, (*path, name))
        for option in command.params:
            if option.type.name.split()[0] in ("integer", "float"):
                yield " ".join(path), option.opts[0]

    return walk(main.commands(), ())


@pytest.mark.parametrize(("name", "option"), [*options_of_commands()])
@pytest.mark.usefixtures("small_schools")
def test_every_number_of_the_command_line(
    name: str, option: str, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Experiment] = []

    def instead(first: Any = None, *_: object, **__: object) -> None:
        given.extend([first] if isinstance(first, Experiment) else [])
        raise Accepted

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "run", instead)
    monkeypatch.setattr("kinfolk.training.tune.tune", instead)
    monkeypatch.setattr(attacks, "attack", instead)
    monkeypatch.setattr(registry_check, "check_registry", instead)
    monkeypatch.setattr(noise_for_budget, "noise_multipliers", instead)
    monkeypatch.setattr("kinfolk.app.site.serve", instead)
    has_json = name.split()[0] not in ("app", "deploy")
    base = SILENT["plan" if name == "plan" else name]
    if option in ("--clients", "--cohort", "--rounds") and name == "plan":
        base = ("plan", "--level", "client", "--clients", 100, "--cohort", 10, "--rounds", 5, "--epsilon", 1)
    if option == "--noise-multiplier":
        base = base[:-2]
    seed = ("--seed", 0) if option == "--seeds" and name == "train" else ()
    refused = 0
    for value in ("nan", "inf", "-inf", "-1", "0", "1e308", "1" + "0" * 30, "true", "much"):
        try:
            code, out, _ = command(*base, *seed, f"{option}={value}", *(["--json"] if has_json else []))
        except Accepted:
            continue
        refused += code != 0
        assert code in (0, 1, 2), out
        if code == 1 and has_json:
            assert option[2:].replace("-", "_") in json.loads(out)["error"]["message"]
    assert refused >= 4, "nan, infinite, huge and text"
    for experiment in given:
        require_in_range("seed", experiment.seed, "")
        require_in_range("epsilon", experiment.privacy.epsilon, "")
        require_in_range("rounds", experiment.phases[0].rounds, "")
    assert not list(tmp_path.rglob("*.jsonl")), "no ledger is made"
    assert not (tmp_path / "runs").exists()


def test_work_that_would_never_end_is_refused(tmp_path: Path, small_schools: None) -> None:
    with pytest.raises(ConfigError, match="rounds=1000000000 must be at least 1 and at most 100000"):
        Phase("local", 10**9)
    long = Experiment(training=Training(batch_size=1, epochs=10_000), phases=(Phase("local", 100_000),))
    with pytest.raises(ConfigError, match=r"rounds=100000 of \d+ local steps each"):
        loop.run(long, tmp_path / "runs")
    wide = Experiment(seed=0, model=ModelChoice("mlp", (100_000, 100_000)), phases=(Phase("local", 1),))
    with pytest.raises(ConfigError, match=r"hidden=\(100000, 100000\) has \d+ weights"):
        loop.run(wide, tmp_path / "runs")
    assert not list(tmp_path.rglob("*"))


def test_a_delta_of_zero_is_not_the_default() -> None:
    with pytest.raises(ConfigError, match=r"delta=0 must be at least 1e-30 and below 1: leave it out"):
        client_level(epsilon=1.0, delta=0)
    with pytest.raises(ConfigError, match=r"budgets\.a: delta=0\.0 must be"):
        from_toml("[privacy]\nlevel='example'\nepsilon=1\n[privacy.budgets.a]\nepsilon=1\ndelta=0", Experiment)


def test_full_batches_are_a_whole_zero() -> None:
    assert from_toml("[training]\nbatch_size = 0", Experiment).training.batch_size is None
    with pytest.raises(ConfigError, match="batch_size=False"):
        from_toml("[training]\nbatch_size = false", Experiment)


def test_broken_files_are_one_message() -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        from_toml("a = " + "[" * 3000 + "]" * 3000, Experiment)
    with pytest.raises(ConfigError, match="not valid TOML"):
        from_toml("seed = " + "1" * 10_000, Experiment)
    with pytest.raises(ConfigError, match="missing key 'client'"):
        from_toml("", Policy)


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    found = Experiment(
        seed=np.int64(3),  # type: ignore[arg-type]
        privacy=example_level(np.float64(1.5), np.float32(0.25)),  # type: ignore[arg-type]
        phases=(Phase("local", np.int32(4), {"step_size": np.float32(0.5)}),),  # type: ignore[arg-type]
    )
    assert from_toml(to_toml(found), Experiment) == found
    assert "step_size = 0.5" in to_toml(found)
