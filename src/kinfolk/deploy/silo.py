"""A silo as processes: one, in which the worker answers what comes over its own line to the server; or two, where the
worker, which owns data and ledger, and the line, which owns the network, belong to two users; or three, where Flower's
SuperNode and a relay stand for the line."""

from __future__ import annotations

import ctypes
import gc
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from kinfolk.accounting.owner import default_ledger
from kinfolk.deploy.flower_processes import Command, carrier, running, supernode, write_node_secret
from kinfolk.deploy.keys import require_valid, signing_key
from kinfolk.deploy.local_socket import door_of, open_door, serve, wait_for_next
from kinfolk.deploy.message_relay import LONGEST_ANSWER, ask_worker
from kinfolk.deploy.policy import read_policy
from kinfolk.deploy.scaffold import POLICY_FILE
from kinfolk.deploy.silo_line import Line, signs_of_life
from kinfolk.deploy.silo_line import serve as serve_line
from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.silo_table import read_table
from kinfolk.deploy.study import read_study
from kinfolk.deploy.worker import Worker

RESTART = 3.0
"""Seconds before programs that have ended are started again."""


def read_silo(folder: Path) -> Program:
    """The silo in a folder with study, experiment and policy, checked and ready; its table is read here."""
    study, policy = read_study(folder), read_policy(folder / POLICY_FILE)
    rows, identity = read_table(folder, policy.data, study.roster)
    key = signing_key(folder / policy.signing) if study.sums_are_secure else None
    return prepare_silo(study, policy, rows, identity, key)


def state_of(folder: Path) -> Path:
    """Where a silo keeps its personal state and what it sent."""
    return folder.absolute() / read_policy(folder / POLICY_FILE).state


def ledger_of(folder: Path) -> Path:
    """The ledger that a silo charges: its owner's, or in a test its own."""
    policy = read_policy(folder / POLICY_FILE)
    if policy.test_keys:
        return state_of(folder) / "ledger.jsonl"
    return default_ledger() if policy.ledger is None else folder.absolute() / policy.ledger


def run_worker(folder: Path, door: Path | None = None) -> None:
    """Serves what comes through the door until it is stopped."""
    with opened(folder, door) as (worker, listener):
        serve(worker, listener)


def run_silo(folder: Path, address: str) -> None:
    """The worker and its line in this process, until it is stopped."""
    with ready(folder) as worker:

        def answer(request: bytes) -> bytes:
            began = time.monotonic()
            answer = worker.answer(request)
            wait_for_next(began, worker.program.policy.answer_every)
            return answer

        run_line(folder, address, answer, worker.longest_request)


def run_network(folder: Path, address: str, door: Path) -> None:
    """Only the line: carries what comes over it to the worker's door, and back, until it is stopped."""
    run_line(folder, address, partial(ask_worker, str(door)))


def run_line(folder: Path, address: str, answer: Callable[[bytes], bytes], longest: int = LONGEST_ANSWER) -> None:
    """A silo's line to its server, until it is stopped."""
    require_valid(folder / "ca.crt")
    line, second = (Line(address, folder / "ca.crt", folder / "node", longest) for _ in range(2))
    with signs_of_life(second) as heard:
        serve_line(line, heard(answer), partial(print, flush=True))


def run_supernode(folder: Path, address: str, port: int, door: Path | None = None) -> None:
    """The worker in this process, and Flower's SuperNode and the relay beside it, until it is stopped."""
    write_node_secret(folder)
    place = door or door_of(state_of(folder))
    with (
        opened(folder, place) as (worker, listener),
        kept_running(supernode(folder, address, port), carrier(folder, port, place)),
    ):
        serve(worker, listener)


@contextmanager
def ready(folder: Path) -> Iterator[Worker]:
    """A silo's worker, compiled."""
    program = read_silo(folder).compile()
    give_back_memory()
    with Worker(program, state_of(folder), ledger_of(folder)) as worker:
        yield worker


def give_back_memory() -> None:
    """Hands memory that preparing and compiling needed back to the system, where it can be done: some 50 MB."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # not every C library has it
            ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def opened(folder: Path, door: Path | None = None) -> Iterator[tuple[Worker, socket.socket]]:
    """A silo's worker, compiled, and its open door."""
    with ready(folder) as worker, open_door(door or door_of(worker.folder)) as listener:
        yield worker, listener


@contextmanager
def kept_running(*commands: Command, log: Path | None = None) -> Iterator[None]:
    """Programs that belong together: when one of them ends, all are stopped and started again.

    A SuperNode ends when the server does not know it yet; a carrier, when a message was lost on the way to it.
    """
    ended = threading.Event()

    def keep() -> None:
        while not ended.is_set():
            with ExitStack() as stack:
                started = [stack.enter_context(running(command, log)) for command in commands]
                while all(process.poll() is None for process in started) and not ended.wait(0.5):
                    pass
            ended.wait(RESTART)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
