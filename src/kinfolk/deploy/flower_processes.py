"""The Flower programs of a federation, as command lines and environments: to be started, or shown to be copied."""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kinfolk.deploy import flower_api, post_socket, superlink_guard
from kinfolk.deploy.keys import write_secret
from kinfolk.toml import ConfigError

SECRET = "node.secret"


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and what it finds in its environment besides the usual."""

    words: tuple[str, ...]
    environment: dict[str, str]

    def shown(self) -> str:
        """As a line for a shell."""
        given = " ".join(f"{key}={shlex.quote(value)}" for key, value in self.environment.items())
        return f"env {given} {shlex.join(self.words)}"

    def complete(self) -> dict[str, str]:
        """The whole environment."""
        return {**os.environ, **self.environment}


def flower_program(name: str) -> str:
    """Where one of Flower's programs is: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} is not installed: pip install 'kinfolk[flower]'")
    return found


def supernode(folder: Path, address: str, port: int) -> Command:
    """A silo's SuperNode: over TLS, with the silo's key; it starts no programs, so it cannot run what it is sent."""
    home = node_home(folder)
    options = flower_api.supernode_options(folder, address, port, home / SECRET)
    return Command((flower_program("flower-supernode"), *options), {**flower_api.QUIET, "FLWR_HOME": str(home)})


def carrier(folder: Path, port: int, door: Path) -> Command:
    """What carries messages from the SuperNode to the worker's door and back."""
    home = node_home(folder)
    module = (sys.executable, "-m", "kinfolk.deploy.message_relay")
    words = (*module, f"127.0.0.1:{port}", str(home / SECRET), str(door))
    return Command(words, {**flower_api.QUIET, "FLWR_HOME": str(home)})


def node_home(folder: Path) -> Path:
    """What Flower keeps at a silo; nothing of it is private."""
    return folder / "flower"


def write_node_secret(folder: Path) -> None:
    """A new secret between a SuperNode and its carrier, so that nobody else on the machine can stand in for it."""
    path = node_home(folder) / SECRET
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    write_secret(path, secrets.token_bytes(32))


def secret_command(folder: Path) -> str:
    """The same as a line for a shell."""
    home = shlex.quote(str(node_home(folder)))
    return f"(umask 077; mkdir -p {home}; head -c 32 /dev/urandom > {home}/{SECRET})"


@dataclass(frozen=True)
class Places:
    """Where a server's parts meet."""

    host: str
    port: int
    """Where silos call."""
    local: int
    """The port on this machine for the rest of Flower's interface."""
    post: Path
    """The socket of the post office."""


def superlink(folder: Path, places: Places) -> Command:
    """The server's SuperLink behind its guard: TLS, and nodes known by their keys."""
    words = (
        sys.executable,
        "-m",
        "kinfolk.deploy.superlink_guard",
        *flower_api.superlink_options(folder, places.local),
    )
    host = f"[{places.host}]" if ":" in places.host else places.host
    own = {superlink_guard.PUBLIC: f"{host}:{places.port}", post_socket.SOCKET: str(places.post)}
    return Command(words, {**_flower_home(folder), **own, "FORWARDED_ALLOW_IPS": ""})


def flwr(folder: Path, *words: str) -> Command:
    """Flower's own command line, for the operator of the server."""
    return Command((flower_program("flwr"), *words), _flower_home(folder))


def _flower_home(folder: Path) -> dict[str, str]:
    return {**flower_api.QUIET, "PATH": _path(), "FLWR_HOME": str(folder / "flower")}


def connection(folder: Path, places: Places) -> str:
    """What Flower's command line has to find in `flower/config.toml`."""
    return flower_api.CONNECTION.format(port=places.local, certificate=folder / "ca.crt")


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def end_with_parent() -> None:
    """Called in a new process before its program: on Linux it is stopped when the one that started it dies."""
    if sys.platform == "linux":
        stop_signal_option = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(stop_signal_option, signal.SIGTERM)


def end_with(process: int) -> None:
    """On Linux this process ends as soon as that one has, whatever it is doing; 0 is nobody.

    For the server's app, which Flower starts and which would otherwise outlive a server that was killed. Where the
    system does not let processes be watched, it ends when Flower notices.
    """
    if not process or not hasattr(os, "pidfd_open"):
        return
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        return

    def watch() -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def running(command: Command, log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs as long as the context; its output goes to a file, or to where this one's goes."""
    with _own_log(log) if log else nullcontext() as file:
        errors = subprocess.STDOUT if log else None
        process = subprocess.Popen(
            command.words,
            env=command.complete(),
            stdout=file,
            stderr=errors,
            preexec_fn=end_with_parent,
            umask=0o077,  # at client level Flower's database holds raw messages
        )
        try:
            yield process
        finally:
            stop(process)


def _own_log(path: Path) -> BinaryIO:
    """A log to append to, for its owner alone: it may say who was asked."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.fchmod(handle, 0o600)
    return os.fdopen(handle, "ab")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asks a program to end, and ends it when it does not."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
