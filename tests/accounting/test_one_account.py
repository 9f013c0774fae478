"""The account is written once: a change planted in one step makes what checks every runtime fail.

Each runtime (simulation, release, offload, silo, server) is run at its smallest. Each step of the account has a fact
that must hold there: sound, all facts hold; with the step changed, its fact fails in every runtime that has the step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import jax
import numpy as np
import pytest

from kinfolk import rounds, trees
from kinfolk.accounting import calibrate, composition
from kinfolk.accounting.account import Account
from kinfolk.accounting.calibrate import Population, Uses
from kinfolk.accounting.ledger import Line, read_lines
from kinfolk.accounting.statement import Statement, statement
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.algorithms.registry import REGISTRY, Entry
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.engines import release_counts
from kinfolk.privacy import noise_tape
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.privacy.levels import FEDERATION, PrivacyLevel, Terms, example_level, none
from kinfolk.privacy.mechanisms import ExactSum
from kinfolk.privacy.release import Meter, Tape
from kinfolk.training import job_file, loop, offload, run_directory
from kinfolk.training.experiment import Experiment, Phase, Training
from kinfolk.types import Params
from kinfolk.verify import round_check
from kinfolk.verify.round_check import RoundCheck
from tests.deploy.federations import CLIENTS, ROUNDS, federation_of, study_of, worker_of

EPSILON, DELTA, WORK = 2.0, 1e-3, Training(batch_size=None)
Patch = pytest.MonkeyPatch


@trees.register
@dataclass(frozen=True)
class Leaky(MeanRegularized):
    """Multiplies what it sends, and what it publishes, by a number that private values decide."""

    def client(self, shared: Params, personal: Params, gate: DataGate) -> tuple[Params, Params, DataGate]:
        message, personal, gate = super().client(shared, personal, gate)
        return trees.scale(1 + 0 * gate._rows.y.sum(), message), personal, gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        after, inbox = super().server(shared, inbox)
        return trees.scale(1 + 0 * jax.tree.leaves(inbox._messages)[0].sum(), after), inbox


@dataclass(frozen=True)
class Done:
    """What a runtime left behind."""

    lines: list[Line]
    statement: Statement
    published: dict[str, np.ndarray]
    """The numbers of the last round that was published; empty if none was."""


def run_or_release(folder: Path, method: str, seed: int | None) -> Done:
    work = Experiment(seed=seed, privacy=example_level(EPSILON, DELTA), training=WORK, phases=(Phase(method, ROUNDS),))
    return done(loop.run(work, folder, ledger=folder / "ledger.jsonl", data=federation_of()), folder / "ledger.jsonl")


def carried(folder: Path, method: str) -> Done:
    """Exported, run by the module that another machine would run, and merged."""
    work = Experiment(seed=0, privacy=example_level(EPSILON, DELTA), training=WORK, phases=(Phase(method, ROUNDS),))
    run = offload.export(work, folder, ledger=folder / "ledger.jsonl", data=federation_of())
    with Patch.context() as patch:
        patch.setattr(sys, "argv", ["job_file", str(run.private / "job.npz"), str(folder / "result.npz")])
        job_file.main()
    return done(offload.merge(run.path, folder / "result.npz", data=federation_of()), folder / "ledger.jsonl")


def done(run: run_directory.Run, ledger: Path) -> Done:
    return Done(read_lines(ledger), run.statement(), last_of(run.public / "shared"))


def last_of(folder: Path) -> dict[str, np.ndarray]:
    found = sorted(folder.glob("[0-9]*.npz"))
    if not found:
        return {}
    with np.load(found[-1]) as file:
        return {name: file[name] for name in file.files if file[name].dtype.kind == "f"}


def federation(folder: Path, method: str, level: str) -> tuple[Path, Path]:
    """A server and a silo (the others are absent), all rounds; the server's run, and the silo's."""
    options = {"epsilon": EPSILON, "noise_multiplier": None, "delta": DELTA}
    study = study_of(method, level, seed=None, training=WORK, **options)
    with (
        Coordinator(study, folder / "server") as server,
        worker_of(study, federation_of(), 2, folder, runs=5) as worker,
    ):
        while not server.finished():
            ask = server.ask()
            answer = worker.answer(ask.request)
            assert answer != REFUSAL, (worker.folder / "log.jsonl").read_text()
            server.take(ask, {2: answer})
        server.finish()
        worker.answer(server.last_words())
        return server.run.path, worker.folder / "runs" / server.run.name


def silo(folder: Path, method: str) -> Done:
    _, run = federation(folder, method, "example")
    found = json.loads((run / "statement.json").read_text())
    return Done(read_lines(folder / CLIENTS[2] / "ledger.jsonl"), found, last_of(run))


def server(folder: Path, method: str) -> Done:
    run, _ = federation(folder, method, "client")
    return done(run_directory.open_run(run), folder / "server" / "ledger.jsonl")


RUNTIMES: dict[str, Callable[[Path, str], Done]] = {
    "simulation": lambda folder, method: run_or_release(folder, method, 0),
    "release": lambda folder, method: run_or_release(folder, method, None),
    "offload": carried,
    "silo": silo,
    "server": server,
}


class Runtime(Protocol):
    """Runs a method, in a folder of its own."""

    def __call__(self, method: str, place: str = "one") -> Done: ...


def refused(runtime: Runtime, text: str, method: str = "mean_regularized") -> None:
    """The runtime ends with an error that says this."""
    with pytest.raises(Exception, match=text):
        runtime(method)


def is_paid(runtime: Runtime) -> None:
    """One release in every round by each party, in the ledger, within the budget and near it."""
    found = runtime("mean_regularized")
    parties = {line.party for line in found.lines}
    assert parties in ({FEDERATION}, {CLIENTS[2]}, set(CLIENTS))
    assert {party: sum(x.uses for x in found.lines if x.party == party) for party in parties} == dict.fromkeys(
        parties, ROUNDS
    )
    for party in parties:
        spent = composition.epsilon([(x.cost, x.uses) for x in found.lines if x.party == party], DELTA)
        assert 0.95 * EPSILON < spent <= EPSILON


def is_stated(runtime: Runtime) -> None:
    found = runtime("mean_regularized")
    for party in found.statement["parties"]:
        charges = [(x.cost, x.uses) for x in found.lines if x.party == party["party"]]
        assert party["epsilon"] == pytest.approx(composition.epsilon(charges, DELTA), rel=1e-6)


def is_published(runtime: Runtime) -> None:
    assert runtime("mean_regularized").published


def leaks_are_refused(runtime: Runtime) -> None:
    with Patch.context() as patch:
        patch.setitem(REGISTRY, "leaky", Entry("leaky", Leaky, "planted", "nowhere"))
        refused(runtime, "the flow check found leaks", "leaky")


def counted_as(change: int) -> Callable[[Runtime, str], None]:
    def check(runtime: Runtime, text: str) -> None:
        original = release_counts.by_round
        with Patch.context() as patch:
            everywhere(patch, original, lambda *args: {k: v + change * (v > 0) for k, v in original(*args).items()})
            refused(runtime, text)

    return check


def too_many_are_refused(runtime: Runtime) -> None:
    counted_as(1)(runtime, "but the traced program makes")


def too_few_are_refused(runtime: Runtime) -> None:
    """By the meters alone, though the traced program knows better where a release is never inactive."""
    with Patch.context() as patch:
        patch.setattr(RoundCheck, "require", METHODS["traced bounds"][2])
        counted_as(-1)(runtime, "other uses than the ledger was charged")


def a_second_run_is_refused(runtime: Runtime) -> None:
    runtime("mean_regularized")
    refused(runtime, "beyond its budget")


def noise_is_fresh(runtime: Runtime) -> None:
    """On the same data, with full batches, two releases differ by their noise alone."""
    first, second = (runtime("mean_regularized", place).published for place in ("one", "two"))
    assert any(not np.array_equal(first[name], second[name]) for name in first)


def everywhere(patch: Patch, original: object, new: object) -> None:
    """Puts `new` in the place of a function in every module that has it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kinfolk"):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    patch.setattr(module, attribute, new)


def uncalibrated(privacy: PrivacyLevel, who: Population, count: Callable[[Terms], Uses]) -> tuple[Terms, Uses]:
    """Half of the noise, about."""
    asked = replace(privacy, epsilon=2 * privacy.epsilon) if privacy.epsilon else privacy
    return CALIBRATED(asked, who, count)


def unnoised(meter: Meter, shapes: Tape | None, _: noise_tape.Draw) -> Meter:
    return FRESH(meter, shapes, lambda kind, shape: np.zeros(shape, np.int32))


CALIBRATED, FRESH, STATEMENT = calibrate.calibrated, noise_tape.with_fresh_noise, statement
LINES, CHECK, COUNT = Account.lines, round_check.check_round, release_counts.by_round
GATE, INBOX = rounds.data_gate, rounds.inbox
FUNCTIONS: dict[str, list[tuple[object, object]]] = {
    "draft terms": [(calibrate.draft, lambda privacy: none())],
    "count": [(COUNT, lambda *args: {kind: 0 * counts for kind, counts in COUNT(*args).items()})],
    "calibrate": [(CALIBRATED, uncalibrated)],
    "flow check": [(CHECK, lambda *args, **more: replace(CHECK(*args, **more), violations=()))],
    "noise": [(FRESH, unnoised)],
    "compute": [
        (GATE, lambda spec, client, n: GATE(spec, replace(client, terms=(ExactSum(), client.terms[1])), n)),
        (INBOX, lambda spec, mail, n: INBOX(spec, replace(mail, mechanism=ExactSum(sampled_here=False)), n)),
    ],
    "publish": [(run_directory.publish, lambda *args, **more: None)],
    "statement": [(STATEMENT, lambda *args, **more: _halved(STATEMENT(*args, **more)))],
}
METHODS: dict[str, tuple[type, str, object]] = {
    "traced bounds": (RoundCheck, "require", lambda self, uses=None: self),
    "ledger lines": (Account, "lines", lambda *args: [replace(x, uses=x.uses // 2) for x in LINES(*args)]),
    "budget covers": (Account, "require", lambda *args: None),
    "charge": (Account, "charge", lambda *args: None),
    "meter = ledger": (Account, "require_metered", lambda *args: None),
}
FACTS: dict[str, Callable[[Runtime], None]] = {
    "draft terms": is_paid,
    "count": is_paid,
    "calibrate": is_paid,
    "flow check": leaks_are_refused,
    "traced bounds": too_many_are_refused,
    "noise": noise_is_fresh,
    "ledger lines": is_paid,
    "budget covers": a_second_run_is_refused,
    "charge": is_paid,
    "compute": is_paid,
    "meter = ledger": too_few_are_refused,
    "publish": is_published,
    "statement": is_stated,
}
SEEDED = ("simulation", "offload")
"""Their noise comes from the seed: they have no step that draws it."""
PAIRS = [(step, name) for step in FACTS for name in RUNTIMES if not (step == "noise" and name in SEEDED)]


def _halved(found: Statement) -> Statement:
    for party in found["parties"]:
        party["epsilon"] /= 2
    return found


def runtime_of(name: str, folder: Path) -> Runtime:
    def run(method: str, place: str = "one") -> Done:
        (folder / place).mkdir(exist_ok=True)
        return RUNTIMES[name](folder / place, method)

    return run


def plant(patch: Patch, step: str) -> None:
    for original, new in FUNCTIONS.get(step, []):
        everywhere(patch, original, new)
    if step in METHODS:
        patch.setattr(*METHODS[step])


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNTIMES)
def test_all_facts_hold(name: str, tmp_path: Path) -> None:
    facts = {fact: step for step, fact in FACTS.items() if (step, name) in PAIRS}
    for number, fact in enumerate(facts):
        (tmp_path / str(number)).mkdir()
        fact(runtime_of(name, tmp_path / str(number)))


@pytest.mark.slow
@pytest.mark.parametrize(("step", "name"), PAIRS)
def test_a_planted_change_is_found_in_every_runtime(step: str, name: str, tmp_path: Path) -> None:
    with Patch.context() as patch:
        plant(patch, step)
        jax.clear_caches()
        try:
            FACTS[step](runtime_of(name, tmp_path))
        except (Exception, pytest.fail.Exception):
            return
        finally:
            jax.clear_caches()
    pytest.fail(f"{step} was changed, and nothing that checks the {name} noticed")


def test_every_step_has_a_planted_change() -> None:
    assert set(FACTS) == {*FUNCTIONS, *METHODS}
