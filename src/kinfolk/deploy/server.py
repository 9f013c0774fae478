"""The server as processes: Flower's SuperLink, the silos' keys made known to it, and the run."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinfolk.deploy import flower_api
from kinfolk.deploy.flower_processes import Command, Places, connection, flwr, running, superlink
from kinfolk.deploy.flower_server import STOPPED
from kinfolk.deploy.keys import node_key, require_valid
from kinfolk.deploy.local_socket import LONGEST_PATH
from kinfolk.deploy.study import read_study
from kinfolk.training.run_directory import Run, RunError

STARTING = 120.0
"""Seconds that a program may take to start."""
FREEING = 30.0
"""Seconds that a program which was stopped may take to end."""


def known_keys(folder: Path) -> list[Path]:
    """The public keys of the study's silos."""
    return [folder / "keys" / f"{client}.pub" for client in read_study(folder).roster.clients]


def server_commands(
    folder: Path, places: Places, round_seconds: float, wait_seconds: float, ends_with: int = 0
) -> list[Command]:
    """In order: the SuperLink, one registration for each silo, the run, which ends with another process."""
    register = [flwr(folder, "supernode", "register", str(key), "federation") for key in known_keys(folder)]
    times = f"round-seconds={round_seconds:.1f} wait-seconds={wait_seconds:.1f}" + (
        f" ends-with={ends_with}" if ends_with else ""
    )
    start = flwr(folder, "run", str(folder / "app"), "federation", "--stream", "--run-config", times)
    return [superlink(folder, places), *register, start]


def connection_command(folder: Path, places: Places) -> str:
    """As a line for a shell: tells Flower's command line where the SuperLink is."""
    text = connection(folder, places).replace("\n", "\\n")
    return f"printf %b {shlex.quote(text)} > {shlex.quote(str(folder / 'flower' / 'config.toml'))}"


@contextmanager
def places_of(folder: Path, host: str, port: int, local: int) -> Iterator[Places]:
    """Where the parts of a server meet; `local`: 0 for any free port."""
    with tempfile.TemporaryDirectory(prefix="kinfolk") as short:
        own = folder / "flower" / "post"
        post = own if len(str(own)) <= LONGEST_PATH else Path(short) / "post"
        yield Places(host, port, local or free_port(), post)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until somebody listens."""
    until = time.monotonic() + STARTING
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RunError(f"the SuperLink has stopped with code {process.returncode}: see {log}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RunError(f"the SuperLink did not open port={port} in {STARTING:g} seconds: see {log}")


def wait_until_free(port: int) -> None:
    """Waits until nobody listens: the SuperLink of a server that was killed needs a moment to end."""
    until = time.monotonic() + FREEING
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.2)
    raise RunError(f"port={port} is in use by another program: stop that, or give another --port")


def register(folder: Path) -> None:
    """Makes the silos' keys known to the SuperLink."""
    try:
        flower_api.register(folder / "flower", {path.stem: node_key(path) for path in known_keys(folder)})
    except ValueError as error:
        raise RunError(f"a key in {folder / 'keys'} could not be registered: {error}") from None


def remove_raw_messages(folder: Path) -> None:
    """Deletes the SuperLink's database and its logs, in which versions before this one left silos' answers."""
    for old in folder.glob("superlink.db*"):
        old.unlink()


def run_server(folder: Path, places: Places, round_seconds: float, wait_seconds: float) -> Run:
    """Starts everything, goes on with an unfinished run or begins one, and returns it when it has ended."""
    folder = folder.absolute()
    link, *_, start = server_commands(folder, places, round_seconds, wait_seconds, os.getpid())
    log = folder / "superlink.log"
    for name in ("ca.crt", "server.crt"):
        require_valid(folder / name)
    remove_raw_messages(folder)
    (folder / "flower" / "config.toml").write_text(connection(folder, places))
    wait_until_free(places.port)
    with running(link, log) as process:
        wait_for_port(places.local, process, log)
        register(folder)
        with running(start, folder / "run.log") as run:
            run.wait()
        last = last_run(folder)
        told = None if last is None else last.private / STOPPED
        if told is not None and told.exists():
            raise RunError(told.read_text())
        if last is None or not last.done():
            raise RunError(f"the run has not ended: see {folder / 'run.log'}; start the server again to go on")
        return last


def last_run(folder: Path) -> Run | None:
    """The newest run of a server's folder."""
    found = sorted((folder / "runs").glob("*/private/study.json"), key=lambda path: path.stat().st_mtime)
    return Run(found[-1].parent.parent) if found else None
