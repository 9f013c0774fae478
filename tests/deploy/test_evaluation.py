"""An evaluation asked of silos: by their policy's leave, paid for and stored before it is sent, once in a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import Ledger, LedgerError, read_lines
from kinfolk.data.federation import DataError
from kinfolk.data.identity import Identity
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.evaluation import Evaluation
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.policy import require_compatible
from kinfolk.deploy.server_evaluation import NOT_EVALUATED
from kinfolk.deploy.silo_evaluation import EVALUATED
from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.wire import unpack
from kinfolk.deploy.worker import Worker
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.levels import FEDERATION
from kinfolk.privacy.release import PrivacyError
from kinfolk.privacy.tables import Unit, counts
from kinfolk.toml import ConfigError
from kinfolk.training import loop, published, run_directory
from kinfolk.training.experiment import ModelChoice
from kinfolk.training.shown import shown_before
from tests.deploy.evaluations import (
    EPSILON,
    REAL,
    TESTS,
    after_its_end,
    evaluated,
    evaluation_lines,
    on_one_machine,
    policy,
    program,
    request,
    rows,
    study_of,
    workers,
)
from tests.deploy.federations import log_of, play


@pytest.fixture(scope="module")
def ready() -> Program:
    """One silo that answers evaluations."""
    return program(REAL, 0)


@pytest.fixture
def silo(ready: Program, tmp_path: Path) -> Iterator[Worker]:
    with Worker(ready, tmp_path / "a") as worker:
        yield worker


@pytest.mark.parametrize("level", ["example", "client"])
def test_a_federation_shows_what_one_machine_shows(level: str, tmp_path: Path) -> None:
    """The same seed, rows and noise: the same table, and so the same metrics, through serialised messages."""
    study = study_of(level)
    with workers(study, tmp_path) as silos:
        server = evaluated(study, silos, tmp_path / "server")
    (shown,) = shown_before(server.run)
    alone = loop.run(study.experiment, tmp_path / "alone", data=on_one_machine(study))
    (expected,) = shown_before(alone)
    np.testing.assert_allclose(shown["table"], expected["table"], atol=2e-3)
    for key in ("counted", "parties", "noise_scale", "epsilon", "simulated", "shape", "edges"):
        assert shown[key] == expected[key], key
    assert [metric["name"] for metric in shown["metrics"]] == [metric["name"] for metric in expected["metrics"]]
    ours, theirs = ([metric["value"] for metric in one["metrics"]] for one in (shown, expected))
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert shown.get("without") == []
    assert "MAY BE SHOWN" in (server.run.public / "statement.txt").read_text()
    assert server.run.statement().get("may_be_shown") == [shown]
    assert run_directory.unlisted(server.run.public) == []
    if level == "client":
        (line,) = [x for x in read_lines(tmp_path / "server" / "ledger.jsonl") if x.kind == EVALUATION]
        assert (line.party, line.uses, line.cost.mechanism) == (FEDERATION, 1, "laplace")
        assert server.run.statement()["epsilon"] > 4.0


def test_the_answer_is_one_release_paid_for_and_stated(silo: Worker) -> None:
    answer = after_its_end(silo).answer(request())
    tests = silo.program.tests
    assert tests is not None
    header, table = unpack(answer, tests.shared.form)
    assert header == {"version": 1, "study": REAL.digest, "run": "run-1", "round": 0}
    assert np.asarray(table).sum() == pytest.approx(TESTS[0], abs=6 * (2 * table.size) ** 0.5)
    (line,) = evaluation_lines(silo)
    assert (line.uses, line.cost.mechanism) == (1, "laplace")
    assert line.cost.noise_multiplier == pytest.approx(1 / EPSILON)
    statement = json.loads((silo.folder / "runs" / "run-1" / "statement.json").read_text())
    spent = composition.epsilon(_costs(silo), 1e-4)
    assert 4.0 < spent <= statement["epsilon"] <= 5.0
    assert len(statement["program"]) == 2  # training's and the evaluation's


def _costs(silo: Worker) -> list[tuple[Any, int]]:
    lines = read_lines(silo.folder / "ledger.jsonl")
    training = sum(line.uses for line in lines if line.kind == "gradient") * silo.program.rounds
    cost = next(line.cost for line in lines if line.kind == "gradient")
    return [(cost, training), (evaluation_lines(silo)[0].cost, 1)]


def test_asked_again_or_after_a_kill_the_stored_bytes_are_sent_and_nothing_is_charged(
    ready: Program, tmp_path: Path
) -> None:
    with Worker(ready, tmp_path / "a") as silo:
        first = after_its_end(silo).answer(request())
        assert silo.answer(request()) == first
    with Worker(ready, tmp_path / "a") as silo:
        assert silo.answer(request()) == first != REFUSAL
        assert len(evaluation_lines(silo)) == 1


def test_charged_and_not_stored_is_never_computed_for_nothing(silo: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between charge and store: the charge stays, and the promise has no room for another one."""
    after_its_end(silo)
    with monkeypatch.context() as patched:
        patched.setattr(published, "each", _killed)
        assert silo.answer(request()) == REFUSAL
    assert len(evaluation_lines(silo)) == 1
    assert silo.answer(request()) == REFUSAL
    assert len(evaluation_lines(silo)) == 1
    assert "promise" in log_of(silo)


def _killed(*_: object) -> None:
    raise KeyError("killed")


def test_an_evaluation_is_refused_before_the_end_without_leave_and_of_another_run(silo: Worker, tmp_path: Path) -> None:
    silo.answer(request(kind="round"))
    assert silo.answer(request()) == REFUSAL
    assert silo.answer(request(run="run-2")) == REFUSAL
    silo.answer(request(kind="end"))
    assert silo.answer(request() + b"more") == REFUSAL
    assert evaluation_lines(silo) == []
    without = program(REAL, 1, evaluate=None)
    assert without.size == len(rows(1).mask)  # nothing is kept from training
    with Worker(without, tmp_path / "b") as other:
        assert after_its_end(other).answer(request()) == REFUSAL
        assert "no leave" in log_of(other)
        assert evaluation_lines(other) == []


def test_a_silo_takes_no_part_where_its_ledger_does_not_cover_training_and_evaluation(
    ready: Program, tmp_path: Path
) -> None:
    with Worker(ready, tmp_path / "a") as silo:
        assert silo.answer(request(kind="round")) != REFUSAL
        plans = [note.about for note in silo.ledger.notes if note.note == "plan"]
        assert {entry[0] for plan in plans for entry in plan["plan"]} == {"gradient", EVALUATION}
        with pytest.raises(LedgerError):  # what is reserved for the evaluation is nobody else's
            silo.program.account.require(silo.ledger, "another", [range(1)])


def test_policies_that_do_not_cover_the_evaluation_are_refused_when_the_silo_starts() -> None:
    with pytest.raises(PrivacyError, match=r"evaluate=1 beside training with epsilon=4 needs 4\.\d+"):
        program(REAL, 0, privacy=replace(REAL.experiment.privacy, promise=4.1))
    with pytest.raises(PrivacyError, match=r"evaluate=1 is more than the policy's evaluate=0\.5"):
        require_compatible(policy(REAL, 0, evaluate=0.5), REAL)
    with pytest.raises(PrivacyError, match="relation='replace_one' and the study 'zero_out'"):
        require_compatible(policy(REAL, 0, privacy=replace(REAL.experiment.privacy, relation="replace_one")), REAL)
    with pytest.raises(DataError, match="tests=90 of 'a'"):
        program(study_of(roster={"tests": (90, 50, 60)}), 0)


@pytest.mark.parametrize(
    ("roster", "options", "words"),
    [
        ({"tests": ()}, {}, "one for each of the 3 clients"),
        ({"tests": (0, 0, 0)}, {}, "needs tests in study.toml"),
        ({"outcome": "number"}, {}, "needs target_range"),
        ({}, {"level": "none", "epsilon": None, "delta": None}, "no account"),
    ],
)
def test_studies_whose_evaluation_could_not_be_made_are_refused(
    roster: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        study_of(roster=roster, **options)


@pytest.mark.parametrize(
    ("model", "roster", "shape", "unit"),
    [
        ("linear", {"outcome": "number", "target_range": (0.0, 9.0), "target_unit": "points"}, (1, 13), "points"),
        ("softmax", {"outcome": "classes", "classes": 3}, (1, 3, 3), ""),
        ("hazard", {"outcome": "survival", "edges": (1.0, 2.0), "target_unit": "years"}, (1, 6, 5), "years"),
        ("poisson", {"outcome": "count", "most": 9.0, "target_unit": "visits"}, (1, 13), "visits"),
        ("ordinal", {"outcome": "ordinal", "labels": ("low", "middle", "high")}, (1, 3, 3), ""),
        ("multilabel", {"outcome": "labels", "labels": ("this", "that")}, (1, 2, 2), ""),
    ],
)
def test_every_outcome_that_silos_agree_about_has_a_table(
    model: str, roster: dict[str, Any], shape: tuple[int, ...], unit: str
) -> None:
    plain = study_of(roster=roster)
    study = replace(plain, experiment=replace(plain.experiment, model=ModelChoice(model)))
    shared = Evaluation(study)
    assert shared.board(study.first()).shape == shape
    assert shared.target.unit == unit


def test_a_ledger_that_was_lost_stops_a_silo_whose_evaluation_is_stored(ready: Program, tmp_path: Path) -> None:
    with Worker(ready, tmp_path / "a") as silo:
        after_its_end(silo).answer(request())
        (silo.folder / "runs" / "run-1" / "000000.npz").unlink()
        silo.ledger.lines[:] = [line for line in silo.ledger.lines if line.kind != EVALUATION]
        with pytest.raises(Exception, match="does not hold the evaluation of run run-1"):
            silo._require_paid()


def test_too_few_answers_leave_a_reason_and_nothing_to_show(tmp_path: Path) -> None:
    study = study_of(roster={"quorum": 2})
    with workers(study, tmp_path) as silos, Coordinator(study, tmp_path / "server", test_keys=True) as server:
        play(server, silos)
        ask = server.ask_evaluation()
        assert ask is not None
        one = silos[0].answer(ask.request)
        forged = one.replace(b'"round": 1', b'"round": 0')
        server.take_evaluation(ask, {0: one, 1: REFUSAL, 2: forged})
        assert shown_before(server.run) == []
        assert "1 of the 3 silos" in (server.run.private / NOT_EVALUATED).read_text()
        server.take_evaluation(ask, {0: one, 1: silos[1].answer(ask.request)})
        (shown,) = shown_before(server.run)
        assert (shown["counted"], shown["parties"], shown.get("without")) == (TESTS[0] + TESTS[1], 2, ["c"])
        assert server.ask_evaluation() is None
        server.finish()
        assert "did not answer: c" in (server.run.public / "statement.txt").read_text()


def test_at_client_level_the_aggregator_bounds_what_a_lying_silo_sends(tmp_path: Path) -> None:
    study = study_of("client", epsilon=8.0)
    with workers(study, tmp_path) as silos, Coordinator(study, tmp_path / "server", test_keys=True) as server:
        play(server, silos)
        ask = server.ask_evaluation()
        assert ask is not None
        assert server.evaluation is not None
        honest = {slot: silos[slot].answer(ask.request) for slot in ask.cohort}
        assert all(not (silo.folder / "ledger.jsonl").read_bytes() for silo in silos)  # the aggregator pays
        vectors = {slot: server._read(honest[slot], ask.number, server.evaluation.shared.form) for slot in honest}
        heard = {slot: found[0] for slot, found in vectors.items() if found is not None}
        assert all(np.abs(vector).sum() <= 1 + 1e-5 for vector in heard.values())

        def table(lie: float) -> np.ndarray:
            assert server.evaluation is not None
            with Ledger(tmp_path / f"ledger-{lie}.jsonl") as ledger:
                given = {**heard, 0: lie * heard[0]}
                return np.asarray(server.evaluation._of_vectors(given, server.shared, ledger, server.run)["table"])

        assert np.abs(table(1e5) - table(1.0)).sum() <= 1e-3


def test_replay_with_the_release_held_nothing_of_the_rows_is_in_the_answer(silo: Worker) -> None:
    tests, asked = _asked(silo)
    assert tests.mechanism is not None
    size = {EVALUATION: jnp.zeros((1, 1, asked.cells), jnp.float32)}
    meter = replace(published.meters(jax.random.key(1), 1), tape=published.Tape(size, "record"))
    table, after = published.each(asked, meter, tests.mechanism)
    assert after.tape is not None
    other = replace(asked, units=replace(asked.units, x=-asked.units.x, y=1 - asked.units.y))
    held = replace(published.meters(jax.random.key(1), 1), tape=published.Tape(after.tape.values, "replay"))
    np.testing.assert_array_equal(published.each(other, held, tests.mechanism)[0], table)
    fresh = published.each(other, published.meters(jax.random.key(1), 1), tests.mechanism)[0]
    assert np.abs(fresh - table).max() > 3  # the rows do matter


def _asked(silo: Worker) -> tuple[Any, Any]:
    tests = silo.program.tests
    assert tests is not None
    model = jax.tree.map(lambda leaf: 3 + jnp.zeros(leaf.shape), REAL.model_shape)
    return tests, tests.shared.question_of(tests, REAL.first(), model)


def test_rows_of_a_person_that_each_count_are_found_by_search() -> None:
    """A person at a silo, with all rows, moves its table by at most 1; with each row counted, by as many as it has."""
    people = np.repeat(np.arange(30), 3).astype(str)
    study = study_of(roster={"tests": (12, 0, 0)})
    found = prepare_silo(study, policy(study, 0), rows(0), Identity("person", "who", (people,), 3)).tests
    assert found is not None
    model = jax.tree.map(lambda leaf: 3 + jnp.zeros(leaf.shape), study.model_shape)
    asked = found.shared.question_of(found, study.first(), model)
    assert asked.mask.sum() == 12
    units: Any = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], asked.units)
    board = replace(asked.board, params=model)

    def moved(given: Unit, persons: int) -> float:
        there = jnp.ones(given.keep.shape[0], jnp.float32)
        both = [counts().clipped(board, given, w, jnp.float32(1)) for w in (there, there.at[:persons].set(0))]
        return float(jnp.abs(both[0] - both[1]).sum())

    assert moved(units, 1) <= 1 + 1e-5
    each: Any = jax.tree.map(lambda leaf: leaf.reshape(-1, 1, *leaf.shape[2:]), units)
    assert moved(each, 3) > 2.5  # the planted bug: three rows of the same person


def test_a_release_without_a_charge_is_caught(silo: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the account of the evaluation counts no release. The meter does, and nothing is sent."""
    tests = after_its_end(silo).program.tests
    assert tests is not None
    assert tests.account is not None
    free = replace(tests, account=replace(tests.account, uses={EVALUATION: np.zeros((1, 1), int)}))
    monkeypatch.setattr(silo, "program", replace(silo.program, tests=free))
    assert silo.answer(request()) == REFUSAL
    assert "other uses than the ledger was charged" in log_of(silo)
    assert not (silo.folder / "runs" / "run-1" / EVALUATED).exists()


def test_a_table_that_passes_the_gate_by_is_caught_before_it_is_paid_for(
    silo: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_its_end(silo)
    honest = published.table_of

    def leaking(board, meter, mechanism, units, mask):  # type: ignore[no-untyped-def]
        table, meter = honest(board, meter, mechanism, units, mask)
        return table + 1e-3 * jax.vmap(board.contribution)(units).sum(axis=0), meter

    monkeypatch.setattr(published, "table_of", leaking)
    assert silo.answer(request()) == REFUSAL
    assert "flow check" in log_of(silo)
    assert evaluation_lines(silo) == []
