"""What a real federation costs per round, beside the same rounds in simulation.

    python -m benchmarks.speed.federation [--silos 4] [--rounds 10] [--hidden 0] [--supernode] [--in-process] [--json]

Three ways to the same result, at example level with test keys: the resident engine; a coordinator and workers in one
process with serialised messages; and (unless --in-process) separate processes over Flower, TLS and node keys on, one
process for each silo, forked from one that has all imports behind it. `--supernode` adds a fourth: three processes for
each silo, with Flower's own SuperNode and the relay. Needs `kinfolk[flower]`. `--silos 50 --rounds 10` is the large
case in silos; `--silos 10 --rounds 3 --hidden 1300` has large messages, 1.7 million weights of two hidden layers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kinfolk.data.federation import Federation, from_rows
from kinfolk.deploy import flower_api, flower_processes, message_relay
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.flower_processes import Command, write_node_secret
from kinfolk.deploy.local_socket import door_of
from kinfolk.deploy.policy import Columns
from kinfolk.deploy.scaffold import TARGET, policy_for, write_federation
from kinfolk.deploy.server import last_run
from kinfolk.deploy.silo import run_silo, run_worker
from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.study import Roster, Study
from kinfolk.deploy.worker import Worker
from kinfolk.engines.resident import State, start_all
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import prepare
from kinfolk.training.sweep import sweep_of
from kinfolk.types import Rows

FEATURES = tuple(f"feature{k}" for k in range(8))
PORT = 9292
AT_ONCE = 3
"""Silos that start at the same time, once the first one has compiled."""
SHARED_CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
"""Silos of one machine run the same program: the first one compiles it for all."""


def study_of(silos: int, rounds: int, hidden: int = 0) -> tuple[Study, Federation]:
    """Silos of 200 rows and a private logistic regression each."""
    generator = np.random.default_rng(0)
    names = tuple(f"silo{k:02d}" for k in range(silos))
    x = generator.uniform(-1, 1, (200 * silos, len(FEATURES))).astype(np.float32)
    y = (x @ generator.normal(size=len(FEATURES)) > 0).astype(np.int32)
    federation = from_rows(x, y, np.repeat(names, 200), test_fraction=0.0, outcome="binary")
    experiment = Experiment(
        name="benchmark",
        seed=0,
        model=ModelChoice("mlp", (hidden, hidden)) if hidden else ModelChoice("logistic"),
        training=Training(batch_size=32),
        privacy=PrivacyLevel(Level.EXAMPLE, noise_multiplier=2.0, delta=1e-4),
        phases=(Phase("mean_regularized", rounds),),
    )
    return Study(Roster("benchmark", federation.ids, FEATURES), experiment), federation


def cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


def simulated(study: Study, federation: Federation) -> tuple[Any, dict[str, float]]:
    job = prepare(study.experiment, [federation])
    figure = sweep_of(job)

    def run() -> State:
        state = start_all(job.plan, figure.algorithms, study.key[None])
        return jax.block_until_ready(figure.rounds(state, 0, study.experiment.rounds))

    run()
    began, used = time.monotonic(), cpu()
    state = run()
    return state.shared, _per_round(study, began, used)


def in_process(study: Study, federation: Federation, folder: Path) -> tuple[Any, dict[str, float]]:
    policies = [policy_for(study, name) for name in study.roster.clients]
    size = [int(n) for n in federation.train.sizes]
    with ExitStack() as stack:
        server = stack.enter_context(Coordinator(study, folder / "server", test_keys=True))
        workers = []
        for slot, policy in enumerate(policies):
            own = federation.train.x[slot, : size[slot]], federation.train.y[slot, : size[slot]]
            program = prepare_silo(study, policy, Rows(*own, np.ones(size[slot], bool)))
            workers.append(stack.enter_context(Worker(program, folder / policy.client)))
        warm_up(workers[0].program)
        began, used = time.monotonic(), cpu()
        while not server.finished():
            ask = server.ask()
            server.take(ask, {slot: workers[slot].answer(ask.request) for slot in ask.cohort})
        return server.shared, _per_round(study, began, used)


def warm_up(program: Program) -> None:
    """Compiles the program that all silos run; what it computes is thrown away, so nothing is released."""
    shared = program.study.first()
    program.compute(0, shared, program.begin(0, shared), program.meter(0, dict.fromkeys(program.account.uses, 0), 0))


def over_flower(
    study: Study,
    federation: Federation,
    folder: Path,
    supernode: bool = False,
    harm: Callable[[list[Any]], None] | None = None,
) -> tuple[Any, dict[str, float]]:
    """Times of rounds as the server saw them; CPU seconds of everything, starting included.

    `harm`: what is done to the silos' processes when some rounds are over.
    """
    bounds = dict.fromkeys(FEATURES, (-1.0, 1.0))
    policies = [
        policy_for(
            study,
            name,
            data=Columns("data.csv", name, TARGET, dict(bounds)),
            ledger="ledger.jsonl",
            answer_every=0.0,
        )
        for name in study.roster.clients
    ]
    home = folder / ("s" if supernode else "f")
    write_federation(home, study, policies, ["127.0.0.1"])
    for slot, name in enumerate(study.roster.clients):
        table = np.column_stack([federation.train.x[slot], federation.train.y[slot]])
        path = home / "silos" / name / "data.csv"
        np.savetxt(path, table, delimiter=",", header=",".join((*FEATURES, TARGET)), comments="")
    began, silos, used = time.monotonic(), [], np.zeros(2)
    words = ["deploy", "server", home / "server", "--port", PORT, "--wait-seconds", 550]
    program = [sys.executable, "-c", "from kinfolk.cli.main import main; main()", *map(str, words)]
    server = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    os.environ.update(SHARED_CACHE, JAX_COMPILATION_CACHE_DIR=str(folder / "cache"))
    warm = multiprocessing.get_context("forkserver")
    warm.set_forkserver_preload(["benchmarks.speed.warm_silo"])
    try:
        while last_run(home / "server") is None and server.poll() is None:  # by then the SuperLink knows all silos
            time.sleep(0.5)
        doors = [home / "silos" / name / "state" / "door" for name in study.roster.clients]
        logs = [folder / f"{name}.log" for name in study.roster.clients]
        for slot, name in enumerate(study.roster.clients):
            while starting(doors[:slot], logs[:slot]) >= (AT_ONCE if slot > 1 else 1):
                time.sleep(0.1)
            words = (home / "silos" / name, f"127.0.0.1:{PORT}", PORT + 1 + slot, logs[slot])
            if supernode:
                write_node_secret(words[0])
            programs = (worker, node, carrier) if supernode else (silo,)
            parts = [warm.Process(target=program, args=words) for program in programs]
            silos += parts
            for part in parts:
                part.start()
        while server.poll() is None:
            used = np.maximum(used, np.sum([usage(process.pid) for process in (server, *silos)], axis=0))
            if harm is not None and finished_rounds(home / "server") >= 2:
                harm(silos)
                harm = None
            with suppress(subprocess.TimeoutExpired):
                server.wait(10 if harm is None else 0.05)
        whole = time.monotonic() - began
        if server.returncode:
            raise RuntimeError(f"the server has failed: see {home / 'server'}")
    finally:
        server.terminate()
        for process in silos:
            process.terminate()
            process.join()
    run = last_run(home / "server")
    assert run is not None
    if (run.private / "times.jsonl").exists():
        times = [json.loads(line)["seconds"] for line in (run.private / "times.jsonl").read_text().splitlines()]
    else:  # a secret at client level with a trusted aggregator; here the files of the rounds say it
        times = np.diff([path.stat().st_mtime for path in sorted((run.public / "shared").glob("*.npz"))]).tolist()
    shared = [value for _, value in sorted(np.load(run.public / "shared.npz").items())]
    return shared, {
        "seconds_per_round": round(float(np.median(times)), 3),
        "longest_round": round(max(times), 3),
        "seconds_with_starting": round(whole, 1),
        "cpu_seconds_with_starting": round(float(used[1]), 1),
        "megabytes": round(float(used[0])),
    }


def finished_rounds(server: Path) -> int:
    """How many rounds of the newest run are over."""
    run = last_run(server)
    times = None if run is None else run.private / "times.jsonl"
    return len(times.read_text().splitlines()) if times is not None and times.exists() else 0


def leaves_of(simulated: Any) -> list[np.ndarray]:
    """The arrays of the one run of a simulation."""
    return [np.asarray(leaf)[0, 0] for leaf in jax.tree.leaves(simulated)]


def require_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Simulation's result, but for rounding."""
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-4, atol=1e-5)


def starting(doors: list[Path], logs: list[Path]) -> int:
    """How many silos have not compiled yet."""
    ready = (d.exists() or (n.exists() and "connected" in n.read_text()) for d, n in zip(doors, logs, strict=True))
    return sum(not one for one in ready)


def silo(folder: Path, address: str, port: int, log: Path) -> None:
    """What `kinfolk deploy silo` runs."""
    _become(Command((), {}), log)
    run_silo(folder, address)


def worker(folder: Path, address: str, port: int, log: Path) -> None:
    """The first of the three programs that `kinfolk deploy silo --supernode --explain` shows."""
    _become(Command((), {}), log)
    run_worker(folder)


def node(folder: Path, address: str, port: int, log: Path) -> None:
    """The second: Flower's SuperNode."""
    command = flower_processes.supernode(folder, address, port)
    _become(command, log)
    flower_api.run_supernode(command.words[1:])


def carrier(folder: Path, address: str, port: int, log: Path) -> None:
    """The third: what carries messages between the two."""
    command = flower_processes.carrier(folder, port, door_of(folder / "state"))
    _become(replace(command, words=command.words[2:]), log)
    message_relay.main()


def _become(command: Command, log: Path) -> None:
    """Arguments, environment and output of a program of its own."""
    sys.argv[:] = command.words
    os.environ.update(command.environment)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def usage(process: int) -> tuple[float, float]:
    """Megabytes (shared ones divided among their users) and CPU seconds of a process and all it started. Linux only."""
    try:
        place = Path(f"/proc/{process}")
        text = (place / "smaps_rollup").read_text()
        own = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024
        ticks = sum(map(int, (place / "stat").read_text().rpartition(")")[2].split()[11:15]))
        children = [int(child) for task in place.glob("task/*/children") for child in task.read_text().split()]
    except OSError:  # it has just ended
        return 0.0, 0.0
    found = [(own, ticks / os.sysconf("SC_CLK_TCK")), *map(usage, children)]
    return sum(megabytes for megabytes, _ in found), sum(seconds for _, seconds in found)


def _per_round(study: Study, began: float, used: float) -> dict[str, float]:
    rounds = study.experiment.rounds
    return {
        "seconds_per_round": round((time.monotonic() - began) / rounds, 5),
        "cpu_seconds_per_round": round((cpu() - used) / rounds, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=0, help="width of two hidden layers; 0: logistic regression")
    parser.add_argument("--supernode", action="store_true", help="with Flower's own SuperNode, too")
    parser.add_argument("--in-process", action="store_true", help="leave Flower out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    study, federation = study_of(arguments.silos, arguments.rounds, arguments.hidden)
    ways: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="kf") as name:
        expected, ways["simulation"] = simulated(study, federation)
        shared, ways["one process, serialised messages"] = in_process(study, federation, Path(name))
        expected = leaves_of(expected)
        results = [jax.tree.leaves(shared)]
        if not arguments.in_process:
            shared, ways["separate processes over Flower"] = over_flower(study, federation, Path(name))
            results.append(shared)
        if arguments.supernode:
            shared, ways["separate processes with SuperNodes"] = over_flower(study, federation, Path(name), True)
            results.append(shared)
    for found in results:
        require_same(found, expected)
    if arguments.json:
        print(json.dumps({"silos": arguments.silos, "rounds": arguments.rounds, "ways": ways}))
        return
    for way, numbers in ways.items():
        print(f"{way}: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in numbers.items()))


if __name__ == "__main__":
    main()
