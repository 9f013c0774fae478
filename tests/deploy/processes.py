"""What the tests of separate processes need: hospitals, free ports, and a line that drops and repeats bytes."""

from __future__ import annotations

import csv
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

MARKS = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),  # a child only asks to end with its parent
    pytest.mark.skipif(find_spec("flwr") is None, reason="Flower is not installed: pip install 'kinfolk[flower]'"),
]
BOUNDS = {
    "age": (0.0, 120.0),
    "sex": (0.0, 1.0),
    "cp": (1.0, 4.0),
    "trestbps": (0.0, 300.0),
    "restecg": (0.0, 2.0),
    "thalach": (0.0, 250.0),
    "exang": (0.0, 1.0),
    "oldpeak": (-5.0, 10.0),
}
"""Columns of the heart-disease data that nearly everybody filled in, and bounds that a physician would give."""


def heart_tables(source: Path) -> dict[str, np.ndarray]:
    """For every hospital its complete rows: the columns above, then whether there is a disease."""
    with np.load(source) as file:
        names = [str(name) for name in file["feature_name"]]
        table = np.column_stack([file["x"][:, [names.index(name) for name in BOUNDS]], file["y"] > 0])
        client, hospitals = file["client"], [str(name) for name in file["client_name"]]
    whole = np.isfinite(table).all(axis=1)
    return {name: table[whole & (client == k)] for k, name in enumerate(hospitals)}


def write_table(path: Path, header: tuple[str, ...], rows: np.ndarray) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([[repr(float(value)) for value in row] for row in rows])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kinfolk(*words: object, log: Path) -> subprocess.Popen[bytes]:
    """The command line as a process."""
    program = [sys.executable, "-c", "from kinfolk.cli.main import main; main()"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with log.open("ab") as file:
        return subprocess.Popen([*program, *map(str, words)], stdout=file, stderr=subprocess.STDOUT, env=environment)


def wait_until(found: Callable[[], bool], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not found():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds} seconds")
        time.sleep(0.25)


def require_success(process: subprocess.Popen[bytes], seconds: float, *logs: Path) -> None:
    """Waits for a process; when it fails or does not end, says what was printed last."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    words = "\n".join(f"--- {path}\n{path.read_text()[-4000:]}" for path in logs)
    assert process.returncode == 0, f"code={process.returncode} within {seconds} seconds\n{words}"


class BadLine:
    """A TCP line that now and then hangs up, sends bytes twice, or sends old bytes again."""

    def __init__(self, target: int, seed: int = 0, often: float = 0.012) -> None:
        self.target, self.often, self.harm = target, often, {"dropped": 0, "duplicated": 0, "replayed": 0}
        self._chance, self._turn = random.Random(seed), itertools.cycle(self.harm)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(caller,), daemon=True).start()

    def _join(self, caller: socket.socket) -> None:
        try:
            called = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            caller.close()
            return
        for one, other in ((caller, called), (called, caller)):
            threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        old = b""
        with suppress(OSError):
            while part := one.recv(65536):
                other.sendall(part)
                if self._chance.random() < self.often:
                    harm = next(self._turn)
                    self.harm[harm] += 1
                    if harm == "dropped":
                        break
                    other.sendall(part if harm == "duplicated" else old or part)
                old = part
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()


@contextmanager
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list; what is in it at the end is stopped."""
    found: list[subprocess.Popen[bytes]] = []
    try:
        yield found
    finally:
        for process in found:
            process.terminate()
        for process in found:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
