"""A malicious server against an honest silo: nothing it can send makes the silo give more than its policy says."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import RELEASED, LedgerError, read_lines
from kinfolk.accounting.views import aggregators
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.silo_program import prepare_silo
from kinfolk.deploy.study import Study
from kinfolk.deploy.wire import RECEIPT, pack, unpack
from kinfolk.deploy.worker import Worker
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from kinfolk.training.experiment import Afterwards, Phase
from tests.deploy.federations import TRAINING, federation_of, log_of, policy_of, rows_of, study_of, worker_of

STUDY = study_of("mean_regularized", "example", seed=None, epsilon=2.0, noise_multiplier=None, rounds=3)


def request(of: Study = STUDY, number: Any = 0, tree: Any = None, **changes: Any) -> bytes:
    header = {"version": 1, "kind": "round", "study": of.digest, "run": "run-1", "round": number}
    return pack({**header, **changes}, of.first() if tree is None else tree)


@pytest.fixture(scope="module")
def program() -> Any:
    return prepare_silo(STUDY, policy_of(STUDY, "c"), rows_of(federation_of(), 2))


@pytest.fixture
def silo(program: Any, tmp_path: Path) -> Iterator[Worker]:
    with Worker(program, tmp_path / "c") as worker:
        yield worker


def charges(worker: Worker) -> int:
    return sum(line.uses for line in read_lines(worker.folder / "ledger.jsonl"))


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


def bad_trees() -> dict[str, Any]:
    first = STUDY.first()

    def spoilt(value: float) -> Any:
        leaves, structure = jax.tree.flatten(first)
        leaves = [np.asarray(leaf).copy() for leaf in leaves]
        leaves[0].flat[0] = value
        return jax.tree.unflatten(structure, leaves)

    return {
        "nan": spoilt(np.nan),
        "infinite": spoilt(np.inf),
        "huge": spoilt(1e30),
        "too long": (first, first),
        "too short": jax.tree.leaves(first)[:1],
        "empty": (),
    }


@pytest.mark.parametrize("name", bad_trees())
@pytest.mark.fast
def test_bad_shared_states_are_refused(silo: Worker, name: str) -> None:
    assert silo.answer(request(tree=bad_trees()[name])) == REFUSAL
    assert charges(silo) == 0
    assert "malformed" in log_of(silo)


BAD_HEADERS: dict[str, dict[str, Any]] = {
    "beyond the rounds": {"round": 3},
    "negative": {"round": -1},
    "text": {"round": "0"},
    "truth": {"round": True},
    "fraction": {"round": 0.5},
    "nothing": {"round": None},
    "other study": {"study": "0" * 64},
    "other kind": {"kind": "evaluate"},
    "metrics please": {"metrics": True},
    "more noise off": {"noise_multiplier": 0.0},
    "clip": {"clip": 1e9},
    "seed": {"seed": 0},
    "rows": {"rows": [0]},
    "weight": {"weight": 100.0},
    "climbing out": {"run": "../../c"},
    "hidden": {"run": ".hidden"},
    "list": {"run": ["a"]},
    "long": {"run": "a" * 101},
    "version": {"version": 2},
    "unhashable": {"kind": {}},
}


@pytest.mark.parametrize("name", BAD_HEADERS)
@pytest.mark.fast
def test_bad_headers_are_refused(silo: Worker, name: str) -> None:
    assert silo.answer(request(**BAD_HEADERS[name])) == REFUSAL
    assert charges(silo) == 0
    assert list(silo.folder.glob("runs/*")) == []
    assert "refused" in log_of(silo)


@pytest.mark.parametrize(
    "raw", [b"", b"\n", b"{}", b"[]\n", b"{" * 5000 + b"\n", b'{"a":' * 300 + b"\n", b"\xff\n", b"x" * 10**6]
)
def test_noise_on_the_line_is_refused(silo: Worker, raw: bytes) -> None:
    assert silo.answer(raw) == REFUSAL
    assert charges(silo) == 0


def test_every_refusal_looks_the_same_and_the_reason_stays_at_home(silo: Worker) -> None:
    assert {silo.answer(request(**bad)) for bad in BAD_HEADERS.values()} == {REFUSAL}
    assert len(json.loads(REFUSAL)) == 1
    assert len(set(log_of(silo).splitlines())) > 3


def test_a_round_that_was_missed_is_over(silo: Worker) -> None:
    assert silo.answer(request(number=1)) != REFUSAL
    spent = charges(silo)
    assert silo.answer(request(number=0)) == REFUSAL
    assert charges(silo) == spent


def test_other_methods_and_numbers_are_another_study(silo: Worker) -> None:
    """Whatever a server would like to change changes the digest."""
    experiment = STUDY.experiment
    others = [
        replace(experiment, phases=(Phase("fedavg", 3),)),
        replace(experiment, phases=(Phase("mean_regularized", 3, {"step_size": 1e5}),)),
        replace(experiment, phases=(Phase("mean_regularized", 4),)),
        replace(experiment, training=replace(experiment.training, epochs=50)),
        replace(experiment, privacy=replace(experiment.privacy, clip=100.0)),
    ]
    for other in others:
        study = Study(STUDY.roster, other)
        assert study.digest != STUDY.digest
        assert silo.answer(request(study)) == REFUSAL
    assert charges(silo) == 0


def test_the_policy_and_not_the_study_sets_clip_noise_batches_and_rounds() -> None:
    policy = policy_of(STUDY, "c")
    own = replace(
        policy,
        privacy=replace(policy.privacy, clip=0.25, epsilon=1.0),
        training=replace(policy.training, batch_size=2),
        rounds=2,
    )
    rows = rows_of(federation_of(), 2)
    theirs, ours = prepare_silo(STUDY, policy, rows), prepare_silo(STUDY, own, rows)
    assert float(ours.terms.data.clip) == 0.25  # type: ignore[union-attr]
    assert ours.rounds == 2
    assert ours.steps == 4
    assert float(ours.terms.data.sampling.rate) < float(theirs.terms.data.sampling.rate)
    assert ours.account.budgets()["c"].epsilon == 1.0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"methods": ("fedavg",)}, "not among the policy's methods"),
        ({"test_keys": True}, "test_keys"),
        ({"privacy": replace(STUDY.experiment.privacy, level="client")}, "level"),
        ({"privacy": replace(STUDY.experiment.privacy, epsilon=None, noise_multiplier=1.0)}, "budget"),
    ],
)
def test_a_study_beyond_the_policy_does_not_start(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(PrivacyError, match=text):
        prepare_silo(STUDY, policy_of(STUDY, "c", **changes), rows_of(federation_of(), 2))


def test_no_privacy_needs_test_keys() -> None:
    study = study_of("fedavg", "none", seed=None)
    with pytest.raises(PrivacyError, match="protects nobody"):
        prepare_silo(study, policy_of(study, "a"), rows_of(federation_of(), 0))


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


SCHEDULE: dict[str, Any] = {"seed": None, "epsilon": 2.0, "noise_multiplier": None, "noise_power": 0.5}


def test_the_noise_of_a_round_is_the_policys_whatever_rounds_are_asked_for(tmp_path: Path) -> None:
    """A schedule: each round has its own price, all together the budget; a server can skip rounds, not cheapen them."""
    study = study_of(**SCHEDULE)
    with worker_of(study, federation_of(), 2, tmp_path) as worker:
        account = worker.program.account
        planned = [next(x.cost for x in account.lines("", range(n, n + 1)) if x.uses) for n in range(3)]
        assert planned[0].noise_multiplier > planned[1].noise_multiplier > planned[2].noise_multiplier
        assert worker.answer(request(study, 2)) != REFUSAL
        assert worker.answer(request(study, 0)) == worker.answer(request(study, 1)) == REFUSAL
        (line,) = read_lines(worker.folder / "ledger.jsonl")
        assert line.cost == planned[2]
        steps, delta = worker.program.steps, account.deltas()[account.parties[0]]
    whole = composition.epsilon([(cost, steps) for cost in planned], delta)
    assert 1.95 < whole <= 2.0
    policy = replace(study.experiment.privacy, noise_multiplier=1.0)
    with pytest.raises(PrivacyError, match="budget as a whole"):
        worker_of(study, federation_of(), 2, tmp_path, privacy=policy)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"noise_bands": 4}, "simulations so far"),
        ({"training": replace(TRAINING, weights="precision")}, "use 'uniform' or 'size'"),
        ({"training": replace(TRAINING, weights="size")}, "public sizes"),
        (
            {"training": replace(TRAINING, tail=1.0), "phases": (Phase("fedavg", 1), Phase("mean_regularized", 2))},
            "smaller tail",
        ),
        ({"afterwards": Afterwards()}, "free at level='client'"),
    ],
)
def test_what_a_federation_cannot_do_is_said_before_it_begins(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study_of(**options)


@pytest.mark.fast
def test_a_full_disk_is_a_refusal_that_costs_nothing_and_passes(silo: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "posix_fallocate", full)
        assert silo.answer(request()) == REFUSAL
        assert charges(silo) == 0
        assert "No space left" in log_of(silo)
    assert silo.answer(request()) != REFUSAL  # no restart
    assert charges(silo) == silo.program.steps
    assert [path.name for path in silo.folder.glob("runs/*/*")] == ["000000.npz"]
    assert [path.name for path in silo.folder.glob("runs/*/.*")] == []


def test_a_round_is_written_into_the_space_that_was_reserved(silo: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may be full by then; and what a killed process had reserved is given back."""
    asked: list[int] = []
    real = os.posix_fallocate
    monkeypatch.setattr(
        os, "posix_fallocate", lambda handle, begin, size: (asked.append(size), real(handle, begin, size))
    )
    (silo.folder / "runs" / "run-1").mkdir()
    (silo.folder / "runs" / "run-1" / ".000000.npz.killed").write_bytes(b"0" * 100)
    assert silo.answer(request()) != REFUSAL
    (stored,) = silo.folder.glob("runs/*/*.npz")
    assert stored.stat().st_size <= asked[0]
    assert list(silo.folder.glob("runs/*/.*")) == []


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


def test_a_lost_ledger_is_noticed_in_another_run_too(tmp_path: Path) -> None:
    """The stored rounds of any run say that something was spent."""
    with worker_of(STUDY, federation_of(), 2, tmp_path, runs=2) as worker:
        assert worker.answer(request()) != REFUSAL
        worker.ledger.lines.clear()
        assert worker.answer(request(run="run-2")) == REFUSAL
        assert "does not hold round 0 of run run-1" in log_of(worker)


def test_a_silo_whose_ledger_lost_a_line_serves_no_more(program: Any, tmp_path: Path) -> None:
    with Worker(program, tmp_path / "c") as worker:
        assert worker.answer(request(number=0)) != REFUSAL
        assert worker.answer(request(number=1)) != REFUSAL
    ledger = tmp_path / "c" / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="cut, or is an old copy"):
        Worker(program, tmp_path / "c")
    for key in (tmp_path / "keys").iterdir():  # as if nothing else knew how long it was
        key.write_text(json.dumps({**json.loads(key.read_text()), "records": 0, "head": ""}))
    (tmp_path / "c" / "ledger.json").unlink()
    with Worker(program, tmp_path / "c") as worker:
        assert worker.answer(request(number=2)) == REFUSAL
        assert "does not hold" in log_of(worker)


def test_the_noise_that_is_drawn_is_the_noise_that_is_paid_for(tmp_path: Path) -> None:
    with worker_of(study_of(**SCHEDULE), federation_of(), 2, tmp_path) as worker:
        account = worker.program.account
        for number in range(3):
            this = range(number, number + 1)
            (paid,) = [line for line in account.lines("", this) if line.uses]
            drawn = account.scales(paid.kind, this, paid.uses)
            np.testing.assert_array_equal(drawn, np.full((1, paid.uses), paid.cost.noise_multiplier))


def test_a_trusted_aggregator_is_in_the_silos_own_ledger(tmp_path: Path) -> None:
    """At client level it sees messages without noise: noted first, and not for rows that were promised more."""
    trusting = study_of("fedavg", "client", seed=None, epsilon=8.0, noise_multiplier=None, rounds=1, cohort=3)
    rows = rows_of(federation_of(), 2)
    ledger = tmp_path / "ledger.jsonl"
    silent = prepare_silo(trusting, policy_of(trusting, "c"), rows)
    willing = prepare_silo(trusting, policy_of(trusting, "c", trust_because="it is our registry"), rows)
    with Worker(prepare_silo(STUDY, policy_of(STUDY, "c"), rows), tmp_path / "first", ledger) as worker:
        worker.answer(request())
    with Worker(silent, tmp_path / "second", ledger) as worker:
        assert worker.answer(request(trusting)) == REFUSAL
        assert "trust_because" in log_of(worker)
    with Worker(willing, tmp_path / "second", ledger) as worker:
        assert worker.answer(request(trusting)) != REFUSAL, log_of(worker)
        assert aggregators(worker.ledger) == (("tiny", "it is our registry"),)
