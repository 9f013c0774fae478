"""Outcomes medicine uses, with privacy: the C-index on TCGA-BRCA's fixed split; counts, levels and labels beside plain
references.

    python -m benchmarks.studies.outcomes.run [PART ...] [--page docs/results/outcomes.md]

Survival: discrete-time hazards by federated averaging over six regions, example level, delta 1e-5: a patient is a unit.
Settings (features, rounds, step, clip) were chosen by five-fold cross-validation of the training rows, which this
measures too; test rows were looked at once. KINFOLK_DATA names the data's directory, and what is measured goes into
results/outcomes.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.outcomes.others import CASES, measured
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


def survival() -> dict[str, Any]:
    """Test rows once, training rows by folds."""
    found = patients()
    return {"test": test_figures(found), "folds": folds(found)}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "survival": survival,
    **{one.__name__: (lambda made=one: measured(made())) for one in CASES},
}


def main() -> None:
    """Measures parts, or writes the page from what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"which of {', '.join(PARTS)}; default: all")
    parser.add_argument("--page", type=Path, help="write the page of results there, from what was measured before")
    asked = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if asked.page is not None:
        asked.page.write_text(page(results))
        return
    for name in asked.parts or PARTS:
        begin = time.process_time()
        results[name] = {**PARTS[name](), "seconds": round(time.process_time() - begin)}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def page(results: dict[str, Any]) -> str:
    """The page of results."""
    test, inside, rows = results["survival"]["test"], results["survival"]["folds"], []
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
            others="\n".join(line for name in ("counts", "levels", "labels") for line in _lines(name, results[name])),
            seconds=", ".join(f"{name} {found['seconds']}" for name, found in results.items()),
        )
    )


WORDS = {
    "counts": "count: days in hospital",
    "levels": "ordinal: severity of heart disease",
    "labels": "labels: ICD-9 chapters of the diagnoses",
}


def _lines(name: str, found: dict[str, Any]) -> list[str]:
    """A line of the table for each metric."""
    ways = ("constant", "reference", "none", "3", "1")
    metrics = [key for key in found["none"] if key != "name"]
    head = (WORDS[name], f"{found['rows'][0]} + {found['rows'][1]}, {found['clients']}")
    return [
        "| " + " | ".join((*(head if not n else ("", "")), key, *(f"{found[way][key]:.3f}" for way in ways))) + " |"
        for n, key in enumerate(metrics)
    ]


if __name__ == "__main__":
    main()
