"""Survival with privacy: the C-index on TCGA-BRCA's fixed split, at epsilon 3 and 1 and without noise.

    python -m benchmarks.studies.outcomes.run [--page docs/results/outcomes.md]

Discrete-time hazards by federated averaging over six regions, example level, delta 1e-5: a patient is a unit. Settings
(features, rounds, step, clip) were chosen by five-fold cross-validation of the training rows, which this measures too;
test rows were looked at once. KINFOLK_DATA names the data's directory, and what is measured goes into
results/outcomes.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.outcomes.tcga import FEATURES, Patients, features, federation, patients
from kinfolk import Experiment, Federation, ModelChoice, Phase, Training, example_level, none, sweep
from kinfolk.metrics.survival import concordance

RESULTS = Path(__file__).parent / "results" / "outcomes.json"
EPSILONS = (3.0, 1.0)
ROUNDS, STEP = 20, 0.5
CLIP = 0.3
DRAWS, FOLDS, FOLD_DRAWS = 20, 5, 4
BOOTSTRAPS = 500


def scores(data: Federation, x: np.ndarray, epsilon: float | None, draws: int) -> np.ndarray:
    """The shared model's score of rows `x`, for every draw of noise."""
    private = none() if epsilon is None else example_level(epsilon, 1e-5, clip=CLIP)
    experiment = Experiment(
        seed=0,
        seeds=draws,
        model=ModelChoice("hazard"),
        training=Training(None, weights="size", tail=0.5),
        privacy=private,
        phases=(Phase("fedavg", ROUNDS if epsilon else 10 * ROUNDS, {"step_size": STEP}),),
    )
    figure = sweep(experiment, data=[data] * draws)
    states = figure.rounds(figure.init(range(draws)), 0, experiment.rounds)
    weights = np.asarray(figure.models(states)[0]["weights"])[0, :, 0, :, 0]
    return weights @ x.T


def test_figures(found: Patients) -> dict[str, Any]:
    """The pooled C-index on the source's test rows, for each draw of noise."""
    test, result = found.is_test, {}
    for which in FEATURES:
        data, x = federation(found, which), features(found, which)[test]
        own = {}
        for epsilon in (None, *EPSILONS):
            drawn = scores(data, x, epsilon, DRAWS if epsilon else 1)
            each = [concordance(one, found.time[test], found.event[test]) for one in drawn]
            again = _bootstrap(drawn[0], found.time[test], found.event[test])
            own["none" if epsilon is None else f"{epsilon:g}"] = {
                "mean": round(float(np.mean(each)), 4),
                "deviation over draws": round(float(np.std(each)), 4),
                "lowest draw": round(float(np.min(each)), 4),
                "deviation over test rows": round(again, 4),
            }
            print(which, epsilon, own, flush=True)
        result[which] = own
    return result


def _bootstrap(score: np.ndarray, time: np.ndarray, event: np.ndarray) -> float:
    generator = np.random.default_rng(0)
    rows = (generator.integers(0, len(time), len(time)) for _ in range(BOOTSTRAPS))
    return float(np.std([concordance(score[own], time[own], event[own]) for own in rows]))


def folds(found: Patients) -> dict[str, Any]:
    """The mean C-index on held out training rows, over folds and draws: what settings were chosen by."""
    generator, own = np.random.default_rng(1), np.flatnonzero(~found.is_test)
    order, result = generator.permutation(own), {}
    for which in FEATURES:
        each: dict[str, list[float]] = {}
        for fold in range(FOLDS):
            held = np.zeros(len(found.time), bool)
            held[order[fold::FOLDS]] = True
            data, x = federation(found, which, held), features(found, which)[held]
            for epsilon in (None, *EPSILONS):
                drawn = scores(data, x, epsilon, FOLD_DRAWS if epsilon else 1)
                key = "none" if epsilon is None else f"{epsilon:g}"
                each.setdefault(key, []).extend(concordance(s, found.time[held], found.event[held]) for s in drawn)
        result[which] = {key: round(float(np.mean(values)), 4) for key, values in each.items()}
        print("folds", which, result[which], flush=True)
    return result


def measure() -> dict[str, Any]:
    """Everything."""
    begin, found = time.process_time(), patients()
    result = {"test": test_figures(found), "folds": folds(found)}
    return {**result, "seconds": round(time.process_time() - begin)}


def main() -> None:
    """Measures, writes the results, and if asked the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="write the page of results there, from what was measured before")
    asked = parser.parse_args()
    if asked.page is None:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
        return
    asked.page.write_text(page(json.loads(RESULTS.read_text())))


def page(results: dict[str, Any]) -> str:
    """The page of results."""
    test, inside, rows = results["test"], results["folds"], []
    words = {"few": "age, stage, treated", "all": "all 39"}
    for which, own in test.items():
        for epsilon, found in own.items():
            spread = ("-", "-") if epsilon == "none" else (found["deviation over draws"], found["lowest draw"])
            cells = (words[which], epsilon, f"**{found['mean']:.3f}**", *spread, found["deviation over test rows"])
            rows.append("| " + " | ".join(map(str, (*cells, inside[which][epsilon]))) + " |")
    return (
        (Path(__file__).parent / "page.md")
        .read_text()
        .format(
            rounds=ROUNDS,
            step=STEP,
            clip=CLIP,
            draws=DRAWS,
            rows="\n".join(rows),
            all_3=f"{test['all']['3']['mean']:.2f}",
            folds=f"{inside['few']['3']:.2f}",
            boot=f"{test['few']['3']['deviation over test rows']:.2f}",
            seconds=results["seconds"],
        )
    )


if __name__ == "__main__":
    main()
