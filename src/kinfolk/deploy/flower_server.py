"""The server's Flower app: carries the coordinator's questions to the silos, and their answers back.

Which node is which silo is decided by the node's key, which Flower has checked, and not by what a node says.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.accounting.ledger import LedgerError
from kinfolk.deploy import flower_api
from kinfolk.deploy.carriers import ByGrid, ByPost, Carrier, exchange, roll_call
from kinfolk.deploy.coordinator import Ask, Coordinator
from kinfolk.deploy.evaluation import Evaluation
from kinfolk.deploy.flower_processes import end_with
from kinfolk.deploy.keys import node_key
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.post_socket import SOCKET, Post
from kinfolk.deploy.server_evaluation import give_up
from kinfolk.deploy.server_sums import KEYS, ServerSums
from kinfolk.deploy.study import Study, read_study
from kinfolk.deploy.wire import LONGEST_HEADER, size_of
from kinfolk.training import run_directory

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

LOOK = 0.25
"""Seconds between two looks for silos that are not there yet."""
PAUSE = 2.0
"""Seconds before a round that had too few silos is asked for again."""
STOPPED = "stopped.txt"
"""The private file that says why a run was given up for now."""


class TooFewError(RuntimeError):
    """Fewer silos than the study's quorum, for too long."""


def server_app() -> ServerApp:
    """The server's app."""
    return flower_api.server_app(main)


def main(grid: Grid, context: Context) -> None:
    """Runs the study in the folder that the run's configuration names, from where it was left."""
    config = context.run_config
    end_with(int(config.get("ends-with", 0)))
    folder = Path(str(config["folder"]))
    study = read_study(folder)
    keys = node_keys(study, folder / "keys")
    conduct(
        (ByPost(Post(Path(os.environ[SOCKET])), keys), ByGrid(grid, keys)),
        folder,
        study,
        round_seconds=float(config.get("round-seconds", 600)),
        wait_seconds=float(config.get("wait-seconds", 600)),
        test_keys=bool(config.get("insecure-test-keys", False)),
    )


def conduct(
    carriers: Sequence[Carrier],
    folder: Path,
    study: Study,
    *,
    round_seconds: float,
    wait_seconds: float,
    test_keys: bool = False,
) -> None:
    """All rounds that are left, then the last words and the statement."""
    everybody, longest = range(study.clients), longest_answer(study)
    with Coordinator(study, folder / "runs", test_keys=test_keys) as server:
        told = server.run.private / STOPPED
        told.unlink(missing_ok=True)
        _wait(carriers, everybody, wait_seconds)
        try:
            if study.sums_are_secure:
                _sum_securely(server, carriers, round_seconds, wait_seconds)
            while not server.finished() and server.affordable():
                began = time.monotonic()
                server.take(*_heard(server, carriers, longest, round_seconds, wait_seconds))
                if not study.level.server_pays:  # times and sizes of cohorts are secret
                    _note_time(server, began)
        except TooFewError as error:
            run_directory.write_text(told, str(error))
            raise
        _end(server, carriers, longest, round_seconds, wait_seconds)
        server.finish()


def _end(
    server: Coordinator, carriers: Sequence[Carrier], longest: int, round_seconds: float, wait_seconds: float
) -> None:
    """The last words, and the evaluation, where the study has one; both again while too few are there for it."""
    until = math.inf
    while True:
        exchange(carriers, range(server.study.clients), server.last_words(), longest, round_seconds)
        ask = server.ask_evaluation()
        if ask is None:
            return
        if server.study.sums_are_secure:
            everybody_answered = _evaluate_securely(server, carriers, round_seconds)
        else:
            answers = exchange(carriers, ask.cohort, ask.request, longest, round_seconds)
            server.take_evaluation(ask, answers)
            everybody_answered = len(answers) == len(ask.cohort)
        until = min(until, time.monotonic() + wait_seconds)
        if everybody_answered or server.ask_evaluation() is None or time.monotonic() >= until:
            return
        time.sleep(min(PAUSE, wait_seconds))


def _evaluate_securely(server: Coordinator, carriers: Sequence[Carrier], round_seconds: float) -> bool:
    """One attempt at the evaluation's sum; True where another one is of no use."""
    sums = ServerSums(server, evaluates=True)
    try:
        while not sums.finished and not sums.why:
            questions = sums.questions()
            sums.take(exchange(carriers, list(questions), questions, sums.longest, round_seconds))
    except LedgerError as error:
        sums.why = str(error)
        give_up(server.run, sums.why)
        return True
    if sums.why:
        give_up(server.run, sums.why)
    return not sums.why


def _note_time(server: Coordinator, began: float) -> None:
    seconds = round(time.monotonic() - began, 3)
    run_directory.append_json(server.run.private / "times.jsonl", {"seconds": seconds})


def _sum_securely(server: Coordinator, carriers: Sequence[Carrier], round_seconds: float, wait_seconds: float) -> None:
    """All rounds that are left, three exchanges each, and one more before the first and after the last."""
    sums, until, began = ServerSums(server), math.inf, time.monotonic()
    while not sums.finished:
        done, questions = server.done, sums.questions()
        sums.take(exchange(carriers, list(questions), questions, sums.longest, round_seconds))
        if server.done > done:
            _note_time(server, began)
            until, began = math.inf, time.monotonic()
        if sums.exchange != KEYS or not sums.why:
            continue
        until = min(until, time.monotonic() + wait_seconds)
        if time.monotonic() >= until:
            raise TooFewError(
                f"round {server.done}: {sums.why}, since {wait_seconds:g} s. Nothing of this round was published: "
                "start the silos, then the server, which goes on"
            )
        time.sleep(min(PAUSE, wait_seconds))


def _heard(
    server: Coordinator, carriers: Sequence[Carrier], longest: int, round_seconds: float, wait_seconds: float
) -> tuple[Ask, dict[int, bytes], set[int]]:
    """A round's question, its answers and who was away; asked again until there are enough of them."""
    everybody, quorum = set(range(server.study.clients)), server.study.roster.quorum
    until, found = math.inf, 0
    while time.monotonic() < until:
        there = set(roll_call(carriers, everybody))
        if len(there) >= quorum:
            ask = server.ask()
            answers = exchange(carriers, ask.cohort, ask.request, longest, round_seconds)
            after = roll_call(carriers, everybody)  # fails where the SuperLink is gone: then no round was lost
            if server.enough(ask, answers, after):
                return ask, answers, everybody - there
            there = set(after) if server.study.level.server_pays else there & set(answers)
        until, found = min(until, time.monotonic() + wait_seconds), len(there)
        time.sleep(min(PAUSE, wait_seconds))
    raise TooFewError(
        f"round {server.done}: {found} of {len(everybody)} silos were heard of after {wait_seconds:g} s, and the "
        f"study's quorum={quorum}. Nothing of this round was published: start the silos, then the server, which goes on"
    )


def longest_answer(study: Study) -> int:
    """No answer of this study has more bytes; what is longer need not be read."""
    phases = range(len(study.algorithms))
    forms = [study.message_shapes[phase] for phase in phases]
    forms += [] if study.experiment.evaluate is None else [Evaluation(study).form]
    return max(len(REFUSAL), LONGEST_HEADER + max(map(size_of, forms)))


def node_keys(study: Study, folder: Path) -> dict[bytes, int]:
    """For the public key of every silo's node, the silo's place in the roster."""
    found = {}
    for slot, client in enumerate(study.roster.clients):
        found[node_key(folder / f"{client}.pub")] = slot
    if len(found) < study.clients:
        raise ValueError("two silos have the same key: give each its own")
    return found


def _wait(carriers: Sequence[Carrier], places: range, seconds: float) -> None:
    """Waits for all silos, but not for ever: who is not there is a zero message."""
    until = time.monotonic() + seconds
    while len(roll_call(carriers, places)) < len(places) and time.monotonic() < until:
        time.sleep(LOOK)
