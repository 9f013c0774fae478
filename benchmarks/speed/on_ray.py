"""Pieces of work on Ray: what a piece costs besides its work, and what a kill costs.

    .venv-ray/bin/python -m benchmarks.speed.on_ray [--rounds 300]      # `make test-ray` makes that environment

Prints the seconds until Ray has started here and until a first piece is done, those of each of 500 pieces that do
nothing, and then trains four cells of a comparison three times: on two nodes of one core each (both on this machine),
on the same while the process of one cell is killed in the middle of its rounds, and while a whole node is. What comes
out is compared, byte by byte, with the same cells trained here.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from kinfolk.cli.compare import Cell, Cells, simulated
from kinfolk.data.choice import DataChoice
from kinfolk.privacy.levels import example_level
from kinfolk.training import on_ray
from kinfolk.training.experiment import Experiment, Phase, Training
from kinfolk.training.pieces import Result, each
from kinfolk.training.run_directory import Run

FILES = ("public/models.npz", "public/shared.npz", "private/clients.json")


class Place(NamedTuple):
    """Where cells are trained, and which of them were begun by which process."""

    cells: Cells
    begun: Path


def nothing(common: None, piece: int) -> Result:
    return Result(piece)


def trained(place: Place, cell: Cell) -> Result:
    """A cell of a comparison; its process notes itself first."""
    with (place.begun / cell.label).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return simulated(place.cells, cell)


def cells_of(rounds: int) -> dict[str, Cell]:
    found = {}
    for budget in (1.0, 2.0, 4.0, 8.0):
        experiment = Experiment(
            name="cell",
            seed=0,
            data=DataChoice("synthetic_schools"),
            training=Training(None),
            privacy=example_level(budget),
            phases=(Phase("mean_regularized", rounds),),
        )
        found[f"{budget:g}"] = Cell(f"{budget:g}", experiment, "mean_regularized", budget)
    return found


def comparison(folder: Path, rounds: int, on: str | None, kill: Callable[[Place], None] | None = None) -> Any:
    """Trains all cells; returns their files, how often each was begun, and the seconds it took."""
    place = Place(Cells(folder / "runs", None, folder / "notes", True), folder / "begun")
    for path in (folder, place.cells.output, place.cells.begun, place.begun):
        path.mkdir()
    killer = threading.Thread(target=kill, args=(place,)) if kill else None
    if killer:
        killer.start()
    began = time.monotonic()
    found = each(trained, place, cells_of(rounds), on=on)
    seconds = time.monotonic() - began
    if killer:
        killer.join()
    files = [[(place.cells.output / one.values / name).read_bytes() for name in FILES] for one in found.values()]
    begun = {path.name: len(path.read_text().split()) for path in sorted(place.begun.iterdir())}
    return files, begun, seconds


def in_the_middle(place: Place) -> str:
    """Waits until a cell has a checkpoint and is not done; returns its label."""
    while True:
        for run in map(Run, place.cells.output.glob("cell-*")):
            if (run.private / "checkpoint.npz").exists() and not run.done():
                return f"{run.experiment().privacy.epsilon:g}"
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    ray, cluster_utils = import_module("ray"), import_module("ray.cluster_utils")
    began = time.monotonic()
    with on_ray.connected(ray, on_ray.LOCAL):
        started = time.monotonic() - began
        began = time.monotonic()
        each(nothing, None, {"first": 0}, on=on_ray.HERE)
        first = time.monotonic() - began
        began = time.monotonic()
        each(nothing, None, {str(k): k for k in range(500)}, on=on_ray.HERE)
        print(f"started in {started:.1f} s, first piece after {first:.1f} s more; 500 pieces that do nothing: ", end="")
        print(f"{(time.monotonic() - began) / 500 * 1e3:.1f} ms each", flush=True)

    with tempfile.TemporaryDirectory(prefix="ray-") as name:
        folder = Path(name)
        here, _, seconds = comparison(folder / "here", rounds, None)
        print(f"four cells of {rounds} rounds here: {seconds:.1f} s", flush=True)
        cluster = cluster_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]

        def kill_process(place: Place) -> None:
            pid = int((place.begun / in_the_middle(place)).read_text().split()[-1])
            os.kill(pid, signal.SIGKILL)

        def kill_node(place: Place) -> None:
            in_the_middle(place)
            cluster.remove_node(nodes[0], allow_graceful=False)

        try:
            kills = {"nothing is killed": None, "a process is killed": kill_process, "a node is killed": kill_node}
            for what, kill in kills.items():
                files, begun, seconds = comparison(folder / what.replace(" ", "-"), rounds, cluster.address, kill)
                same = "the same files" if files == here else "OTHER FILES"
                print(f"on two nodes, {what}: {seconds:.1f} s, {same}; cells were begun {begun} times", flush=True)
                if files != here:
                    sys.exit(1)
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    main()
