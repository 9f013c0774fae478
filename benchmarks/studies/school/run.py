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
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.accounting import calibrate
from kinfolk.data.choice import DataChoice
from kinfolk.data.sets.school import SCALINGS
from kinfolk.engines import resident
from kinfolk.privacy.levels import example_level
from kinfolk.training.build import as_sweep
from kinfolk.training.experiment import Experiment, Phase, Training
from kinfolk.training.prepare import Job, prepare

STEP_SIZES = {"as_published": 0.01, "bounds": 0.03}
METHODS: dict[str, list[float | None]] = {
    "mean_regularized": [0.3, 1.0, 3.0, 10.0],
    "local": [None],
    "fedavg": [None],
    "fine_tune": [None],
    "ditto": [1.0],
    "mocha": [0.3],
}
QUICK = ("mean_regularized", "local", "fedavg")


def job_for(method: str, scaling: str, epsilon: float, rounds: int, seeds: int) -> Job:
    """The authors' setting, with sound sampling and the pull outside the clip."""
    options: dict[str, Any] = {"step_size": STEP_SIZES[scaling]}
    if method == "fine_tune":
        options["shared_rounds"] = rounds // 2
    experiment = Experiment(
        name="school",
        seed=0,
        seeds=seeds,
        data=DataChoice("school", scaling),
        training=Training(batch_size=32, epochs=1, weights="size"),
        privacy=example_level(epsilon, 1e-3, clip=1.0, allow_large_delta=True),
        phases=(Phase(method, rounds, options),),
    )
    return prepare(experiment)


def test_error(job: Job, algorithm: Any, states: Any) -> np.ndarray:
    """Pooled test error per sweep point and seed."""
    errors = np.asarray(resident.errors(job.plan, algorithm, job.tests, states)["error"])
    rows = np.concatenate([np.asarray(block.mask).sum(axis=-1) for block in job.tests], axis=1)
    return (errors * rows).sum(axis=-1) / rows.sum(axis=-1)


def train(job: Job, strengths: list[float | None]) -> tuple[np.ndarray, dict[str, float]]:
    """Test errors of shape (strengths, seeds), and the times of training."""
    points, rounds = len(strengths), job.experiment.rounds
    algorithm, terms = as_sweep(job.algorithms[0], points), as_sweep(job.terms, points)
    if strengths[0] is not None:
        algorithm = replace(algorithm, strength=jnp.asarray(strengths, jnp.float32))
    keys = jax.vmap(jax.random.key)(jnp.arange(job.experiment.seeds, dtype=jnp.uint32))
    began = time.perf_counter()
    states = resident.start_all(job.plan, algorithm, keys)
    inputs = (algorithm, terms, job.clients, states, jnp.int32(0), jnp.int32(rounds))
    program = resident.run_rounds.lower(job.plan, *inputs).compile()
    compiled = time.perf_counter()
    cpu = time.process_time()
    states = jax.block_until_ready(program(*inputs))
    times = {
        "compile_seconds": compiled - began,
        "wall_seconds": time.perf_counter() - compiled,
        "cpu_seconds": time.process_time() - cpu,
    }
    return test_error(job, algorithm, states), times


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
        job = job_for(method, scaling, epsilon, rounds, seeds)
        if method == "mean_regularized":
            _, times = train(job, [1.0])
            result.update(times)
        errors, _ = train(job, strengths)
        for strength, row in zip(strengths, errors, strict=True):
            name = method if strength is None else f"{method} {strength:g}"
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
