"""A thousand silos, each with a size and a budget of its own: how long planning takes, and how much of it is the noise.

    python -m benchmarks.speed.planning [--silos 1000] [--rounds 20] [--other CHECKOUT/src]

Sizes from 60 to 2000 rows, epsilon from .5 to 8, batches of 32, one pass over the rows in each round: every silo has a
sampling rate, a number of releases and a delta of its own. Planning is everything before the first round: releases
counted on the program, noise calibrated, the flow checked. Then the run, with its ledger and its statements. `--other`
does the same with another checkout afterwards. CPU seconds of all threads, programs kept from an earlier start or not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kinfolk.accounting import calibrate
from kinfolk.data.lazy import from_arrays
from kinfolk.privacy.levels import Budget, example_level
from kinfolk.training import loop
from kinfolk.training.experiment import DataChoice, Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import prepare

BATCH, FEATURES = 32, 8


@contextmanager
def cpu_seconds(found: dict[str, float], name: str) -> Iterator[None]:
    """Adds what is spent inside."""
    began = time.process_time()
    yield
    found[name] = found.get(name, 0.0) + time.process_time() - began


def experiment_of(ids: list[str], rounds: int) -> Experiment:
    budgets = np.random.default_rng(1).uniform(0.5, 8, len(ids))
    return Experiment(
        seed=0,
        data=DataChoice(given=True),
        model=ModelChoice("linear"),
        training=Training(batch_size=BATCH),
        privacy=example_level(epsilon=1.0, budgets=dict(zip(ids, map(Budget, budgets.tolist()), strict=True))),
        phases=(Phase("mean_regularized", rounds),),
    )


def measure(silos: int, rounds: int) -> dict[str, float]:
    """CPU seconds by part."""
    draw = np.random.default_rng(0)
    sizes = np.sort(draw.integers(60, 2000, silos))
    x = draw.uniform(-1, 1, (silos, int(sizes.max()), FEATURES)).astype(np.float32)
    data = from_arrays(x, x.sum(axis=-1), sizes, name="silos")
    experiment, found = experiment_of(list(data.ids), rounds), {}
    solve = calibrate.noise_for_budget.noise_multipliers

    def timed(cases: list[calibrate.Case]) -> list[float]:
        with cpu_seconds(found, "of that noise"):
            return solve(cases)

    calibrate.noise_for_budget.noise_multipliers = timed
    with cpu_seconds(found, "planning"):
        prepare(experiment, [data])
    calibrate.noise_for_budget.noise_multipliers = solve
    with tempfile.TemporaryDirectory() as folder, cpu_seconds(found, "planning again, and the run"):
        loop.run(experiment, Path(folder), data=[data])
    return {name: round(seconds, 2) for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--other", help="the src folder of another checkout")
    parser.add_argument("--json", action="store_true", help="this checkout only, as JSON")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps(measure(arguments.silos, arguments.rounds)))
        return
    root = Path(__file__).parents[2]
    sources = {"this": str(root / "src"), **({"other": arguments.other} if arguments.other else {})}
    words = ["--json", "--silos", str(arguments.silos), "--rounds", str(arguments.rounds)]
    for name, source in sources.items():
        own = {**os.environ, "PYTHONPATH": os.pathsep.join([source, str(root)])}
        command = [sys.executable, "-m", "benchmarks.speed.planning", *words]
        print(name, subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout.strip())


if __name__ == "__main__":
    main()
