"""A silo that is asked: what it answers, what it pays, and what it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kinfolk.accounting.ledger import RELEASED, read_lines
from kinfolk.deploy import silo_program
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.wire import RECEIPT, unpack
from kinfolk.deploy.worker import Worker
from kinfolk.privacy.release import PrivacyError
from tests.deploy.asking import STUDY, charges, request
from tests.deploy.federations import federation_of, log_of, policy_of, rows_of, study_of


@pytest.mark.fast
def test_the_answer_is_the_release_and_nothing_else(silo: Worker) -> None:
    answer = silo.answer(request())
    form = STUDY.message_shapes[0]
    header, message = unpack(answer, form)
    assert header == {"version": 1, "study": STUDY.digest, "run": "run-1", "round": 0}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(message))
    lines = read_lines(silo.folder / "ledger.jsonl")
    assert {(x.party, x.data, x.unit, x.kind, x.noise) for x in lines} == {
        ("c", "rows of c", "example", "gradient", RELEASED)
    }
    assert charges(silo) == silo.program.steps


@pytest.mark.fast
def test_the_same_round_is_sent_again_and_never_computed_again(silo: Worker) -> None:
    first = silo.answer(request())
    other = jax.tree.map(lambda leaf: leaf + 1, STUDY.first())
    spent = charges(silo)
    assert silo.answer(request()) == silo.answer(request(tree=other)) == first
    assert charges(silo) == spent
    assert silo.answer(request(run="run-2")) == REFUSAL  # one run is what the policy allows
    assert charges(silo) == spent


def test_a_restart_sends_what_was_stored_and_goes_on(program: Any, tmp_path: Path) -> None:
    with Worker(program, tmp_path / "c") as worker:
        first = worker.answer(request())
    with Worker(program, tmp_path / "c") as worker:
        assert worker.answer(request()) == first
        spent = charges(worker)
        assert worker.answer(request(number=1)) not in (first, REFUSAL)
        assert charges(worker) == 2 * spent


def test_what_was_charged_and_not_stored_is_charged_again_with_fresh_noise(program: Any, tmp_path: Path) -> None:
    with Worker(program, tmp_path / "c") as worker:
        first = worker.answer(request())
        stored = list(worker.folder.glob("runs/*/*.npz"))
        stored[0].unlink()  # the process died between charge and store
        assert worker.answer(request()) not in (first, REFUSAL)
        assert charges(worker) == 2 * worker.program.steps
        assert worker.answer(request(number=1)) != REFUSAL
        assert worker.answer(request(number=2)) == REFUSAL  # the budget was for three rounds
        assert "budget" in log_of(worker)


def test_a_round_that_was_missed_is_over(silo: Worker) -> None:
    assert silo.answer(request(number=1)) != REFUSAL
    spent = charges(silo)
    assert silo.answer(request(number=0)) == REFUSAL
    assert charges(silo) == spent


@pytest.mark.fast
def test_the_last_message_is_free_and_leaves_a_model(silo: Worker) -> None:
    assert silo.answer(request(kind="end")) == REFUSAL  # this silo knows no such run
    silo.answer(request())
    spent = charges(silo)
    assert silo.answer(request(kind="end")) == b'{"received": true}\n'
    assert charges(silo) == spent
    folder = silo.folder / "runs" / "run-1"
    assert (folder / "model.npz").exists()
    stated = json.loads((folder / "statement.json").read_text())
    assert stated["epsilon"] == 2.0
    assert stated["program"] == [check.program for check in silo.program.checks]


@pytest.mark.fast
def test_the_end_counts_once(silo: Worker) -> None:
    silo.answer(request())
    assert silo.answer(request(kind="end")) == RECEIPT
    kept = {path: path.read_bytes() for path in (silo.folder / "runs" / "run-1").iterdir()}
    other = jax.tree.map(lambda leaf: leaf + 1, STUDY.first())
    assert silo.answer(request(kind="end", tree=other)) == RECEIPT
    assert {path: path.read_bytes() for path in (silo.folder / "runs" / "run-1").iterdir()} == kept
    spent = charges(silo)
    assert silo.answer(request(number=1)) == REFUSAL
    assert charges(silo) == spent
    assert "has ended" in log_of(silo)


def test_two_workers_cannot_share_a_ledger(program: Any, silo: Worker) -> None:
    with pytest.raises(PrivacyError, match="in use"):
        Worker(program, silo.folder)


def test_noise_is_fresh_in_every_process(program: Any, tmp_path: Path) -> None:
    answers = []
    for name in ("one", "two"):
        with Worker(program, tmp_path / name) as worker:
            answers.append(worker.answer(request()))
    assert answers[0] != answers[1]


@pytest.mark.parametrize("value", [0.0, 1e6, -1e6])
def test_no_shared_state_switches_the_noise_off(program: Any, tmp_path: Path, value: float) -> None:
    sent = jax.tree.map(lambda leaf: np.full(leaf.shape, value, leaf.dtype), STUDY.first())
    answers = []
    for name in ("one", "two"):
        with Worker(program, tmp_path / name) as worker:
            _, message = unpack(worker.answer(request(tree=sent)), STUDY.message_shapes[0])
            answers.append(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(message)]).astype(float))
    assert (answers[0] != answers[1]).any()  # far from 0 float32 is coarse, but that comes after the noise


def test_a_program_that_was_compiled_beforehand_gives_the_same_and_compiles_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With keys that can be repeated, to the last bit."""
    study = study_of()
    plain = prepare_silo(study, policy_of(study, "c"), rows_of(federation_of(), 2))
    asked = [request(study, number) for number in range(3)]
    with Worker(plain, tmp_path / "plain") as worker:
        expected = [worker.answer(one) for one in asked]
    ready = plain.compile()
    monkeypatch.setattr(silo_program, "run_client", None)
    with Worker(ready, tmp_path / "ready") as worker:
        assert [worker.answer(one) for one in asked] == expected, log_of(worker)
    assert REFUSAL not in expected


def test_a_release_that_was_compiled_beforehand_has_fresh_noise_in_every_round(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = program.compile()
    monkeypatch.setattr(silo_program, "run_client", None)
    answers = []
    for name in ("one", "two"):
        with Worker(ready, tmp_path / name) as worker:
            answers += [worker.answer(request(number=number)) for number in range(2)]
    assert REFUSAL not in answers
    assert len(set(answers)) == 4
    meters = [ready.meter(0, dict.fromkeys(ready.account.uses, 0), 0) for _ in range(2)]
    for part in ("noise", "coins"):
        one, two = (jax.random.key_data(getattr(meter, part)) for meter in meters)
        assert (one != two).any()
