"""Few releases against gradient descent at default settings: School, Parkinson's with ranges too wide, made-up data.

    python -m benchmarks.studies.few_releases.run --data school --epsilon 6 --epsilon 3 --epsilon 1.5
    python -m benchmarks.studies.few_releases.run --data parkinsons --epsilon 1 --high 176
    python -m benchmarks.studies.few_releases.run --data synthetic --clients 5 --rows 100 --features 5 --seeds 2

One line per method and budget: mean squared error over all test rows, and the mean over clients of the absolute error,
in the target's own units; means and standard errors over seeds 0, 1, ... (split and noise). Parkinson's telemonitoring
(UCI, CC BY 4.0) is read from `parkinsons.npz` in KINFOLK_DATA: x, y, client, and public bounds low and high.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from kinfolk import Federation, from_rows, recommend, simulate
from kinfolk.data.sets.school import school
from kinfolk.privacy.levels import PrivacyLevel, example_level


def parkinsons(seed: int, low: float, high: float) -> Federation:
    """Total UPDRS, declared to lie between `low` and `high`; a patient is a client."""
    with np.load(Path(os.environ["KINFOLK_DATA"]) / "parkinsons.npz") as held:
        x = np.clip(2 * (held["x"] - held["low"]) / (held["high"] - held["low"]) - 1, -1, 1)
        y = np.clip((2 * held["y"] - low - high) / (high - low), -1, 1)
        names = held["client"].astype(str)
    return from_rows(x.astype(np.float32), y.astype(np.float32), names, test_fraction=0.2, seed=seed, name="parkinsons")


def synthetic(seed: int, clients: int, rows: int, features: int, differ: float) -> Federation:
    """Linear regressions whose weights and constants differ between clients by so much."""
    generator = np.random.default_rng([seed, clients, rows, features])
    x = generator.uniform(-1, 1, (clients * rows, features))
    common = generator.normal(size=features) / np.sqrt(features)
    weights = common + differ * generator.normal(size=(clients, features)) / np.sqrt(features)
    constants, who = differ * generator.normal(size=clients), np.repeat(np.arange(clients), rows)
    y = 0.1 + 0.3 * ((x * weights[who]).sum(axis=1) + constants[who] + 0.3 * generator.normal(size=len(x)))
    names, y = np.char.zfill(who.astype(str), 3), np.clip(y, -1, 1).astype(np.float32)
    return from_rows(x.astype(np.float32), y, names, test_fraction=0.2, seed=seed)


def errors(data: Federation, level: PrivacyLevel, method: str | None, seed: int) -> tuple[float, float]:
    """Mean squared error over rows, and the mean over clients of the absolute error, in scaled units."""
    chosen = recommend(data, level, seed=seed, method=method)
    (phase,) = chosen.phases
    made = simulate(
        data,
        phase.method,
        level,
        rounds=phase.rounds,
        options=phase.options,
        training=chosen.training,
        model=chosen.model,
    )
    (layer,) = made.models(made.step(made.init(seed), phase.rounds))
    weights, bias = np.asarray(layer["weights"])[..., 0], np.asarray(layer["bias"])[:, 0]
    squares, absolute = [], []
    for k, count in enumerate(data.test.sizes.tolist()):
        said = np.clip(data.test.x[k, :count] @ weights[k] + bias[k], -1, 1)
        away = np.abs(said - data.test.y[k, :count])
        squares.append(np.square(away))
        absolute.append(away.mean())
    return float(np.concatenate(squares).mean()), float(np.mean(absolute))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["school", "parkinsons", "synthetic"], default="school")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--method", action="append", help="default: few_releases; auto: what is picked")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--low", type=float, default=0.0)
    parser.add_argument("--high", type=float, default=176.0)
    for name, number in (("clients", 5), ("rows", 100), ("features", 5)):
        parser.add_argument(f"--{name}", type=int, default=number, help="of synthetic data")
    parser.add_argument("--differ", type=float, default=0.5, help="how far its clients differ")
    given = parser.parse_args()
    for epsilon in given.epsilon or [3.0]:
        for method in given.method or ["few_releases"]:
            start, found = time.process_time(), []
            for seed in range(given.seeds):
                if given.data == "school":
                    data, unit = school(seed=seed), 69.0
                    level = example_level(epsilon, 1e-3, allow_large_delta=True)
                elif given.data == "synthetic":
                    data, unit = synthetic(seed, given.clients, given.rows, given.features, given.differ), 1.0
                    level = example_level(epsilon)
                else:
                    data, unit = parkinsons(seed, given.low, given.high), (given.high - given.low) / 2
                    level = example_level(epsilon)
                square, absolute = errors(data, level, None if method == "auto" else method, seed)
                found.append((square, absolute * unit))
            mean, spread = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / len(found) ** 0.5
            seconds = (time.process_time() - start) / given.seeds
            print(
                f"{given.data} epsilon={epsilon:g} {method}: MSE {mean[0]:.5f} +- {spread[0]:.5f}, "
                f"MAE {mean[1]:.3f} +- {spread[1]:.3f}, {seconds:.0f} CPU seconds a run",
                flush=True,
            )


if __name__ == "__main__":
    main()
