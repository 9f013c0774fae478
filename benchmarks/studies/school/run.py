"""School at example level: what it costs and what it gives.

    python -m benchmarks.studies.school.run [--scaling as_published] [--epsilon 6] [--json]

One process: calibrates 139 silos, then trains each method for 201 rounds of one epoch over 5 seeds, compiled once.
Times are of mean-regularised training alone, after compilation, unless said. KINFOLK_DATA names the data's directory.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from kinfolk.accounting import calibrate
from kinfolk.data.choice import DataChoice
from kinfolk.data.sets.school import SCALINGS
from kinfolk.privacy.levels import example_level
from kinfolk.training.experiment import Experiment, Phase, Training
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.sweep import sweep_of

STEP_SIZES = {"as_published": 0.01, "bounds": 0.03}
METHODS: dict[str, tuple[float, ...]] = {
    "mean_regularized": (0.3, 1.0, 3.0, 10.0),
    "local": (),
    "fedavg": (),
    "fine_tune": (),
    "ditto": (1.0,),
    "mocha": (0.3,),
}
QUICK = ("mean_regularized", "local", "fedavg")


def experiment_for(method: str, scaling: str, epsilon: float, rounds: int, seeds: int) -> Experiment:
    """The authors' setting, with sound sampling and the pull outside the clip."""
    options: dict[str, Any] = {"step_size": STEP_SIZES[scaling]}
    if method == "fine_tune":
        options["shared_rounds"] = rounds // 2
    return Experiment(
        name="school",
        seed=0,
        seeds=seeds,
        data=DataChoice("school", scaling),
        training=Training(batch_size=32, epochs=1, weights="size"),
        privacy=example_level(epsilon, 1e-3, clip=1.0, allow_large_delta=True),
        phases=(Phase(method, rounds, options),),
    )


def train(job: Job, strengths: Sequence[float]) -> tuple[np.ndarray, dict[str, float]]:
    """Pooled test errors of shape (strengths or 1, seeds), and the times of training."""
    figure = sweep_of(job, {"strength": strengths} if strengths else {})
    began = time.perf_counter()
    states = figure.init(range(job.experiment.seeds))
    states = jax.block_until_ready(figure.rounds(states, 0, 0))
    compiled = time.perf_counter()
    cpu = time.process_time()
    states = jax.block_until_ready(figure.rounds(states, 0, job.experiment.rounds))
    times = {
        "compile_seconds": compiled - began,
        "wall_seconds": time.perf_counter() - compiled,
        "cpu_seconds": time.process_time() - cpu,
    }
    return np.asarray(figure.pooled(figure.errors(states)["error"])), times


def measure(scaling: str, epsilon: float, rounds: int, seeds: int, methods: Sequence[str] = QUICK) -> dict[str, Any]:
    calibrations: list[float] = []
    original = calibrate.noise_for_budget.noise_multipliers

    def timed(cases: Any) -> list[float]:
        began = time.process_time()
        found = original(cases)
        calibrations.append(time.process_time() - began)
        return found

    calibrate.noise_for_budget.noise_multipliers = timed
    result: dict[str, Any] = {"mse": {}, "mse_by_seed": {}}
    for method in methods:
        strengths = METHODS[method]
        job = prepare(experiment_for(method, scaling, epsilon, rounds, seeds))
        if method == "mean_regularized":
            _, times = train(job, (1.0,))
            result.update(times)
        errors, _ = train(job, strengths)
        names = [f"{method} {strength:g}" for strength in strengths] or [method]
        for name, row in zip(names, errors, strict=True):
            result["mse"][name] = float(row.mean())
            result["mse_by_seed"][name] = row.tolist()
    calibrate.noise_for_budget.noise_multipliers = original
    if "mean_regularized" in methods:
        result["mse"]["mean_regularized"] = result["mse"]["mean_regularized 1"]
    result["calibration_cpu_seconds"] = max(calibrations)
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scaling", choices=SCALINGS, default="as_published")
    parser.add_argument("--epsilon", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=201)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=QUICK)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    result = measure(args.scaling, args.epsilon, args.rounds, args.seeds, args.methods)
    result |= {"scaling": args.scaling, "epsilon": args.epsilon, "rounds": args.rounds, "seeds": args.seeds}
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result["mse"].items():
        print(f"{name:22s} test MSE {value:.5f}")
    for name in ("compile_seconds", "wall_seconds", "cpu_seconds", "calibration_cpu_seconds", "peak_mb"):
        print(f"{name:22s} {result.get(name, float('nan')):.2f}")


if __name__ == "__main__":
    main()
