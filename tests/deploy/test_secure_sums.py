"""Secure sums as deployed, in one process: who pays when what is killed, what is sent again, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import read_lines
from kinfolk.deploy import coordinator, silo_program
from kinfolk.deploy.coordinator import Coordinator, absences
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.policy import read_policy
from kinfolk.deploy.server_sums import GIVEN_UP, KEYS, LIST, SHARES, VECTOR, ServerSums
from kinfolk.deploy.silo import read_silo
from kinfolk.deploy.silo_program import prepare_silo
from kinfolk.deploy.status import silo_status
from kinfolk.deploy.study import read_study
from kinfolk.deploy.sum_messages import packed, unpacked
from kinfolk.deploy.sums import sums_of
from kinfolk.deploy.worker import Worker
from kinfolk.privacy.noise_shares import LAW, SecureError
from kinfolk.privacy.release import PrivacyError
from kinfolk.report import write_report
from kinfolk.toml import ConfigError
from kinfolk.training.experiment import Phase
from tests.deploy.asking import request
from tests.deploy.federations import log_of, policy_of, rows_of, study_of
from tests.deploy.secure_federations import (
    KEYS as PUBLIC,
)
from tests.deploy.secure_federations import (
    everybody,
    key_of,
    play,
    prepared,
    secure_program,
    secure_study,
    secure_workers,
    tables,
)
from tests.deploy.test_parity_processes import write_all

STUDY = secure_study()
EXCHANGES = (KEYS, SHARES, VECTOR, LIST)


@pytest.fixture(autouse=True)
def _prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (coordinator, silo_program):
        monkeypatch.setattr(module, "sums_of", prepared)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Coordinator]:
    with Coordinator(STUDY, tmp_path / "server") as found:
        yield found


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Worker]]:
    with secure_workers(STUDY, tmp_path, epsilon=40.0) as found:
        yield found
        for worker in found:  # those that were started later too
            worker.__exit__()


def paid(worker: Worker) -> list[tuple[int, int]]:
    lines = read_lines(worker.folder / "ledger.jsonl")
    assert all((line.cost.mechanism, line.unit) == (LAW, "client") for line in lines)
    return [line.rounds for line in lines]


def killed(workers: list[Worker], slot: int) -> None:
    """Stops a silo's process, and starts another: what was in memory alone is gone."""
    old = workers[slot]
    old.__exit__()
    workers[slot] = Worker(old.program, old.folder)


def test_silos_pay_and_the_statements_have_two_numbers(server: Coordinator, workers: list[Worker]) -> None:
    play(server, everybody(workers))
    assert server.done == 2
    for worker in workers:
        assert paid(worker) == [(0, 1), (1, 2)]
        worker.answer(server.last_words())
        (own,) = worker.folder.glob("runs/*/statement.json")
        assert json.loads(own.read_text())["shared_noise"]["colluding"] == 1
    said = server.finish()
    page = write_report([server.run.path], server.run.path.parent / "page.html").read_text()
    assert "together with up to 1 clients" in page
    cost = server.account.costs()["update"][0]
    assert said["epsilon"] == pytest.approx(composition.epsilon([(cost, 2)], 1e-3))
    assert said["shared_noise"]["epsilon_of_observers"] < said["epsilon"]  # type: ignore[typeddict-item]
    assert "together with up to 1 clients" in said["view"]


SLOW = [pytest.param(name, marks=() if name == VECTOR else pytest.mark.slow) for name in EXCHANGES]


@pytest.mark.parametrize("exchange", SLOW)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_in_any_exchange_costs_no_round_and_leaves_ledgers_right(
    exchange: str, when: str, server: Coordinator, workers: list[Worker]
) -> None:
    """The silo's answer is lost with it, or its secrets after it has answered; the others have enough."""
    left = 1

    def ask(now: str, slot: int, question: bytes) -> bytes | None:
        nonlocal left
        if slot or now != exchange or not left:
            return workers[slot].answer(question)
        left = 0
        answer = workers[slot].answer(question) if when == "after" else None
        killed(workers, slot)
        return answer

    sums = play(server, ask)
    assert (server.done, sums.why) == (2, "")
    assert [paid(worker) for worker in workers[1:]] == [[(0, 1), (1, 2)]] * 3
    first_sent = (exchange, when) in ((VECTOR, "after"), (LIST, "before"), (LIST, "after"))
    rejoined = exchange != LIST  # where it has keys for the next round already, these are lost too
    assert paid(workers[0]) == [(0, 1)] * first_sent + [(1, 2)] * rejoined
    missed = 2 - first_sent - rejoined
    assert absences(server.run) == ({"a": missed} if missed else {})


@pytest.mark.parametrize("exchange", [SHARES, VECTOR, LIST])
def test_with_too_few_an_attempt_is_given_up_and_paid_again(
    exchange: str, server: Coordinator, workers: list[Worker]
) -> None:
    gone = 2

    def ask(now: str, slot: int, question: bytes) -> bytes | None:
        nonlocal gone
        if now == exchange and slot < 2 and gone:
            gone -= 1
            return None
        return workers[slot].answer(question)

    play(server, ask)
    assert server.done == 2
    (note,) = (server.run.private / GIVEN_UP).read_text().splitlines()
    assert "3 are needed" in json.loads(note)["why"]
    before = {SHARES: 0, VECTOR: 1, LIST: 1}[exchange]
    assert paid(workers[3]) == [(0, 1)] * (before + 1) + [(1, 2)]
    assert len(paid(workers[0])) == 2 + (exchange == LIST)
    spent = [line for line in read_lines(server.run.path.parent / "ledger.jsonl") if line.uses]
    assert len(spent) == 2 + before, "the server's own account too"


@pytest.mark.parametrize("exchange", SLOW)
def test_a_server_that_was_killed_goes_on_with_new_keys(exchange: str, tmp_path: Path, workers: list[Worker]) -> None:
    with Coordinator(STUDY, tmp_path / "server") as first:
        sums = ServerSums(first)
        while True:
            last = sums.exchange == exchange
            sums.take({slot: workers[slot].answer(q) for slot, q in sums.questions().items()})
            if last:
                break
    with Coordinator(STUDY, tmp_path / "server") as second:
        assert second.done == 0
        play(second, everybody(workers))
        assert second.done == 2
    again = exchange in (VECTOR, LIST)
    assert all(paid(worker) == [(0, 1)] * (1 + again) + [(1, 2)] for worker in workers)


def up_to_vector(server: Coordinator, workers: list[Worker]) -> dict[int, bytes]:
    """The questions that ask for masked vectors."""
    sums = ServerSums(server)
    for _ in range(2):
        sums.take({slot: workers[slot].answer(q) for slot, q in sums.questions().items()})
    assert sums.exchange == VECTOR
    return sums.questions()


def test_stored_bytes_are_sent_again_and_nothing_else(server: Coordinator, workers: list[Worker]) -> None:
    question = up_to_vector(server, workers)[0]
    answer = workers[0].answer(question)
    assert workers[0].answer(question) == answer
    killed(workers, 0)
    assert workers[0].answer(question) == answer, "after a restart too"
    assert paid(workers[0]) == [(0, 1)]
    header, steps, tail = unpacked(question, 4)
    steps["mask"]["packets"].popitem()
    assert workers[0].answer(packed(header, steps, bytes(tail))) == answer, "whatever is asked now"


def test_an_attempt_whose_vector_could_not_be_stored_is_lost_and_paid(
    server: Coordinator, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = up_to_vector(server, workers)[0]

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kinfolk.deploy.silo_state.store", full)
        assert workers[0].answer(question) == REFUSAL
    assert workers[0].answer(question) == REFUSAL, "never made again with other noise"
    assert paid(workers[0]) == [(0, 1)]


def test_a_silo_without_budget_for_it_sends_no_vector(server: Coordinator, tmp_path: Path) -> None:
    with secure_workers(STUDY, tmp_path / "poor", epsilon=2.0) as poor:
        question = up_to_vector(server, poor)[0]
        assert poor[0].answer(question) == REFUSAL
        assert paid(poor[0]) == []
        assert "would reach" in log_of(poor[0])


def test_numbers_of_attempts_only_grow_and_outlive_the_process(server: Coordinator, workers: list[Worker]) -> None:
    sums = ServerSums(server)
    question = sums.questions()[0]
    first = workers[0].answer(question)
    assert first != REFUSAL
    assert workers[0].answer(question) == first, "the same question, the same keys"
    killed(workers, 0)
    assert workers[0].answer(question) == REFUSAL
    assert "begun already" in log_of(workers[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda header, steps: (header, {"other": {}}),
        lambda header, steps: (header, {"mask": []}),
        lambda header, steps: (header, {"mask": {**steps["mask"], "attempt": [0, -1]}}),
        lambda header, steps: (header, {"mask": {**steps["mask"], "attempt": [True, 0]}}),
        lambda header, steps: (header, {"mask": {**steps["mask"], "attempt": [1, 0]}}),
        lambda header, steps: (header, {"mask": {**steps["mask"], "packets": {"b": "zz"}}}),
        lambda header, steps: (header, {"mask": {**steps["mask"], "packets": [1]}}),
        lambda header, steps: (header, {"mask": {**steps["mask"], "memory": 1e9}}),
        lambda header, steps: ({**header, "study": "other"}, steps),
        lambda header, steps: ({**header, "kind": "round"}, steps),
    ],
)
def test_malformed_questions_are_refused_and_cost_nothing(
    change: Any, server: Coordinator, workers: list[Worker]
) -> None:
    header, steps, tail = unpacked(up_to_vector(server, workers)[0], 4)
    header, steps = change(header, steps)
    assert workers[0].answer(packed(header, steps, bytes(tail))) == REFUSAL
    assert workers[0].answer(packed(header, steps, bytes(tail))[:-3]) == REFUSAL
    assert paid(workers[0]) == []


def test_rows_that_were_promised_protection_against_everybody_need_a_reason(
    server: Coordinator, workers: list[Worker], tmp_path: Path
) -> None:
    """Secure sums hold against some silos, not against all others: whoever was promised more is asked first."""
    ledger, before = tmp_path / "owner.jsonl", study_of(seed=None, epsilon=2.0, noise_multiplier=None)
    with Worker(prepare_silo(before, policy_of(before, "a"), rows_of(tables(), 0)), tmp_path / "old", ledger) as old:
        assert old.answer(request(before)) != REFUSAL
    workers[0].__exit__()
    with Worker(workers[0].program, tmp_path / "again", ledger) as silo:
        workers[0] = silo
        assert silo.answer(up_to_vector(server, workers)[0]) == REFUSAL
        assert "trust_because" in log_of(silo)
        assert not [line for line in read_lines(ledger) if line.unit == "client"]


def test_a_policy_pins_keys_thresholds_and_the_kind_of_study() -> None:
    """A server that puts itself in a silo's place, or asks for fewer survivors, has another study: it gets nobody."""

    def join(study: Any = STUDY, **changes: Any) -> None:
        policy = policy_of(STUDY, "a", **{"silos": PUBLIC, **changes})
        prepare_silo(study, policy, rows_of(tables(), 0), key=key_of("a"))

    join()
    own = STUDY.experiment.privacy
    for what, changes, match in (
        (SecureError, {"silos": {**PUBLIC, "d": PUBLIC["c"]}}, "does not know"),
        (SecureError, {"silos": {name: PUBLIC[name] for name in ("a", "b", "c")}}, "does not know"),
        (ConfigError, {"silos": {name: PUBLIC[name] for name in ("b", "c", "d")}}, "itself among them"),
        (SecureError, {"privacy": replace(own, survivors=4)}, "survivors=3 is less"),
        (SecureError, {"privacy": replace(own, survivors=4, colluding=2)}, "is less than the policy's"),
        (SecureError, {"privacy": replace(own, noise_multiplier=50.0)}, "deviation="),
        (PrivacyError, {"privacy": replace(own, aggregator="trusted", survivors=None, colluding=None)}, "aggregator="),
        (PrivacyError, {"privacy": replace(own, noise_power=0.5)}, "leave noise_multiplier out"),
        (PrivacyError, {"privacy": replace(own, epsilon=None, noise_multiplier=1.0)}, "needs a budget"),
    ):
        with pytest.raises(what, match=match):
            join(**changes)
    with pytest.raises(ConfigError, match="is not the one"):
        prepare_silo(STUDY, policy_of(STUDY, "a", silos=PUBLIC), rows_of(tables(), 0), key=key_of("b"))
    with pytest.raises(ConfigError, match="needs keys in study"):
        sums_of(replace(STUDY, roster=replace(STUDY.roster, keys=())))
    with pytest.raises(ConfigError, match="leave the seed out"):
        replace(STUDY, experiment=replace(STUDY.experiment, seed=1))


def test_init_makes_keys_for_a_trial_and_none_where_silos_have_their_own(tmp_path: Path) -> None:
    write_all(tmp_path / "trial", replace(STUDY, roster=replace(STUDY.roster, keys=())), tables())
    silo = tmp_path / "trial" / "silos" / "a"
    study, policy = read_study(silo), read_policy(silo / "policy.toml")
    assert policy.silos == dict(zip(study.roster.clients, study.roster.keys, strict=True))
    assert (silo / "signing").stat().st_mode & 0o077 == 0
    assert read_silo(silo).sums is not None
    found = silo_status(silo)
    assert (found["aggregator"], found["survivors"], found["colluding"], found["epsilon"]) == ("secure", 3, 1, 0.0)
    write_all(tmp_path / "real", STUDY, tables())
    silo = tmp_path / "real" / "silos" / "a"
    assert read_policy(silo / "policy.toml").silos == PUBLIC
    with pytest.raises(ConfigError, match="Each silo makes its own: ssh-keygen"):
        read_silo(silo)


def test_rounds_without_a_release_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"makes 0 releases \(none\): aggregator='secure' needs exactly one"):
        sums_of(secure_study(phases=(Phase("fine_tune", 2, {"shared_rounds": 1}),)))


def test_a_budget_that_is_spent_on_attempts_ends_the_run_early(tmp_path: Path) -> None:
    study = secure_study(noise_multiplier=None, epsilon=4.0)
    with Coordinator(study, tmp_path / "server") as server, secure_workers(study, tmp_path) as workers:
        left = 1

        def ask(now: str, slot: int, question: bytes) -> bytes | None:
            nonlocal left
            left -= now == LIST and slot == 3
            return None if now == LIST and slot < 2 and left == 1 else workers[slot].answer(question)

        sums = play(server, ask)
        assert (server.done, sums.finished) == (1, True)
        assert all(paid(worker) == [(0, 1), (0, 1)] for worker in workers)


def test_the_server_sees_noisy_sums_alone(server: Coordinator, workers: list[Worker]) -> None:
    """Every masked vector that it is sent looks uniform, and the opened sum has as much noise as the plan says."""
    sums = secure_program(STUDY, 0).sums
    assert sums is not None
    agreement = sums.shared.agreement(0)
    questions = up_to_vector(server, workers)
    seen = [np.frombuffer(unpacked(workers[slot].answer(q), 4)[2], "<u4") for slot, q in questions.items()]
    assert all(vector.shape == (agreement.length,) for vector in seen)
    assert max(int(vector.max()) for vector in seen) > 2**30, "masks reach over all of 32 bits"
