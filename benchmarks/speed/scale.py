"""Very many clients: what a round costs when clients' states are on disk, and how much memory and disk that takes.

    python -m benchmarks.speed.scale [--rounds 40] [--clients 10000 100000 1000000] [--folder DIR] [--json]

Logistic regression with 1000 features, 8 rows per client, 1000 clients per round, mean-regularised at client level.
First the streaming engine with 100 000 clients (states on disk, rows in a memory-mapped file) beside the resident
engine with 5 000, turn by turn. Then each number of clients with rows from a function, in a process of its own, whose
anonymous memory is watched. Free disk is checked first, and everything written is removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.data.federation import Federation
from kinfolk.data.lazy import from_arrays, from_function
from kinfolk.engines import client_store, streaming
from kinfolk.privacy.levels import client_level
from kinfolk.training.build import as_array
from kinfolk.training.experiment import Engine, Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.sweep import sweep_of

FEATURES, ROWS, COHORT = 1000, 8, 1000
RESIDENT, ON_DISK = 5_000, 100_000
TURNS = 5
"""How often the two engines take turns."""


def made(ids: Any) -> tuple[Any, Any]:
    """Rows of these clients: labels by a direction that all share, and one's own."""
    common = jax.random.normal(jax.random.key(1), (FEATURES,))

    def of(client: Any) -> tuple[Any, Any]:
        rows, own = jax.random.split(jax.random.fold_in(jax.random.key(2), client))
        x = jax.random.bits(rows, (ROWS, FEATURES), jnp.uint8).astype(jnp.float32) / 127.5 - 1
        own = common + jax.random.normal(own, (FEATURES,))
        return x, (x @ own > 0).astype(jnp.int32)

    return jax.vmap(of)(ids)


def mapped(folder: Path, clients: int) -> Federation:
    """The same rows, written to files and mapped."""
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (clients, ROWS, FEATURES))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.int32, (clients, ROWS))
    some = jax.jit(made)
    for first in range(0, clients, 1000):
        x[first : first + 1000], y[first : first + 1000] = some(np.arange(first, first + 1000, dtype=np.int32))
    x.flush()
    files = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy"]
    return from_arrays(files[0], files[1], np.full(clients, ROWS), outcome="binary")


def experiment_of(where: str, rounds: int) -> Experiment:
    return Experiment(
        seed=0,
        model=ModelChoice("logistic"),
        training=Training(batch_size=4),
        privacy=client_level(noise_multiplier=1.0, delta=1e-8, cohort=float(COHORT)),
        phases=(Phase("mean_regularized", rounds),),
        engine=Engine(where),
    )


def job_of(data: Federation, where: str, rounds: int) -> Job:
    return prepare(experiment_of(where, rounds), [data])


@contextmanager
def timed(rounds: int) -> Iterator[list[float]]:
    """Milliseconds per round, of wall time and of all threads' CPU time."""
    spent: list[float] = []
    wall, cpu = time.perf_counter(), time.process_time()
    yield spent
    spent += [1e3 * (time.perf_counter() - wall) / rounds, 1e3 * (time.process_time() - cpu) / rounds]


class Resident:
    """The resident engine, some rounds at a time."""

    def __init__(self, job: Job) -> None:
        self.job, self.done = job, 0
        self.figure = sweep_of(job)
        self.state = self.figure.init([0])

    def go(self, rounds: int) -> list[float]:
        end = self.done + rounds
        with timed(rounds) as spent:
            self.state = jax.block_until_ready(self.figure.rounds(self.state, self.done, end))
        self.done = end
        return spent


class Streaming:
    """The streaming engine with states on disk, some rounds at a time; afterwards they are flushed to the disk."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.done, self.flushed = job, 0, 0.0
        clients = trees.row(job.clients, 0)
        self.fixed: Any = (
            job.plan,
            as_array(job.algorithms[0]),
            as_array(job.terms),
            clients,
            job.federations[0].train,
        )
        self.state = streaming.start(
            job.plan,
            self.fixed[1],
            jax.random.key(0),
            lambda shapes: client_store.on_disk(shapes, job.plan.clients, folder, "states"),
        )

    def go(self, rounds: int) -> list[float]:
        end = self.done + rounds
        with timed(rounds) as spent:
            self.state = self.run(range(self.done, end))
            jax.block_until_ready(self.state.shared)
        with timed(rounds) as flushed:
            self.state.store.flush()
            self.state.store.keep()
        self.done, self.flushed = end, flushed[0]
        return spent

    def run(self, rounds: range) -> streaming.Streamed:
        plan, algorithm, terms, clients, data = self.fixed
        return streaming.run_rounds(plan, algorithm, terms, clients, data, self.state, rounds)

    def disk(self) -> dict[str, float]:
        files = [file.stat() for file in self.state.store.files]
        return {
            "disk_gb": round(sum(512 * file.st_blocks for file in files) / 1e9, 2),
            "most_disk_gb": round(sum(file.st_size for file in files) / 1e9, 2),
        }


def side_by_side(folder: Path, rounds: int) -> dict[str, float]:
    """Seconds per round of both engines, in turns; medians."""
    data = mapped(folder, ON_DISK)
    few = [np.array(part[:RESIDENT]) for part in (data.train.x, data.train.y, data.train.sizes)]
    first = from_arrays(few[0], few[1], few[2], outcome="binary")
    every = (TURNS + 1) * rounds
    resident, streamed = Resident(job_of(first, "device", every)), Streaming(job_of(data, "disk", every), folder)
    times = []
    for turn in range(TURNS + 1):
        both = [*resident.go(rounds), *streamed.go(rounds), streamed.flushed]
        if turn:  # the first compiles
            times.append(both)
    found = np.median(times, axis=0)
    names = ("resident_ms", "resident_cpu_ms", "on_disk_ms", "on_disk_cpu_ms", "flush_ms")
    ratios = {
        "ratio": found[2] / found[0],
        "cpu_ratio": found[3] / found[1],
        "ratio_with_flush": (found[2] + found[4]) / found[0],
    }
    return {name: round(float(value), 2) for name, value in [*zip(names, found, strict=True), *ratios.items()]}


def from_a_function(folder: Path, clients: int, rounds: int) -> dict[str, float]:
    """One number of clients: time, peak anonymous memory of this process, and disk."""
    stop, peak = threading.Event(), [0.0]

    def watch() -> None:
        while not stop.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            peak[0] = max(peak[0], next(int(line.split()[1]) * 1024 / 1e9 for line in lines if "RssAnon" in line))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began = time.perf_counter()
    job = job_of(from_function(made, clients, ROWS, outcome="binary"), "disk", 2 * rounds)
    streamed = Streaming(job, folder)
    streamed.go(rounds)
    ready = time.perf_counter() - began
    spent = streamed.go(rounds)
    stop.set()
    watcher.join()
    return {
        "clients": clients,
        "ms": round(spent[0], 1),
        "cpu_ms": round(spent[1], 1),
        "ready_s": round(ready, 1),
        "anonymous_gb": round(peak[0], 2),
    } | streamed.disk()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clients", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--one", type=int, help="this number of clients only, in this process")
    parser.add_argument("--skip-engines", action="store_true", help="leave the two engines side by side out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    needed = 10e9
    if (free := shutil.disk_usage(arguments.folder).free) < needed:
        parser.error(f"{arguments.folder} has {free / 1e9:.1f} GB free, and this needs 10: choose another --folder")
    if arguments.one:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            print(json.dumps(from_a_function(Path(name), arguments.one, arguments.rounds)))
        return
    found: dict[str, Any] = {}
    if not arguments.skip_engines:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            found["engines"] = side_by_side(Path(name), arguments.rounds)
    common = [sys.executable, "-m", "benchmarks.speed.scale", "--rounds", str(arguments.rounds)]
    common += ["--folder", str(arguments.folder)]
    found["sizes"] = [
        json.loads(subprocess.run([*common, "--one", str(n)], check=True, capture_output=True, text=True).stdout)
        for n in arguments.clients
    ]
    if arguments.json:
        print(json.dumps(found))
        return
    for line in [found["engines"]] * ("engines" in found) + found["sizes"]:
        print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in line.items()))


if __name__ == "__main__":
    main()
