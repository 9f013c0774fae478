"""Silos that are killed again and again, and messages that are nearly right: nothing is under-counted, and nobody
absent means the same result."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kinfolk.accounting.account import Account
from kinfolk.accounting.ledger import read_lines
from kinfolk.deploy import silo_state
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.wire import RECEIPT, pack
from kinfolk.deploy.worker import Worker
from tests.deploy.federations import CLIENTS, federation_of, policy_of, rows_of, simulated, study_of

ROUNDS, KILLS, FUZZED = 8, 40, 2000
PLACES: tuple[tuple[Any, str], ...] = (
    (silo_state, "reserve"),
    (Account, "charge"),
    (Program, "compute"),
    (silo_state, "store"),
    (Worker, "_note"),
)
"""Where a silo is killed: before and after each of these, in this order."""
PAID = {("charge", "after"), ("compute", "before"), ("compute", "after"), ("store", "before")}
"""Killed there, it has paid for a round that nobody will ever see, and pays again."""


class KilledError(BaseException):
    """Stands for a signal that cannot be caught."""


@contextmanager
def killed(home: Any, name: str, when: str) -> Iterator[None]:
    """The process ends before or after this function."""
    real: Callable[..., Any] = getattr(home, name)

    def deadly(*words: Any, **options: Any) -> Any:
        if when == "after":
            real(*words, **options)
        raise KilledError

    setattr(home, name, deadly)
    try:
        yield
    finally:
        setattr(home, name, real)


@pytest.mark.slow
def test_kills_of_ten_kinds_change_no_result_and_are_all_paid_for(tmp_path: Path) -> None:
    study, federation, chance = study_of(rounds=ROUNDS), federation_of(), random.Random(5)
    programs = [prepare_silo(study, policy_of(study, n), rows_of(federation, k)) for k, n in enumerate(CLIENTS)]
    kills = [(*chance.choice(PLACES), chance.choice(("before", "after"))) for _ in range(KILLS)]
    plan = Counter((chance.randrange(len(CLIENTS)), chance.randrange(ROUNDS)) for _ in kills)
    lost: Counter[tuple[int, int]] = Counter()
    with Coordinator(study, tmp_path / "server", test_keys=True) as server:
        for number in range(ROUNDS):
            ask, answers = server.ask(), dict[int, bytes]()
            for slot, name in enumerate(CLIENTS):
                for _ in range(plan[slot, number]):
                    place = kills.pop()
                    with Worker(programs[slot], tmp_path / name) as worker, killed(*place):
                        stored = silo_state.path_of(worker.folder / "runs" / server.run.name, number).exists()
                        if stored and place[1] != "_note":
                            assert worker.answer(ask.request) != REFUSAL  # it is only sent again
                        else:
                            with pytest.raises(KilledError):
                                worker.answer(ask.request)
                            lost[slot, number] += place[1:] in PAID
                with Worker(programs[slot], tmp_path / name) as worker:
                    answers[slot] = worker.answer(ask.request)
                    assert worker.answer(ask.request) == answers[slot] != REFUSAL
            server.take(ask, answers)
        found = server.shared
    assert not kills
    for slot, name in enumerate(CLIENTS):
        paid = Counter(line.rounds[0] for line in read_lines(tmp_path / name / "ledger.jsonl"))
        assert paid == {number: 1 + lost[slot, number] for number in range(ROUNDS)}
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(simulated(study, federation).shared), strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-5, atol=1e-5)


def spoilt(message: bytes, chance: random.Random) -> bytes:
    """Nearly the message: bytes changed, cut out, doubled, or moved."""
    found = bytearray(message)
    for _ in range(chance.randint(1, 4)):
        begin = chance.randrange(len(found) or 1)
        end = min(len(found), begin + chance.randint(1, 20))
        match chance.randrange(4):
            case 0:
                found[begin:end] = chance.randbytes(end - begin)
            case 1:
                del found[begin:end]
            case 2:
                found[begin:begin] = found[begin:end]
            case _:
                found[begin:end] = reversed(found[begin:end])
    return bytes(found)


@pytest.mark.slow
def test_messages_that_are_nearly_right_cost_no_more_than_the_rounds(tmp_path: Path) -> None:
    """What is still well formed is a round of this run, which is paid for once; all else gets the refusal."""
    study, chance = study_of(seed=None, epsilon=2.0, noise_multiplier=None), random.Random(6)
    program = prepare_silo(study, policy_of(study, "c"), rows_of(federation_of(), 2))
    header = {"version": 1, "study": study.digest, "run": "run-1"}
    fine = [pack({**header, "kind": "round", "round": n}, study.first()) for n in range(3)]
    fine.append(pack({**header, "kind": "end", "round": 2}, study.first()))
    with Worker(program, tmp_path / "c") as worker:
        answers = Counter(worker.answer(spoilt(chance.choice(fine), chance)) for _ in range(FUZZED))
        lines = read_lines(worker.folder / "ledger.jsonl")
        stored, runs = len(list(worker.folder.glob("runs/*/0*.npz"))), len(list(worker.folder.glob("runs/*")))
    others = set(answers) - {REFUSAL, RECEIPT}
    assert answers[REFUSAL] > FUZZED / 2
    assert len(others) == stored <= 3
    assert len(lines) == stored
    assert runs <= 1
