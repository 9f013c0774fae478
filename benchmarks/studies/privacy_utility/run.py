"""The whole privacy-utility figure for School: 8 methods x 6 epsilons x 5 strengths x 5 seeds, in one command.

    python -m benchmarks.studies.privacy_utility.run [--scaling as_published] [--output FOLDER]

Every method is one compiled program for all its epsilons, strengths and seeds. Where another machine does the work:

    python -m benchmarks.studies.privacy_utility.run --pack FOLDER    # here: calibrates, writes one parcel per method
    python -m benchmarks.studies.privacy_utility.run --run FOLDER     # there: needs jax and numpy only
    python -m benchmarks.studies.privacy_utility.run --report FOLDER  # here: table and picture

The best strength of a method is picked on test data, as the papers do: it is a reference, not something to deploy.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kinfolk import trees

EPSILONS = (0.5, 1.0, 1.5, 3.0, 6.0, 12.0)
STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0)
STEP_SIZES = {"as_published": 0.01, "bounds": 0.03}
CHOOSING = 0.05
"""Share of the rounds in which clusters are chosen."""
METHODS: dict[str, tuple[str, bool]] = {
    "local": ("local", False),
    "FedAvg": ("fedavg", False),
    "fine-tune": ("fine_tune", False),
    "mean-regularised": ("mean_regularized", True),
    "Ditto": ("ditto", True),
    "Mocha": ("mocha", True),
    "IFCA": ("ifca", False),
    "IFCA, then mean-regularised": ("ifca", True),
}


def pack(folder: Path, scaling: str, rounds: int, seeds: int) -> None:
    """Calibrates every budget and writes one parcel per method."""
    from kinfolk.data.choice import DataChoice
    from kinfolk.privacy.levels import example_level
    from kinfolk.training import job_file
    from kinfolk.training.experiment import Experiment, Phase, Training
    from kinfolk.training.prepare import prepare

    folder.mkdir(parents=True, exist_ok=True)
    known: dict[tuple[float, str], Any] = {}
    began = time.process_time()
    for name, (method, swept) in METHODS.items():
        options: dict[str, Any] = {"step_size": STEP_SIZES[scaling]}
        if method == "fine_tune":
            options["shared_rounds"] = rounds // 2
        if method == "ifca":
            options |= {"choosing_rounds": round(CHOOSING * rounds)}
        pays_like = method if method in ("ditto", "ifca") else "local"
        points, job = [], None
        for epsilon in EPSILONS:
            if (epsilon, pays_like) not in known or job is None:
                level = example_level(epsilon, 1e-3, allow_large_delta=True, choice_epsilon=0.05)
                if (epsilon, pays_like) in known:
                    level = replace(level, epsilon=None, noise_multiplier=1.0)
                experiment = Experiment(
                    seed=0,
                    seeds=seeds,
                    data=DataChoice("school", scaling),
                    training=Training(batch_size=32, weights="size"),
                    privacy=level,
                    phases=(Phase(method, rounds, options),),
                )
                job = prepare(experiment)
                known.setdefault((epsilon, pays_like), job.terms)
            (algorithm,) = job.algorithms
            for strength in STRENGTHS if swept else (None,):
                own = algorithm if strength is None else replace(algorithm, strength=strength)  # type: ignore[type-var]
                points.append((own, known[epsilon, pays_like]))
        assert job is not None
        job_file.save(stacked(job, points), folder / f"{name}.npz")
    about = {"scaling": scaling, "rounds": rounds, "calibration_cpu_seconds": time.process_time() - began}
    (folder / "about.json").write_text(json.dumps(about))


def stacked(job: Any, points: list[tuple[Any, Any]]) -> Any:
    """The job's parcel with a sweep point for every pair of an algorithm and terms; one phase only."""
    from kinfolk.training import offload
    from kinfolk.training.build import as_sweep

    algorithms, terms = ([as_sweep(part) for part in parts] for parts in zip(*points, strict=True))
    return replace(offload.parcel(job), algorithms=(trees.concatenate(algorithms),), terms=trees.concatenate(terms))


def run(folder: Path) -> None:
    """Runs every parcel and writes its pooled test errors."""
    from kinfolk.training import job_file

    results: dict[str, Any] = {"device": jax.devices()[0].device_kind}
    for name in METHODS:
        parcel = job_file.load(folder / f"{name}.npz")
        cpu = time.process_time()
        _, errors, seconds = job_file.run(parcel)
        rows = np.concatenate([np.asarray(block.mask).sum(axis=-1) for block in parcel.tests], axis=1)
        pooled = (errors["error"] * rows).sum(axis=-1) / rows.sum(axis=-1)
        results[name] = {"mse": pooled.tolist(), **seconds, "cpu_seconds_with_compiling": time.process_time() - cpu}
        print(name, seconds, flush=True)
    (folder / "results.json").write_text(json.dumps(results))


def report(folder: Path) -> None:
    """Table, and a picture of each method at its best strength."""
    from kinfolk.report import line_chart

    about, results = (json.loads((folder / f"{part}.json").read_text()) for part in ("about", "results"))
    series = {}
    for name, (_, swept) in METHODS.items():
        mse = np.array(results[name]["mse"]).reshape(len(EPSILONS), len(STRENGTHS) if swept else 1, -1).mean(axis=2)
        print(f"\n{name}")
        for epsilon, row in zip(EPSILONS, mse, strict=True):
            print(f"  epsilon {epsilon:4g}: " + "  ".join(f"{value:.5f}" for value in row))
        series[name] = list(zip(EPSILONS, mse.min(axis=1).tolist(), strict=True))
    title = f"School, {about['rounds']} rounds, scaling {about['scaling']}: test error against epsilon"
    picture = line_chart.lines(title, series, "epsilon (delta 1e-3)", "pooled test MSE", log_across=True, log_up=True)
    (folder / "figure.svg").write_text(picture)
    run_seconds = sum(results[name]["run"] for name in METHODS)
    compile_seconds = sum(results[name]["compile"] for name in METHODS)
    cpu = sum(results[name]["cpu_seconds_with_compiling"] for name in METHODS)
    print(
        f"\n{results['device']}: {run_seconds:.1f} s of running, {compile_seconds:.1f} s of compiling, {cpu:.1f} CPU s"
    )
    print(f"calibration: {about['calibration_cpu_seconds']:.1f} CPU s; picture: {folder / 'figure.svg'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scaling", choices=STEP_SIZES, default="as_published")
    parser.add_argument("--rounds", type=int, default=201)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("runs/privacy_utility"))
    for part in ("pack", "run", "report"):
        parser.add_argument(f"--{part}", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.pack or not (args.run or args.report):
        pack(args.pack or args.output, args.scaling, args.rounds, args.seeds)
    if args.run or not (args.pack or args.report):
        run(args.run or args.output)
    if args.report or not (args.pack or args.run):
        report(args.report or args.output)


if __name__ == "__main__":
    main()
