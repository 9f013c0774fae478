"""What a round of the streaming engine costs as clients, weights and cohort grow: predicted and measured.

    python -m benchmarks.speed.curves [--rounds 20] [--folder DIR]
    python -m benchmarks.speed.curves --longer
    python -m benchmarks.speed.curves --release 1000000 [--afterwards self_select]

Every point is a process of its own (`scale.from_a_function`: logistic regression, 8 rows per client from a function,
states on disk). CPU milliseconds of a round are taken to be a + b x cohort x weights + c x clients; the three numbers
come from the points marked `fitted`, and the others are predicted by them. `--longer`: CPU time of so many rounds, and
of so many seeds of one program in the resident engine, each predicted in proportion to the last, medians of three.
`--release`: a whole release of so many clients instead, with exact noise, a ledger and a statement.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import jax
import numpy as np
from scipy import optimize

from benchmarks.speed import scale
from kinfolk.data.lazy import from_arrays, from_function
from kinfolk.privacy.levels import client_level
from kinfolk.training.experiment import Afterwards, DataChoice, Engine, Experiment, ModelChoice, Phase, Training
from kinfolk.training.loop import run
from kinfolk.training.prepare import prepare
from kinfolk.training.sweep import sweep_of


@dataclass(frozen=True)
class Point:
    """One measurement."""

    clients: int = 10_000
    weights: int = 1000
    cohort: int = 100
    fitted: bool = False
    """Whether the three numbers are found from it."""

    @property
    def terms(self) -> tuple[float, float, float]:
        """What the three numbers are multiplied by."""
        return 1.0, float(self.cohort * self.weights), float(self.clients)


POINTS = (
    *(Point(clients=n, fitted=n == 1_000_000) for n in (100, 1000, 10_000, 100_000, 1_000_000)),
    *(Point(weights=n, fitted=n == 10) for n in (10, 100, 10_000)),
    *(Point(cohort=n, fitted=n == 1000) for n in (10, 1000)),
)


ROUNDS = (10, 20, 40, 80, 160)
SEEDS = (1, 2, 4, 8, 16)
TURNS = 3


def measured(point: Point, rounds: int, folder: Path) -> dict[str, float]:
    """One point, in this process."""
    scale.FEATURES, scale.COHORT = point.weights, point.cohort
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return scale.from_a_function(Path(name), point.clients, rounds)


def by_rounds(folder: Path) -> dict[int, float]:
    """CPU milliseconds of so many rounds in streams, after everything is compiled."""
    scale.FEATURES, scale.COHORT = Point().weights, Point().cohort
    data = from_function(scale.made, Point().clients, scale.ROWS, outcome="binary")
    streamed = scale.Streaming(scale.job_of(data, "disk", TURNS * sum(ROUNDS) + 10), folder)
    streamed.go(10)
    turns = [{rounds: rounds * streamed.go(rounds)[1] for rounds in ROUNDS} for _ in range(TURNS)]
    return {rounds: median(turn[rounds] for turn in turns) for rounds in ROUNDS}


def by_seeds(rounds: int = 400) -> dict[int, float]:
    """CPU milliseconds of some rounds of so many seeds at once, in the resident engine, after compiling."""
    scale.FEATURES, scale.COHORT = 100, 100
    x, y = scale.made(np.arange(500, dtype=np.int32))
    data = from_arrays(np.asarray(x), np.asarray(y), np.full(500, scale.ROWS), outcome="binary")
    found = {}
    for seeds in SEEDS:
        figure = sweep_of(prepare(replace(scale.experiment_of("device", rounds), seeds=seeds), [data] * seeds))
        figure.rounds(figure.init(range(seeds)), 0, 1)
        times = []
        for _ in range(TURNS):
            state = jax.block_until_ready(figure.init(range(seeds)))
            with scale.timed(1) as spent:
                jax.block_until_ready(figure.rounds(state, 0, rounds))
            times.append(spent[1])
        found[seeds] = median(times)
    return found


def longer(folder: Path) -> None:
    """Prints both, each with what is expected in proportion to the last."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        every = {"rounds": by_rounds(Path(name)), "seeds": by_seeds()}
    for what, found in every.items():
        fitted = max(found)
        for count, spent in found.items():
            note = "fitted" if count == fitted else f"predicted {found[fitted] * count / fitted:.0f}"
            print(f"{what} {count}: {spent:.0f} CPU ms, {note}")
    print(f"load {os.getloadavg()[0]:.1f}")


def release(clients: int, folder: Path, afterwards: str | None) -> dict[str, float]:
    """20 rounds of a release, from the plan to the statement: CPU seconds, and peak memory of this process in GB.

    `afterwards`: what clients do alone at the end.
    """
    scale.FEATURES = 20
    experiment = Experiment(
        data=DataChoice(given=True),
        model=ModelChoice("logistic"),
        training=Training(batch_size=4),
        privacy=client_level(epsilon=2.0, cohort=1000.0),
        phases=(Phase("mean_regularized", 20),),
        engine=Engine("disk"),
        afterwards=None if afterwards is None else Afterwards(afterwards),
    )
    began = time.process_time()
    data = from_function(scale.made, clients, scale.ROWS, outcome="binary", name="many")
    done = run(experiment, folder / "runs", ledger=folder / "ledger.jsonl", data=[data])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"cpu_s": time.process_time() - began, "peak_gb": peak, "epsilon": done.statement()["epsilon"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--one", type=int, help="the number of one point, in this process")
    parser.add_argument("--longer", action="store_true", help="more rounds and more seeds, in this process")
    parser.add_argument("--release", type=int, help="a whole release of so many clients, in this process")
    parser.add_argument("--afterwards", help="what clients of that release do alone at the end")
    arguments = parser.parse_args()
    if arguments.release:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            os.environ |= {"KINFOLK_LEDGERS": f"{name}/ledgers", "KINFOLK_KEYS": f"{name}/keys"}
            print(json.dumps(release(arguments.release, Path(name), arguments.afterwards)))
        return
    if arguments.longer:
        longer(arguments.folder)
        return
    if arguments.one is not None:
        print(json.dumps(measured(POINTS[arguments.one], arguments.rounds, arguments.folder)))
        return
    common = [sys.executable, "-m", "benchmarks.speed.curves", "--rounds", str(arguments.rounds)]
    common += ["--folder", str(arguments.folder), "--one"]
    found = [
        json.loads(subprocess.run([*common, str(k)], check=True, capture_output=True, text=True).stdout)
        for k in range(len(POINTS))
    ]
    times = np.array([line["cpu_ms"] for line in found])
    terms, chosen = np.array([point.terms for point in POINTS]), np.array([point.fitted for point in POINTS])
    numbers, _ = optimize.nnls((terms / times[:, None])[chosen], np.ones(chosen.sum()))
    print(f"ms = {numbers[0]:.3g} + {numbers[1]:.3g} cohort weights + {numbers[2]:.3g} clients")
    for point, line, guess in zip(POINTS, found, terms @ numbers, strict=True):
        note = "fitted" if point.fitted else f"predicted {guess:.1f}"
        print(
            f"clients {point.clients}, weights {point.weights}, cohort {point.cohort}: {line['cpu_ms']} ms, {note}",
            line,
        )


if __name__ == "__main__":
    main()
