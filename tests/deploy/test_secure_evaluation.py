"""An evaluation under secure sums: silos add their share of the noise, and the server sees the sum of tables alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.accounting.composition import epsilon as composed
from kinfolk.accounting.ledger import read_lines
from kinfolk.deploy import silo_evaluation
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.server_sums import ServerSums
from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.study import Study
from kinfolk.deploy.worker import Worker
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.noise_shares import LAW
from kinfolk.secure import contribution
from kinfolk.toml import ConfigError
from kinfolk.training.shown import shown_before
from tests.deploy.evaluations import evaluation_lines
from tests.deploy.federations import log_of, policy_of, rows_of
from tests.deploy.secure_federations import KEYS, NAMES, SURVIVORS, key_of, play, secure_study, tables

EPSILON = 2.0


def study_of(tests: tuple[int, ...] = (3, 3, 3, 3)) -> Study:
    plain = secure_study(rounds=1)
    roster = replace(plain.roster, tests=tests, target_range=(0.0, 10.0), target_unit="points")
    return Study(roster, replace(plain.experiment, evaluate=EPSILON))


STUDY = study_of()


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    return [program(slot) for slot in range(len(NAMES))]


def program(slot: int, **changes: Any) -> Program:
    policy = policy_of(STUDY, NAMES[slot], **{"silos": KEYS, "evaluate": EPSILON, **changes})
    return prepare_silo(STUDY, policy, rows_of(tables(), slot), key=key_of(NAMES[slot]))


@contextmanager
def ended(programs: list[Program], folder: Path) -> Iterator[tuple[Coordinator, list[Worker]]]:
    """A federation after its round and the last words."""
    with ExitStack() as stack:
        server = stack.enter_context(Coordinator(STUDY, folder / "server"))
        silos = [stack.enter_context(Worker(one, folder / one.policy.client)) for one in programs]
        play(server, lambda _, slot, question: silos[slot].answer(question))
        for silo in silos:
            silo.answer(server.last_words())
        yield server, silos


Answer = Callable[[str, int, bytes], bytes | None]


def evaluate(server: Coordinator, answer: Answer) -> ServerSums:
    """One attempt."""
    sums = ServerSums(server, evaluates=True)
    while not sums.finished and not sums.why:
        exchange, questions = sums.exchange, sums.questions()
        found = {slot: answer(exchange, slot, question) for slot, question in questions.items()}
        sums.take({slot: one for slot, one in found.items() if one is not None})
    return sums


def vectors(server: Coordinator, silos: list[Worker]) -> list[np.ndarray]:
    found = []
    for silo in silos:
        tests = silo.program.tests
        assert tests is not None
        folder = silo.folder / "runs" / server.run.name
        found.append(silo_evaluation.vector_of(silo_evaluation.question(silo.program, tests, folder)))
    return found


def test_the_sum_is_that_of_the_silos_tables_and_everybody_pays(
    programs: list[Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ended(programs, tmp_path) as (server, silos):
        with monkeypatch.context() as patched:  # without noise, to compare
            patched.setattr(contribution, "discrete_gaussian", lambda share, length, source: np.zeros(length, int))
            evaluate(server, lambda _, slot, question: silos[slot].answer(question))
        (shown,) = shown_before(server.run)
        expected = np.sum(vectors(server, silos), axis=0)
        np.testing.assert_allclose(shown["table"], expected, atol=len(NAMES) / GRID_STEPS * len(expected))
        assert (shown["counted"], shown["parties"], shown.get("noise")) == (4, 1, "normal")
        assert shown["metrics"][0]["unit"] == "points"
        lines = [*(line for silo in silos for line in evaluation_lines(silo))]
        lines += [line for line in read_lines(tmp_path / "server" / "ledger.jsonl") if line.kind == EVALUATION]
        assert len(lines) == len(NAMES) + 1
        assert {(line.uses, line.cost.mechanism) for line in lines} == {(1, LAW)}
        assert all(composed([(line.cost, 1)], 1e-3) <= EPSILON for line in lines)
        honest = SURVIVORS - 1
        assert shown["noise_scale"] == pytest.approx(lines[0].cost.noise_multiplier * (len(NAMES) / honest) ** 0.5)
        server.finish()
        assert "Gaussian noise" in (server.run.public / "statement.txt").read_text()


def test_a_masked_vector_says_nothing_and_is_only_sent_again(programs: list[Program], tmp_path: Path) -> None:
    sent: list[bytes] = []
    with ended(programs, tmp_path) as (server, silos):

        def twice(exchange: str, slot: int, question: bytes) -> bytes:
            first = silos[slot].answer(question)
            if exchange == "vector":
                assert silos[slot].answer(question) == first
                sent.append(first)
            return first

        evaluate(server, twice)
        assert len(shown_before(server.run)) == 1
        assert all(len(evaluation_lines(silo)) == 1 for silo in silos)
        raw = [np.rint(vector * GRID_STEPS) for vector in vectors(server, silos)]
        words = [np.frombuffer(one[-4 * len(raw[0]) :], "<u4").view(np.int32) for one in sent]
        assert all(np.abs(word - own).min() > 1000 for word, own in zip(words, raw, strict=True))


def test_a_silo_that_drops_out_is_left_out_and_too_few_give_up(programs: list[Program], tmp_path: Path) -> None:
    with ended(programs, tmp_path) as (server, silos):

        def without(*lost: int) -> Answer:
            def answer(exchange: str, slot: int, question: bytes) -> bytes | None:
                return None if exchange != "keys" and slot in lost else silos[slot].answer(question)

            return answer

        assert evaluate(server, without(0, 1)).why
        assert shown_before(server.run) == []
        assert all(evaluation_lines(silo) == [] for silo in silos)  # nobody was asked for a vector
        assert not evaluate(server, without(3)).why
        (shown,) = shown_before(server.run)
        assert (shown["counted"], shown.get("without")) == (3, ["d"])


def test_without_leave_or_before_the_end_a_silo_gives_no_keys(programs: list[Program], tmp_path: Path) -> None:
    silent = program(0, evaluate=None)
    assert silent.tests is None
    with ended([silent, *programs[1:]], tmp_path) as (server, silos):
        evaluate(server, lambda _, slot, question: silos[slot].answer(question))
        (shown,) = shown_before(server.run)
        assert (shown["counted"], shown.get("without")) == (3, ["a"])
        assert "no leave" in log_of(silos[0])
        assert evaluation_lines(silos[0]) == []
    with ExitStack() as stack:
        server = stack.enter_context(Coordinator(STUDY, tmp_path / "early"))
        silos = [stack.enter_context(Worker(one, tmp_path / f"early-{one.policy.client}")) for one in programs]
        assert evaluate(server, lambda _, slot, question: silos[slot].answer(question)).why
        assert "has not ended" in log_of(silos[1])


def test_a_server_that_asks_for_less_noise_is_refused(programs: list[Program]) -> None:
    """Planted: the study's copy at the server has less noise in the evaluation; the silo's own pins refuse it."""
    sums, tests = programs[1].sums, programs[1].tests
    assert sums is not None
    number = STUDY.experiment.rounds
    agreed = sums.shared.agreement(number)
    sums.pins_for(number, tests).require(agreed)
    with pytest.raises(Exception, match="deviation"):
        sums.pins_for(number, tests).require(replace(agreed, deviation=agreed.deviation / 2))


def test_too_few_silos_with_test_rows_are_refused_in_the_study() -> None:
    with pytest.raises(ConfigError, match="survivors=3"):
        study_of((3, 3, 0, 0))
