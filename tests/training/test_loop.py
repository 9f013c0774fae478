"""Whole runs, small: simulation and release, resume, crash, bad input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk.accounting import account
from kinfolk.accounting.composition import BudgetError
from kinfolk.accounting.ledger import Ledger, LedgerError, read_lines
from kinfolk.data import registry
from kinfolk.data.federation import from_rows
from kinfolk.data.sets.catalogue import BuiltIn
from kinfolk.privacy.levels import Budget, client_level, example_level, none
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from kinfolk.training import loop, prepare, run_directory
from kinfolk.training.experiment import Experiment, Phase, Training
from tests.small import six_schools
from tests.training.public_files import nothing_else_is_public

pytestmark = pytest.mark.usefixtures("small_schools")


def experiment(**changes: object) -> Experiment:
    first = Experiment(
        seed=3,
        training=Training(batch_size=8),
        privacy=example_level(epsilon=4.0, delta=1e-4),
        phases=(Phase("mean_regularized", 25),),
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def models_of(run: run_directory.Run) -> dict[str, np.ndarray]:
    for folder in (run.public, run.private):
        if (folder / "models.npz").exists():
            with np.load(folder / "models.npz") as file:
                return {name: file[name] for name in file.files}
    raise AssertionError("no models")


def test_a_simulation_leaves_a_complete_directory_and_says_that_it_is_one(tmp_path: Path) -> None:
    run = loop.run(experiment(), tmp_path)
    statement = run.statement()
    assert statement["simulated"] is True
    assert statement["epsilon"] == pytest.approx(4.0, rel=1e-3)
    assert statement["epsilon"] <= 4.0
    assert "(simulated)" in (run.public / "statement.txt").read_text()
    assert run.experiment() == experiment()
    assert run.metrics()[-1]["round"] == 25
    assert (run.public / "models.npz").exists()
    assert not list(run.path.rglob(".*.tmp"))


def test_every_reported_epsilon_comes_from_the_ledger(tmp_path: Path) -> None:
    run = loop.run(experiment(), tmp_path)
    job = prepare.prepare(experiment())
    lines = read_lines(run.public / "ledger.jsonl")
    steps = {name: 25 * max(1, n // 8) for name, n in zip(job.ids, job.federations[0].train.sizes, strict=True)}
    with Ledger(run.public / "ledger.jsonl") as ledger:
        for party in run.statement()["parties"]:
            name = party["party"]
            assert (
                party["releases"]["gradient"] == steps[name] == sum(line.uses for line in lines if line.party == name)
            )
            assert party["epsilon"] == ledger.epsilon(name, "synthetic_schools", "example", 1e-4)


def test_budgets_may_differ_by_client(tmp_path: Path) -> None:
    own = {"school-01": Budget(1.0, 1e-5)}
    run = loop.run(experiment(privacy=replace(experiment().privacy, budgets=own)), tmp_path)
    spent = {party["party"]: party for party in run.statement()["parties"]}
    assert spent["school-01"]["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert spent["school-01"]["delta"] == 1e-5
    assert spent["school-02"]["epsilon"] == pytest.approx(4.0, rel=1e-3)


@pytest.mark.slow
def test_seeds_together_equal_one_by_one(tmp_path: Path) -> None:
    both = loop.run(experiment(seeds=2), tmp_path)
    single = loop.run(experiment(seed=4), tmp_path)
    pairs = zip(*(json.loads((run.private / "clients.json").read_text()) for run in (both, single)), strict=True)
    for together, alone in pairs:
        assert together["error"][1] == pytest.approx(alone["error"][0], rel=1e-4)


LEVELS = [
    example_level(4.0, 1e-4),
    pytest.param(client_level(4.0, 1e-2, cohort=3), marks=pytest.mark.slow),
    pytest.param(none(), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("privacy", LEVELS)
def test_interrupted_simulations_go_on_bit_for_bit(privacy: object, tmp_path: Path) -> None:
    whole = loop.run(experiment(privacy=privacy), tmp_path)

    with pytest.raises(Stop):
        loop.run(experiment(privacy=privacy), tmp_path / "cut", progress=stop_at(10))
    (cut,) = (tmp_path / "cut").iterdir()
    resumed = loop.resume(cut)
    for name, value in models_of(whole).items():
        np.testing.assert_array_equal(value, models_of(resumed)[name])
    assert resumed.statement()["epsilon"] == whole.statement()["epsilon"]
    assert loop.resume(cut).path == cut  # done: nothing to do


def test_who_watches_hears_of_the_first_rounds_and_changes_nothing(tmp_path: Path) -> None:
    heard: list[tuple[int, int, bool]] = []
    settings = experiment(privacy=none(), phases=(Phase("mean_regularized", 100),))
    plain = loop.run(settings, tmp_path)
    watched = loop.run(
        settings, tmp_path, progress=lambda done, total, numbers: heard.append((done, total, not numbers))
    )
    first, chunks = [(1, 100, True), (2, 100, True), (4, 100, True)], [(5 * n, 100, False) for n in range(1, 21)]
    assert heard == first + chunks
    for name, value in models_of(plain).items():
        np.testing.assert_array_equal(value, models_of(watched)[name])


@pytest.mark.slow
def test_two_phases_are_accounted_together(tmp_path: Path) -> None:
    phases = (Phase("fedavg", 10), Phase("local", 15))
    run = loop.run(experiment(phases=phases), tmp_path)
    one = loop.run(experiment(phases=(Phase("fedavg", 25),)), tmp_path)
    assert run.statement()["parties"] == one.statement()["parties"]
    assert run.metrics()[-1]["error"] != one.metrics()[-1]["error"]


def test_a_release_is_charged_to_the_data_sets_ledger_and_cannot_be_repeated(tmp_path: Path) -> None:
    first = loop.run(experiment(seed=None), tmp_path)
    assert first.statement()["simulated"] is False
    spent = first.statement()["epsilon"]
    for asked in (experiment(seed=None), experiment(seed=None, evaluate=1.0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prepare, "count_uses", None)  # refused before anything is counted, calibrated or compiled
            with pytest.raises(LedgerError, match=r"has spent .* beyond its budget of 4"):
                loop.run(asked, tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(account, "require_left", lambda *_: None)
            with pytest.raises(LedgerError, match=r"would reach \d.*, beyond its budget of 4"):  # as the whole way
                loop.run(asked, tmp_path)
    assert first.statement()["epsilon"] == spent
    assert len(list(tmp_path.glob("run-*"))) == 1, "what was refused leaves nothing behind"
    again = loop.run(experiment(seed=None), tmp_path, ledger=tmp_path / "other.jsonl")
    assert any((a != b).any() for a, b in zip(models_of(first).values(), models_of(again).values(), strict=True))


@pytest.mark.slow
def test_several_releases_on_one_data_set_add_up(tmp_path: Path) -> None:
    small = replace(experiment().privacy, epsilon=4.0, noise_multiplier=20.0)
    one = loop.run(experiment(seed=None, privacy=small), tmp_path / "here")
    two = loop.run(experiment(seed=None, privacy=small), tmp_path / "there")
    first, second = (json.loads((run.private / "account.json").read_text())["worst"] for run in (one, two))
    assert all(second[party]["epsilon"] > 1.2 * first[party]["epsilon"] for party in first)
    assert {tuple(found["releases"]) for found in second.values()} == {(one.name, two.name)}
    assert one.statement()["epsilon"] == two.statement()["epsilon"] == 4.0, "what is promised, not what else there was"
    assert {line.run for line in read_lines(two.public / "ledger.jsonl")} == {two.name}


@pytest.mark.slow
def test_a_run_under_another_relation_adds_to_the_same_account(tmp_path: Path) -> None:
    loop.run(experiment(seed=None), tmp_path)
    with pytest.raises(
        LedgerError, match=r"has spent 9\.\d+ at delta=0\.0001, in run-.*: a release of epsilon=4 would"
    ):
        loop.run(experiment(seed=None, privacy=replace(experiment().privacy, relation="replace_one")), tmp_path)


class Stop(Exception):
    pass


def stop_at(rounds: int) -> Callable[..., None]:
    def stop(done: int, total: int, numbers: dict[str, float]) -> None:
        if done >= rounds:
            raise Stop

    return stop


@pytest.mark.slow
def test_a_resumed_release_is_charged_to_its_own_ledger_whatever_is_said(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        loop.run(experiment(seed=None), tmp_path, ledger=tmp_path / "own.jsonl", progress=stop_at(10))
    (run,) = tmp_path.glob("run-*")
    with pytest.raises(PrivacyError, match=r"charged to .*own\.jsonl"):
        loop.resume(run, ledger=tmp_path / "other.jsonl")
    finished = loop.resume(run).statement()
    assert finished["parties"][0]["releases"] == {"gradient": 25}
    assert finished["epsilon"] == pytest.approx(4.0, rel=1e-3)


@pytest.mark.slow
def test_a_release_does_not_go_on_without_its_lines(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        loop.run(experiment(seed=None), tmp_path, ledger=tmp_path / "own.jsonl", progress=stop_at(10))
    lines = (tmp_path / "own.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "own.jsonl").write_text("".join(lines[:-6]))
    (run,) = tmp_path.glob("run-*")
    with pytest.raises(PrivacyError, match="it was cut, or is an old copy"):
        loop.resume(run)
    for key in (tmp_path / "keys").iterdir():  # as if nothing else knew how long it was
        about = json.loads(key.read_text())
        key.write_text(json.dumps({**about, "records": 0, "head": ""}))
    with pytest.raises(PrivacyError, match=r"private/ledger\.json was written"):
        loop.resume(run)
    (run / "private" / "ledger.json").unlink()
    with pytest.raises(PrivacyError, match="does not hold the 10 rounds"):
        loop.resume(run)


def test_a_simulation_cannot_become_a_release(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        loop.run(experiment(), tmp_path, progress=stop_at(10))
    (run,) = tmp_path.glob("run-*")
    config = run / "public" / "experiment.toml"
    config.write_text(config.read_text().replace("seed = 3\n", ""))
    with pytest.raises(PrivacyError, match="was changed since the run began"):
        loop.resume(run)


def test_a_release_needs_a_budget(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="needs a budget"):
        loop.run(experiment(seed=None, privacy=example_level(delta=1e-4, noise_multiplier=2.0)), tmp_path)


@pytest.mark.slow
def test_released_noise_has_the_calibrated_size(tmp_path: Path) -> None:
    """Clients without information: what is released is noise alone, of known variance."""
    x, y = np.zeros((160, 40), np.float32), np.zeros(160, np.float32)
    data = from_rows(x, y, np.repeat([f"c{k}" for k in range(8)], 20), test_fraction=0.5, name="quiet")
    quiet = experiment(
        seed=None,
        privacy=example_level(100.0, 1e-4, noise_multiplier=3.0),
        phases=(Phase("local", 50, {"step_size": 1.0}),),
        training=Training(None),
    )
    where = loop.run(quiet, tmp_path, ledger=tmp_path / "ledger.jsonl", data=data)
    with np.load(where.public / "models.npz") as file:
        weights = np.concatenate([file[name].reshape(8, -1) for name in file.files if "weights" in name], axis=1)
    # 50 steps of size 1 with independent noise of standard deviation 3 / 10 each: 320 random walks
    assert weights.std() == pytest.approx(0.3 * np.sqrt(50), rel=0.2)
    assert abs(np.corrcoef(weights)[np.triu_indices(8, 1)]).max() < 0.7


@pytest.mark.slow
def test_a_release_that_crashed_gives_up_rounds_rather_than_exceed_its_budget(tmp_path: Path) -> None:
    def crash(*_: object) -> None:
        raise Stop

    original = loop._compute
    loop._compute, calls = lambda *args: crash() if len(calls) == 5 else (calls.append(1), original(*args))[1], []
    try:
        with pytest.raises(Stop):
            loop.run(experiment(seed=None), tmp_path)
    finally:
        loop._compute = original
    (run,) = tmp_path.glob("run-*")
    statement = loop.resume(run).statement()
    assert statement["rounds"] < 25
    assert statement["epsilon"] <= 4.0 * (1 + 1e-9)
    spans = [(line.party, line.rounds) for line in read_lines(tmp_path / "ledgers" / "ledger.jsonl")]
    kinds = spans.count((spans[0][0], (0, 2)))
    assert all(spans.count((party, (10, 12))) == 2 * kinds for party, _ in spans), "drawn twice, charged twice"
    nothing_else_is_public(run_directory.Run(run))


def bad(changes: dict[str, object], error: type[Exception], match: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=match):
        loop.run(experiment(**changes), tmp_path / "runs")
    assert not (tmp_path / "runs").exists(), "an error before the start leaves nothing behind"


def test_bad_settings_say_what_to_do(tmp_path: Path) -> None:
    level = experiment().privacy
    bad({"privacy": replace(level, delta=0.2)}, BudgetError, "allow_large_delta", tmp_path)
    bad({"privacy": replace(level, epsilon=1e-7)}, BudgetError, "smallest epsilon", tmp_path)
    bad({"privacy": replace(level, budgets={"nobody": Budget(1.0)})}, BudgetError, "'?nobody", tmp_path)
    bad({"phases": (Phase("fedavgg", 3),)}, ConfigError, "mean_regularized", tmp_path)
    bad({"phases": (Phase("fedavg", 3, {"strength": 1.0}),)}, ConfigError, "no option 'strength'", tmp_path)
    bad({"privacy": client_level(4.0, 1e-2, cohort=7)}, ConfigError, "more than the 6 clients", tmp_path)


def test_an_unwritable_directory_is_an_error_before_training(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("in the way")
    with pytest.raises(run_directory.RunError, match="cannot be written"):
        loop.run(experiment(), target / "runs")


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up in the middle: a clear error, nothing half-written, and resume finishes the run."""
    whole = loop.run(experiment(), tmp_path / "whole")
    original, written = os.replace, []

    def full(source: str, target: str) -> None:
        written.append(target)
        if len(written) == 12:
            raise OSError(28, "No space left on device")
        original(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(run_directory.RunError, match="No space left on device"):
        loop.run(experiment(), tmp_path / "full")
    monkeypatch.undo()
    monkeypatch.setitem(registry.BUILT_IN, "synthetic_schools", BuiltIn(six_schools))
    (run,) = (tmp_path / "full").iterdir()
    assert not [path for path in run.rglob("*") if path.name.startswith(".")]
    resumed = loop.resume(run)
    for name, value in models_of(whole).items():
        np.testing.assert_array_equal(value, models_of(resumed)[name])


@pytest.mark.slow
def test_a_release_of_people_says_so(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    people = np.repeat(np.arange(60), generator.integers(1, 5, 60))
    x = generator.uniform(-1, 1, (len(people), 2))
    data = from_rows(x, x[:, 0], people % 3, person_ids=people, rows_per_person=3, name="visits")
    small = experiment(seed=None, phases=(Phase("local", 2),), training=Training())
    run = loop.run(small, tmp_path, ledger=tmp_path / "ledger.jsonl", data=data)
    statement = run.statement()
    assert statement["unit"] == "one person, with all rows, in one client"
    assert statement.get("rows_per_person") == 3
    assert {line.unit for line in read_lines(run.public / "ledger.jsonl")} == {"person"}
    nothing_else_is_public(run)
