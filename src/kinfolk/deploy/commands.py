"""The Flower programs of a federation, as command lines and environments: to be started, or shown to be copied."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from kinfolk.deploy import gatekeeper, proxy
from kinfolk.deploy.door import door_of
from kinfolk.experiment import ConfigError

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
"""Flower reports nothing to anybody."""
PROGRAMS = "programs"


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


def write_programs(folder: Path, programs: dict[str, Path | str]) -> Path:
    """A folder to be the whole PATH of a Flower process: these programs and no others can be started from it."""
    place = folder / PROGRAMS
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, target in programs.items():
        script = f"#!/bin/sh\nexec '{sys.executable}' '{target}' \"$@\"\n"
        (place / name).write_text(script)
        (place / name).chmod(0o755)
    return place


def supernode(folder: Path, state: Path, address: str, port: int, door: Path | None = None) -> Command:
    """A silo's SuperNode: over TLS, with the silo's key, and unable to run code that it was sent."""
    place = write_programs(
        folder, {"flower-superexec": flower_program("flower-superexec"), "flwr-clientapp": str(proxy.__file__)}
    )
    words = (
        flower_program("flower-supernode"),
        *("--root-certificates", str(folder / "ca.crt")),
        *("--superlink", address),
        *("--auth-supernode-private-key", str(folder / "node")),
        *("--host", "127.0.0.1", "--port", str(port)),
    )
    environment = {
        **QUIET,
        "PATH": str(place),
        "FLWR_HOME": str(state / "flower"),
        proxy.DOOR: str(door or door_of(state)),
    }
    return Command(words, environment)


def superlink(folder: Path, host: str, port: int) -> Command:
    """The server's SuperLink behind its guard: TLS, and nodes known by their keys."""
    words = (
        sys.executable,
        str(gatekeeper.__file__),
        *("--ssl-ca-certfile", str(folder / "ca.crt")),
        *("--ssl-certfile", str(folder / "server.crt")),
        *("--ssl-keyfile", str(folder / "server.key")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--database", str(folder / "superlink.db")),
        *("--host", host, "--port", str(port)),
    )
    return Command(words, {**QUIET, "PATH": _path(), "FLWR_HOME": str(folder / "flower")})


def flwr(folder: Path, *words: str) -> Command:
    """Flower's own command line, for the operator of the server."""
    return Command((flower_program("flwr"), *words), {**QUIET, "PATH": _path(), "FLWR_HOME": str(folder / "flower")})


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def end_with_parent() -> None:
    """Called in a new process before its program: on Linux it is stopped when the one that started it dies."""
    if sys.platform == "linux":
        stop_signal_option = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(stop_signal_option, signal.SIGTERM)
