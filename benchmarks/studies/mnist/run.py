"""Rotated and masked MNIST at example level (Liu, Hu, Wu and Smith, 2022, figure 6).

    python -m benchmarks.studies.mnist.run --quick                     # 2 cores: 8 silos x 300 images x 20 rounds
    python -m benchmarks.studies.mnist.run --pack FOLDER               # calibrates the full setting
    python -m benchmarks.studies.mnist.run --run FOLDER                # on an accelerator: needs jax and numpy only
    python -m benchmarks.studies.mnist.run --report FOLDER

40 silos of 1500 + 250 images, four rotations, silo-specific white patches; CNN (3x3 32, 3x3 64, 2x2 pooling after each,
linear), 100 rounds of one epoch, batch 100, step 0.1, clip 1, epsilon 1, delta 1e-7; seeds 0, 1, 2. Nothing is tuned:
strengths are 1 throughout. KINFOLK_DATA names the data's directory.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kinfolk.algorithms import REGISTRY
from kinfolk.data.sets.mnist import rotated_mnist
from kinfolk.engines.layout import lay_out
from kinfolk.engines.loop import Sweep, points
from kinfolk.engines.resident import Plan
from kinfolk.privacy.levels import Level, example_level
from kinfolk.training import job_file
from kinfolk.training.build import build_model
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training


@dataclass(frozen=True)
class Setting:
    """The size of the study."""

    silos: int = 40
    train_rows: int = 1500
    test_rows: int = 250
    rounds: int = 100
    batch: int = 100
    seeds: int = 3
    masks: tuple[int, ...] = (0, 120)
    """How many of the 196 patches of 2x2 pixels are painted over."""
    epsilon: float = 1.0
    delta: float = 1e-7


FULL = Setting()
QUICK = Setting(
    silos=8, train_rows=300, test_rows=100, rounds=20, batch=50, seeds=1, masks=(0, 120), epsilon=8.0, delta=1e-4
)
CNN = ModelChoice("cnn", (32, 64))
SMALL_CNN = ModelChoice("cnn", (8, 16))


def methods(setting: Setting) -> dict[str, tuple[str, dict[str, Any]]]:
    choosing = {"choosing_rounds": max(2, setting.rounds // 10), "clusters": 4}
    return {
        "local": ("local", {}),
        "FedAvg": ("fedavg", {}),
        "Ditto, strength 1": ("ditto", {"strength": 1.0}),
        "mean-regularised, strength 1": ("mean_regularized", {"strength": 1.0}),
        "IFCA": ("ifca", choosing),
        "IFCA, then mean-regularised": ("ifca", {**choosing, "strength": 1.0}),
    }


def terms_of(setting: Setting, model: ModelChoice, method: str, options: dict[str, Any]) -> Any:
    """Calibrated mechanisms, from sizes alone: no image is looked at."""
    from kinfolk.data.federation import ClientData, Federation
    from kinfolk.training.prepare import prepare

    sizes = np.full(setting.silos, setting.train_rows)
    blank = ClientData(
        np.zeros((setting.silos, setting.train_rows, 28, 28, 1), np.float32),
        np.zeros((setting.silos, setting.train_rows), np.int32),
        sizes,
    )
    data = Federation("mnist", tuple(f"silo-{k}" for k in range(setting.silos)), blank, blank, "classes", 10)
    level = example_level(setting.epsilon, setting.delta, choice_epsilon=0.03, choice_score="error")
    training = Training(batch_size=setting.batch)
    phases = (Phase(method, setting.rounds, options),)
    return prepare(Experiment(seed=0, model=model, training=training, privacy=level, phases=phases), [data]).terms


def pack(folder: Path, setting: Setting, model: ModelChoice) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (method, options) in enumerate(methods(setting).values()):
        job_file.save(terms_of(setting, model, method, options), folder / f"terms{number}.npz")


def run(folder: Path, setting: Setting, choice: ModelChoice) -> dict[str, Any]:
    """Accuracy of every method, mask level and seed, and the time it took."""
    results: dict[str, Any] = {"device": jax.devices()[0].device_kind, "rows": []}
    for masks in setting.masks:
        data = [
            rotated_mnist(
                masks=masks,
                silos=setting.silos,
                train_rows=setting.train_rows,
                test_rows=setting.test_rows,
                seed=seed,
            )
            for seed in range(setting.seeds)
        ]
        clients, tests, widths, steps = lay_out(data, batch_size=setting.batch, epochs=1)
        plan = Plan(build_model(choice, data[0].shape, "classes", 10), Level.EXAMPLE, widths, steps)
        for number, (name, (method, options)) in enumerate(methods(setting).items()):
            terms = job_file.load(folder / f"terms{number}.npz")
            figure = Sweep(plan, points([REGISTRY[method].build(**options)]), points([terms]), clients, tests)
            began = time.perf_counter()
            states = figure.init(range(setting.seeds))
            states = jax.block_until_ready(figure.rounds(states, 0, 0))
            compiled = time.perf_counter()  # no round was run; the same program runs them all now
            states = jax.block_until_ready(figure.rounds(states, 0, setting.rounds))
            finished = time.perf_counter()
            wrong = np.asarray(figure.errors(states)["error"])[0]
            row = {
                "method": name,
                "masks": masks,
                "accuracy": (1 - wrong.mean(axis=1)).tolist(),
                "worst_tenth": (1 - np.sort(wrong, axis=1)[:, -max(1, setting.silos // 10) :].mean(axis=1)).tolist(),
                "compile_seconds": compiled - began,
                "run_seconds": finished - compiled,
            }
            results["rows"].append(row)
            print(json.dumps(row), flush=True)
            (folder / "results.json").write_text(json.dumps(results))
    return results


def report(results: dict[str, Any]) -> None:
    print(f"{'method':34s} {'masks':>5s}  accuracy by seed         worst tenth of silos")
    for row in results["rows"]:
        by_seed = " ".join(f"{100 * a:6.2f}" for a in row["accuracy"])
        print(f"{row['method']:34s} {row['masks']:5d}  {by_seed}   {100 * float(np.mean(row['worst_tenth'])):6.2f}")
    total = sum(row["run_seconds"] for row in results["rows"])
    compiling = sum(row["compile_seconds"] for row in results["rows"])
    print(f"{results['device']}: {total:.0f} s of running, {compiling:.0f} s of compiling")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--masks", type=int, nargs="+", help="numbers of white patches; default 0 and 120 of 196")
    parser.add_argument("--output", type=Path, default=Path("runs/mnist"))
    for part in ("pack", "run", "report"):
        parser.add_argument(f"--{part}", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    setting, model = (QUICK, SMALL_CNN) if args.quick else (FULL, CNN)
    if args.masks:
        setting = replace(setting, masks=tuple(args.masks))
    if args.pack or args.quick:
        pack(args.pack or args.output, setting, model)
    if args.run or args.quick:
        run(args.run or args.output, setting, model)
    if args.report or args.quick:
        report(json.loads(((args.report or args.output) / "results.json").read_text()))
    if not (args.pack or args.run or args.report or args.quick):
        parser.error("choose --quick, or --pack, --run and --report with a folder")


if __name__ == "__main__":
    main()
