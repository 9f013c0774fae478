"""The worker's side of the local socket: the only way to a silo's data, and only for processes of its owner."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from kinfolk.deploy.message_relay import REFUSAL, receive, send
from kinfolk.deploy.worker import Worker
from kinfolk.toml import ConfigError

LONGEST_PATH = 100
"""Unix sockets have short names."""
PATIENCE = 30.0
"""Seconds that a caller may take to hand over its request."""


def door_of(folder: Path) -> Path:
    """Where the worker of a state folder listens."""
    return folder.absolute() / "door"


def open_door(path: Path) -> socket.socket:
    """A listening socket that only this user may use. The ledger's lock says that no other worker is alive."""
    if len(str(path)) > LONGEST_PATH:
        raise ConfigError(f"{path} is longer than the {LONGEST_PATH} characters of a socket: use a shorter folder")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(8)
    return listener


def serve(worker: Worker, listener: socket.socket) -> None:
    """Answers one request after the other, for ever."""
    while True:
        connection, _ = listener.accept()
        with connection:
            serve_one(worker, connection)


def serve_one(worker: Worker, connection: socket.socket) -> None:
    """One request. The answer, a refusal too, leaves at a multiple of `answer_every` seconds after it came."""
    began = time.monotonic()
    try:
        connection.settimeout(PATIENCE)
        try:
            request = receive(connection, worker.longest_request)
        except ValueError:
            answer = REFUSAL
        else:
            answer = worker.answer(request)
        wait_for_next(began, worker.program.policy.answer_every)
        connection.settimeout(PATIENCE)
        send(connection, answer)
    except OSError:  # the caller has gone; what was computed is stored, and sent when asked for again
        return


def wait_for_next(began: float, every: float) -> None:
    """Sleeps to the next multiple of `every` seconds since `began`."""
    if every > 0:
        gone = time.monotonic() - began
        time.sleep(every - gone % every)
