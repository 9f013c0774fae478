"""Side by side with other libraries, on CPU: seconds per round.

    python -m benchmarks.peers.run [--task clients silo] [--models softmax cnn_leaf] [--peers ...] [--turns 6] [--json]

`clients`: 205 writers (FEMNIST where KINFOLK_DATA has it, else images of the same shape), 100 of them in a round, one
local epoch of batches of 10 on 20 or 30 images, clipped updates, noise on their sum. `silo`: the writers' images
together are one silo's, a round is one epoch of Poisson batches of 64, every example's gradient is clipped, noise is on
each batch's sum. Each peer runs in a virtual environment of its own, made here under `--folder`; all start from the
same weights with the same settings, and take turns of a few rounds, so that whatever else the machine does hits all of
them. A ratio counts only if the final losses agree within 2 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.simulators.turns import MARK, Task, write
from kinfolk.data.federation import DataError
from kinfolk.data.sets.femnist import femnist
from kinfolk.training.build import build_model
from kinfolk.training.experiment import ModelChoice

ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0"
OPACUS = ("-r", str(ROOT / "benchmarks/peers/requirements-opacus.txt"))
CLIENTS, CLASSES, AGREE = 205, 62, 0.02
MODELS = ("softmax", "cnn_leaf")


@dataclass(frozen=True)
class Program:
    """A peer: its script among the simulators, and what the script's environment needs; None: that of kinfolk."""

    script: str
    needs: tuple[str, ...] | None = None
    devices: int = 1
    """XLA devices that the processor's cores are divided among."""


@dataclass(frozen=True)
class Setting:
    """What a task has besides the model and its weights."""

    peers: dict[str, Program]
    cohort: int
    batch_size: int
    noise: float
    step_size: float
    images: dict[str, int]
    """Of all clients, or of the silo, by model."""
    in_a_turn: dict[str, int]
    """Rounds that a peer does at a time, by model."""


SETTINGS = {
    "clients": Setting(
        {
            "kinfolk": Program("ours"),
            "kinfolk_devices": Program("ours", devices=os.cpu_count() or 1),
            "torch_loop": Program("torch_loop", (TORCH, "numpy")),
            "fedjax": Program("fed_jax", ("fedjax==0.0.17",)),
            "pfl": Program("pfl_sim", ("pfl==0.6.0", TORCH)),
            "flower": Program("flower_sim", ("flwr[simulation]==1.41.0", TORCH)),
        },
        cohort=100,
        batch_size=10,
        noise=0.01,
        step_size=0.05,
        images={},
        in_a_turn={"softmax": 20, "cnn_leaf": 5},
    ),
    "silo": Setting(
        {
            "kinfolk": Program("silo_ours"),
            "jax_privacy": Program("silo_jax_privacy"),
            "opacus": Program("silo_opacus", OPACUS),
            "opacus_ghost": Program("silo_opacus", OPACUS),
        },
        cohort=1,
        batch_size=64,
        noise=1.0,
        step_size=0.05,
        images={"softmax": 4096, "cnn_leaf": 512},
        in_a_turn={"softmax": 1, "cnn_leaf": 1},
    ),
}
NAMES = list(dict.fromkeys(name for setting in SETTINGS.values() for name in setting.peers))


def images(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Images and labels of every client, padded, how many are real (20 or 30), and where they are from."""
    generator = np.random.default_rng(seed)
    x = np.zeros((CLIENTS, 30, 28, 28), np.float32)
    y = np.zeros((CLIENTS, 30), np.int32)
    sizes = np.sort(generator.choice([20, 30], CLIENTS))
    try:
        data = femnist(seed=seed).train
    except DataError:
        y[:] = generator.integers(0, CLASSES, y.shape)
        shapes = generator.uniform(size=(CLASSES, 28, 28)) ** 3
        x[:] = shapes[y] * generator.uniform(0.5, 1, (*y.shape, 1, 1))
        return x, y, sizes, "synthetic images"
    order = np.flatnonzero(data.sizes >= 20)
    chosen = np.sort(generator.choice(order, CLIENTS, replace=len(order) < CLIENTS))
    sizes = np.minimum(sizes, 10 * (data.sizes[chosen] // 10))
    for row, (client, size) in enumerate(zip(chosen.tolist(), sizes.tolist(), strict=True)):
        rows = data.rows(slice(client, client + 1), int(data.sizes[client]))
        x[row, :size], y[row, :size] = rows.x[0, :size, :, :, 0], rows.y[0, :size]
    return x, y, sizes, "FEMNIST"


def task_for(name: str, setting: Setting, turns: int) -> tuple[Task, str]:
    x, y, sizes, source = images()
    if kept := setting.images.get(name):
        real = np.arange(y.shape[1]) < sizes[:, None]
        x, y, sizes = x[real][None, :kept], y[real][None, :kept], np.array([kept])
    model = build_model(ModelChoice(name), (28, 28, 1), "classes", CLASSES)
    weights = [(np.asarray(own["weights"]), np.asarray(own["bias"])) for own in model.init(jax.random.key(0)) if own]
    return Task(
        model=name,
        x=x,
        y=y,
        sizes=sizes,
        classes=CLASSES,
        weights=weights,
        rounds=turns * setting.in_a_turn[name],
        in_a_turn=setting.in_a_turn[name],
        cohort=setting.cohort,
        batch_size=setting.batch_size,
        step_size=setting.step_size,
        clip=1.0,
        noise=setting.noise,
    ), source


def loss(task: Task, weights: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Mean loss of a shared model over all clients' images."""
    model = build_model(ModelChoice(task.model), (28, 28, 1), "classes", CLASSES)
    layers = iter(weights)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = tuple(dict(zip(("weights", "bias"), next(layers), strict=True)) if own else {} for own in shapes)
    real = np.arange(task.y.shape[1]) < task.sizes[:, None]
    each = jax.jit(lambda x, y: jax.lax.map(lambda one: model.loss(params, *one), (x, y), batch_size=50))
    return float(each(jnp.asarray(task.x[real][..., None]), jnp.asarray(task.y[real])).mean())


def environment(program: Program, folder: Path) -> Path:
    """The Python of a peer's environment, which is made if it is not there."""
    if program.needs is None:
        return Path(sys.executable)
    where = folder / "envs" / program.script
    python = where / "bin" / "python"
    if not (where / "ready").exists():
        print(f"installing {program.script}: {' '.join(program.needs)}", file=sys.stderr)
        venv.create(where, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *program.needs], check=True)
        (where / "ready").touch()
    return python


def cpu_seconds(root: int) -> float:
    """Of a process and all below it, so far."""
    used, parent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        number = int(path.parent.name)
        parent[number], used[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {root}
    while more := {n for n, above in parent.items() if above in family} - family:
        family |= more
    return sum(used.get(n, 0) for n in family) / os.sysconf("SC_CLK_TCK")


class Peer:
    """A peer's process, which does a round when told to."""

    def __init__(self, name: str, program: Program, in_a_turn: int, task: Path, folder: Path) -> None:
        self.name = name
        self.in_a_turn = in_a_turn
        self.result = folder / f"{task.stem}-{name}.npz"
        self.log = (folder / f"{task.stem}-{name}.log").open("w")
        paths = [str(ROOT), *([os.environ.get("PYTHONPATH", "")] if program.needs is None else [])]
        flags = os.environ.get("XLA_FLAGS", "")
        if program.devices > 1:
            flags += f" --xla_force_host_platform_device_count={program.devices}"
        self.process = subprocess.Popen(
            [
                environment(program, folder),
                "-m",
                f"benchmarks.peers.simulators.{program.script}",
                task,
                self.result,
                name,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "PEER_TASK": str(task),
                "XLA_FLAGS": flags,
                "FLWR_TELEMETRY_ENABLED": "0",
                "OMP_WAIT_POLICY": "PASSIVE",
            },
        )
        self.times: list[dict[str, float]] = []

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line[len(MARK) :])
            self.log.write(line)
        raise RuntimeError(f"{self.name} stopped; see {self.log.name}")

    def round(self) -> None:
        assert self.process.stdin is not None
        before = cpu_seconds(self.process.pid)
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.times.append(self.answer() | {"cpu": (cpu_seconds(self.process.pid) - before) / self.in_a_turn})

    def weights(self) -> list[tuple[np.ndarray, np.ndarray]]:
        self.answer()
        self.process.wait(timeout=60)
        with np.load(self.result) as file:
            return [(file[f"weights{n}"], file[f"bias{n}"]) for n in range(len(file.files) // 2)]


def compare(what: str, name: str, peers: list[str], turns: int, folder: Path) -> dict[str, Any]:
    setting = SETTINGS[what]
    task, source = task_for(name, setting, turns)
    path = folder / f"{what}-{name}.npz"
    write(task, path)
    running: dict[str, Peer] = {}
    failed: dict[str, str] = {}
    for peer in (peer for peer in setting.peers if peer in peers):
        try:
            running[peer] = Peer(peer, setting.peers[peer], task.in_a_turn, path, folder)
            running[peer].answer()
        except (RuntimeError, subprocess.CalledProcessError) as error:
            running.pop(peer, None)
            failed[peer] = str(error)
    for _ in range(turns):
        for peer in list(running):
            try:
                running[peer].round()
            except (RuntimeError, BrokenPipeError) as error:
                failed[peer] = str(error)
                del running[peer]
    found: dict[str, Any] = {}
    for peer, process in list(running.items()):
        after_warm_up = process.times[1:]
        found[peer] = {
            "seconds": statistics.median(t["seconds"] for t in after_warm_up),
            "fastest": min(t["seconds"] for t in after_warm_up),
            "cpu_seconds": statistics.mean(t["cpu"] for t in after_warm_up),
            "loss": loss(task, process.weights()),
        }
    ours = found.get("kinfolk")
    for row in found.values():
        row["agrees"] = ours is not None and abs(row["loss"] / ours["loss"] - 1) <= AGREE
        row["ratio"] = row["seconds"] / ours["seconds"] if ours else None
    begun = loss(task, task.weights)
    return {
        "task": what,
        "model": name,
        "data": source,
        "rounds": task.rounds,
        "first_loss": begun,
        "peers": found,
        "failed": failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--peers", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--turns", type=int, default=6, help="the first one warms up and is not counted")
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for what, name in itertools.product(args.task, args.models):
        before = os.getloadavg()[0]
        result = compare(what, name, args.peers, args.turns, args.folder.absolute())
        result |= {"load_before": before, "cores": os.cpu_count()}
        if args.json:
            print(json.dumps(result), flush=True)
            continue
        print(f"{what}, {name} on {result['data']}, {result['rounds']} rounds, loss {result['first_loss']:.3f} before")
        for peer, row in result["peers"].items():
            note = "" if row["agrees"] else "  loss differs: does not count"
            print(
                f"  {peer:15s} {row['seconds']:8.3f} s per round (fastest {row['fastest']:.3f}, CPU "
                f"{row['cpu_seconds']:.3f}), {row['ratio']:6.2f} x kinfolk, loss {row['loss']:.4f}{note}"
            )
        for peer, why in result["failed"].items():
            print(f"  {peer:15s} {why}")


if __name__ == "__main__":
    main()
