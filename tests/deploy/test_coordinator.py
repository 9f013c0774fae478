"""Broken and malicious silos against an honest server: the run goes on, and the account stays right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kinfolk.accounting.ledger import RELEASED, LedgerError, read_lines
from kinfolk.deploy.coordinator import Ask, Coordinator, absences
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.wire import pack, read_header
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from tests.deploy.federations import CLIENTS, study_of

EXAMPLE = study_of("fedavg", "example", seed=None, epsilon=2.0, noise_multiplier=None)
CLIENT = study_of("fedavg", "client", seed=None, epsilon=8.0, noise_multiplier=None, cohort=2.0)


def good(server: Coordinator, ask: Ask, value: float = 1.0, **changes: Any) -> bytes:
    header = {"version": 1, "study": server.study.digest, "run": server.run.name, "round": ask.number, **changes}
    form = server.study.message_shapes[0]
    return pack(header, jax.tree.map(lambda leaf: np.full(leaf.shape, value, leaf.dtype), form))


def level(server: Coordinator) -> float:
    return float(jax.tree.leaves(server.shared)[0].ravel()[0])


def test_a_mean_is_divided_by_the_expected_size(tmp_path: Path) -> None:
    with Coordinator(EXAMPLE, tmp_path) as server:
        ask = server.ask()
        assert ask.cohort == (0, 1, 2)
        server.take(ask, {0: good(server, ask), 1: good(server, ask)})
        np.testing.assert_allclose(level(server), 2 / 3, rtol=1e-6)
        told = [json.loads(line) for line in (server.run.private / "rounds.jsonl").read_text().splitlines()]
        assert told == [{"round": 0, "absent": ["c"]}]


def bad_answers(server: Coordinator, ask: Ask) -> dict[str, bytes]:
    fine = good(server, ask)
    return {
        "refusal": REFUSAL,
        "nothing": b"",
        "nan": good(server, ask, np.nan),
        "infinite": good(server, ask, np.inf),
        "huge": good(server, ask, 1e30),
        "oversized": fine + b"\0" * 10**6,
        "cut": fine[:-1],
        "replayed from another round": good(server, ask, round=ask.number + 1),
        "replayed from another run": good(server, ask, run="another"),
        "another study": good(server, ask, study="0" * 64),
        "chatty": good(server, ask, loss=0.3),
        "no json": b"x" + fine,
    }


@pytest.mark.slow
def test_a_bad_answer_is_a_zero_message(tmp_path: Path) -> None:
    study = study_of("fedavg", "example", seed=None, epsilon=2.0, noise_multiplier=None, rounds=20)
    with Coordinator(study, tmp_path) as server:
        for number, name in enumerate(bad_answers(server, server.ask()), 1):
            ask = server.ask()
            server.take(ask, {0: bad_answers(server, ask)[name], 1: good(server, ask)})
            np.testing.assert_allclose(level(server), number / 3, rtol=1e-5, err_msg=name)


def test_an_answer_of_somebody_who_was_not_asked_does_not_count(tmp_path: Path) -> None:
    with Coordinator(EXAMPLE, tmp_path) as server:
        ask = server.ask()
        answers = {0: good(server, ask), 1: good(server, ask), 7: good(server, ask), -1: good(server, ask)}
        server.take(Ask(0, (0,), ask.request), answers)
        np.testing.assert_allclose(level(server), 1 / 3, rtol=1e-6)


def test_a_restart_goes_on_after_the_last_saved_round(tmp_path: Path) -> None:
    with Coordinator(EXAMPLE, tmp_path) as server:
        ask = server.ask()
        server.take(ask, {0: good(server, ask)})
        name, before = server.run.name, level(server)
        server.ask()  # asked, and died
    with Coordinator(EXAMPLE, tmp_path) as server:
        assert (server.run.name, server.done, level(server)) == (name, 1, before)
        header, _ = read_header(server.ask().request)
        assert (header["round"], header["run"]) == (1, name)


@pytest.mark.fast
def test_client_level_pays_before_it_publishes(tmp_path: Path) -> None:
    with Coordinator(CLIENT, tmp_path) as server:
        for number in range(3):
            ask = server.ask()
            assert ask.number == number
            server.take(ask, {slot: good(server, ask, 0.1) for slot in ask.cohort})
            paid = [line.rounds for line in read_lines(tmp_path / "ledger.jsonl")]
            assert paid == [(n, n + 1) for n in range(number + 1)]
        assert server.finished()
        result = server.finish()
    assert {line.noise for line in read_lines(tmp_path / "ledger.jsonl")} == {RELEASED}
    assert result["epsilon"] <= 8.0
    assert result.get("epsilon_if_participation_is_seen", 0.0) > result["epsilon"]
    assert not (server.run.private / "rounds.jsonl").exists()  # who took part is written nowhere
    with pytest.raises(LedgerError, match="beyond its budget"):
        Coordinator(CLIENT, tmp_path)  # a second run would cost as much again


def test_client_level_a_crash_between_charge_and_save_is_paid_for_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Coordinator(CLIENT, tmp_path) as server:
        ask = server.ask()
        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "_publish_round", lambda *_: (_ for _ in ()).throw(OSError("power cut")))
            with pytest.raises(OSError, match="power cut"):
                server.take(ask, {})
    with Coordinator(CLIENT, tmp_path) as server:
        assert server.done == 0
        rounds = 0
        while not server.finished() and server.affordable():
            ask = server.ask()
            server.take(ask, {})
            rounds += 1
        result = server.finish()
    assert rounds == 2  # the third is no longer covered
    assert result["rounds"] == 2
    assert result["epsilon"] <= 8.0


def test_adaptive_clipping_goes_on_after_a_restart(tmp_path: Path) -> None:
    """The clip is read off releases alone, so it may be kept; noise and coins are drawn anew."""
    study = study_of("fedavg", "client", seed=None, epsilon=8.0, noise_multiplier=None, clip_quantile=0.5)
    with Coordinator(study, tmp_path) as server:
        ask = server.ask()
        server.take(ask, {slot: good(server, ask, 5.0) for slot in ask.cohort})
        moved = float(server.memory)
        assert moved != 1.0
    with Coordinator(study, tmp_path) as server:
        assert float(server.memory) == moved
        while not server.finished():
            server.take(server.ask(), {})
        assert 7.5 < server.finish()["epsilon"] <= 8.0


def test_cohorts_are_drawn_anew_every_time(tmp_path: Path) -> None:
    with Coordinator(CLIENT, tmp_path) as server:
        seen = {server.ask().cohort for _ in range(60)}
    assert len(seen) > 3  # 8 subsets of 3 clients, coins of 2/3
    assert all(set(cohort) <= set(range(len(CLIENTS))) for cohort in seen)


def test_test_keys_must_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="test keys"):
        Coordinator(study_of(), tmp_path)
    with pytest.raises(PrivacyError, match="test keys"):
        Coordinator(EXAMPLE, tmp_path, test_keys=True)


def test_a_round_is_taken_once(tmp_path: Path) -> None:
    with Coordinator(EXAMPLE, tmp_path) as server:
        ask = server.ask()
        server.take(ask, {})
        with pytest.raises(ValueError, match="round 1 is next"):
            server.take(ask, {0: good(server, ask)})


def test_a_server_whose_ledger_lost_a_line_does_not_go_on(tmp_path: Path) -> None:
    with Coordinator(CLIENT, tmp_path) as server:
        for _ in range(2):
            ask = server.ask()
            server.take(ask, {})
        run = server.run.path
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(PrivacyError, match="does not hold the 2 rounds"):
        Coordinator(CLIENT, tmp_path)
    assert (run / "public" / "shared" / "000002.npz").exists(), "what was published stays"


def test_absences_are_in_the_statement_and_in_status(tmp_path: Path) -> None:
    with Coordinator(EXAMPLE, tmp_path) as server:
        for number in range(3):
            ask = server.ask()
            server.take(ask, {slot: good(server, ask) for slot in ((0, 1) if number else (0,))})
        result = server.finish()
        with (server.run.private / "rounds.jsonl").open("a") as file:
            file.write('{"round": 2, "abs')  # a disk that was full
        assert absences(server.run) == result.get("absent") == {"b": 1, "c": 3}
        assert "Absent: b in 1 of 3 rounds, c in 3 of 3 rounds." in (server.run.public / "statement.txt").read_text()


@pytest.mark.fast
def test_a_round_needs_the_quorum(tmp_path: Path) -> None:
    study = replace(EXAMPLE, roster=replace(EXAMPLE.roster, quorum=2))
    with Coordinator(study, tmp_path) as server:
        ask = server.ask()
        answers = {0: good(server, ask), 1: good(server, ask)}
        assert server.enough(ask, answers, ())
        assert not server.enough(ask, {**answers, 1: REFUSAL}, range(3))
    with pytest.raises(ConfigError, match="at most as many"):
        replace(EXAMPLE.roster, quorum=4)


def test_at_client_level_only_who_is_there_decides(tmp_path: Path) -> None:
    """Were rounds drawn anew for want of answers, those who answer would be drawn more often than is paid for."""
    with Coordinator(CLIENT, tmp_path) as server:
        ask = server.ask()
        assert server.enough(ask, {}, [2])
        assert not server.enough(ask, {slot: good(server, ask) for slot in ask.cohort}, [])
        server.take(ask, {}, away=[1])
        assert absences(server.run) == {"b": 1}
