"""A silo as processes: the worker, which owns data and ledger, and Flower's SuperNode, which owns the network."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from kinfolk.deploy.commands import end_with_parent, stop
from kinfolk.deploy.door import door_of, open_door, serve
from kinfolk.deploy.policy import read_policy
from kinfolk.deploy.program import Program, prepare_silo
from kinfolk.deploy.scaffold import POLICY_FILE
from kinfolk.deploy.study import read_study
from kinfolk.deploy.table import read_table
from kinfolk.deploy.worker import Worker
from kinfolk.experiment import ConfigError
from kinfolk.privacy.release import PrivacyError


def read_silo(folder: Path) -> Program:
    """The silo in a folder with study, experiment and policy, checked and ready; its table is read here."""
    study, policy = read_study(folder), read_policy(folder / POLICY_FILE)
    return prepare_silo(study, policy, read_table(folder / policy.data.path, policy.data, study.roster))


def state_of(folder: Path) -> Path:
    """Where a silo keeps its ledger, its personal state and what it sent."""
    return folder.absolute() / read_policy(folder / POLICY_FILE).state


def run_worker(folder: Path, door: Path | None = None, ready: int | None = None) -> None:
    """Serves until it is stopped. `ready` is a file descriptor that gets a byte when the door is open."""
    program = read_silo(folder)
    with Worker(program, state_of(folder)) as worker:
        warm_up(program)
        with open_door(door or door_of(worker.folder)) as listener:
            if ready is not None:
                os.write(ready, b"r")
                os.close(ready)
            serve(worker, listener)


def warm_up(program: Program) -> None:
    """Compiles the first phase beforehand; what it computes is thrown away, so nothing is released."""
    shared = program.study.first()
    program.compute(0, shared, program.begin(0, shared), program.meter(0, dict.fromkeys(program.uses, 0), 0))


CHILD = "import sys; from kinfolk.deploy.silo import work; work(*sys.argv[1:])"


def start_worker(stack: ExitStack, folder: Path, door: Path) -> subprocess.Popen[bytes]:
    """The worker as a process of its own, when its door is open; it ends with the stack."""
    reader, writer = os.pipe()
    words = [sys.executable, "-c", CHILD, str(folder), str(door), str(writer)]
    worker = subprocess.Popen(words, pass_fds=(writer,), preexec_fn=end_with_parent)
    stack.callback(stop, worker)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        if not file.read(1):
            raise ConfigError(f"the worker of {folder} did not start (code {worker.wait()}): see its message")
    return worker


def work(folder: str, door: str, ready: str) -> None:
    """The worker as a child; an error that its owner can cause is one message."""
    try:
        run_worker(Path(folder), Path(door), int(ready))
    except (ValueError, PrivacyError, RuntimeError) as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
