"""Clients divided among devices and processes: the same results, one noise, and refusals that say what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import jax
import pytest

from kinfolk import Engine, Experiment
from kinfolk.devices import usable
from kinfolk.toml import ConfigError
from kinfolk.training.prepare import prepare
from tests.engines import on_devices
from tests.small import six_schools


def started(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    program = [sys.executable, "-m", on_devices.__name__, *arguments]
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert said.strip().endswith("the same")


@pytest.mark.slow
def test_results_do_not_depend_on_how_many_devices_there_are() -> None:
    finished(started())


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core is not divided")
def test_an_experiment_divides_a_cpu_by_itself() -> None:
    finished(started("asked"))


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_several_processes_compute_what_one_does(count: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for process in [started(str(count), str(number), port) for number in range(count)]:
        finished(process)


def test_more_devices_than_there_are_and_releases_in_several_processes_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="devices=99 must lie between 1 and the 1 that JAX sees here"):
        usable(99)
    with pytest.raises(ConfigError, match="devices=99"):
        prepare(Experiment(seed=0, engine=Engine(devices=99)), six_schools())
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match="seed=None in a job of 2 processes"):
        prepare(Experiment(), six_schools())
