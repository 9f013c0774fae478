"""Pieces of work on Ray: the only module that knows it, and imports it when it is asked for.

Every piece is a task with one core, or one GPU where there are any. What all have in common is sent to each machine
once, and unpacked once in each process. Ray starts a task again whose process or machine is gone.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module, metadata
from typing import Any

from kinfolk.toml import ConfigError
from kinfolk.training.run_files import RunError

HERE, LOCAL = "ray", "local"
"""Ours and Ray's word for a Ray that is started on this machine, for as long as the work takes."""
RETRIES = 3
"""So often a piece is begun again when its process is gone; one that takes too much memory would never end."""
PASSED_ON = ("KINFOLK_", "JAX_")
"""Settings of the environment that go along to a cluster, by how they begin."""
SAME = ("kinfolk", "jax", "jaxlib", "numpy", "scipy", "dp-accounting")
"""Packages on which numbers depend."""


def outcomes(
    work: Callable[[Any, Any], Any], common: Any, pieces: Mapping[str, Any], on: str
) -> Iterator[tuple[str, Any]]:
    """Names of pieces with what came of them, a result or an error, as they come.

    `work`: a function that can be imported. `common`: its first argument, for all. `pieces`: its second, by name.
    `on`: `ray`, or HOST:PORT of a cluster.
    """
    address = address_of(on)
    if address != LOCAL:
        _require_answer(address)
    ray = _ray()
    with _quiet(), connected(ray, address):
        packed = ray.put(ray.cloudpickle.dumps((work, common)))
        most = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
        task = ray.remote(max_retries=RETRIES, **most)(_done)
        waiting = {task.remote(packed, _versions(), piece): name for name, piece in pieces.items()}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            for one in ready:
                yield waiting.pop(one), _outcome(ray, one)


def address_of(on: str) -> str:
    """What Ray calls the place. `on`: what we call it.

    >>> address_of("ray"), address_of("10.0.0.1:6379")
    ('local', '10.0.0.1:6379')
    """
    if on == HERE:
        return LOCAL
    if not re.fullmatch(r"[^\s:/]+:\d+", on):
        raise ConfigError(f"on={on!r} is neither 'ray' (this machine) nor HOST:PORT of a Ray cluster")
    return on


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise ConfigError("on='ray' needs Ray: pip install 'kinfolk[ray]'") from None


@contextmanager
def connected(ray: Any, address: str) -> Iterator[None]:
    """A connection for as long as it is needed; one that the caller's program has already is used, and left.

    `ray`: the module. `address`: what Ray calls the place.
    """
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"include_dashboard": False}
    if address != LOCAL:
        passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        options = {"runtime_env": {"env_vars": passed}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX's; Ray forks to run a program of its own
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Ray says about processes that are gone: pages of it, on standard output, where results are."""
    own: Any = import_module("ray._private.worker")
    before = getattr(own, "_worker_logs_enabled", True)
    own._worker_logs_enabled = False
    try:
        yield
    finally:
        own._worker_logs_enabled = before


def _require_answer(address: str) -> None:
    """Says in seconds that nobody is there, which Ray takes minutes for."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"on={address!r}: nothing answers there ({error}). `ray start --head --port=6379` starts a cluster, and "
            "prints its address; --on ray needs none"
        ) from None


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in SAME}}


def _done(packed: bytes, versions: Mapping[str, str], piece: Any) -> Any:
    """What a process of Ray does: one piece."""
    own = _versions()
    other = [f"{name} {own[name]} instead of {wanted}" for name, wanted in versions.items() if own[name] != wanted]
    if other:
        raise ConfigError(f"{platform.node()} has {', '.join(other)}: numbers may differ; install the same everywhere")
    work, common = _unpacked(packed)
    return work(common, piece)


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> tuple[Callable[[Any, Any], Any], Any]:
    """The same objects for all pieces that a process does, so that it compiles a program once."""
    return import_module("ray").cloudpickle.loads(packed)


def _outcome(ray: Any, reference: Any) -> Any:
    """A result, or the error that the piece itself raised, or one that says that its process was lost."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else RunError(str(error))
    except ray.exceptions.RayError as error:
        why = str(error).strip().partition("\n")[0]
        return RunError(
            f"the process that did this piece was lost {RETRIES + 1} times ({type(error).__name__}: {why}). Often it "
            "takes more memory than a node has: give Ray fewer cores, or larger nodes"
        )
