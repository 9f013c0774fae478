"""People as units: accuracy at person level beside row level, on made-up people, visits of patients and writers.

    python -m benchmarks.studies.people.run [CASE ...] [--page docs/results/people.md]

Federated averaging of a linear model at example level, delta 1e-5. Steps, rounds and clips were tried until row level
trained well, and are the same for people, but for the clip: a comparison of levels, not something to deploy. Test rows
are those of people who were not trained on. KINFOLK_DATA names the data's
directory; what is measured goes into results/people.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.people.cases import Rows, comes_back, long_stays, made_up, writers
from kinfolk import Experiment, Federation, ModelChoice, Phase, PrivacyLevel, Training, example_level, none, sweep
from kinfolk.accounting.noise_for_budget import Case as Planned
from kinfolk.accounting.noise_for_budget import noise_multipliers

RESULTS = Path(__file__).parent / "results" / "people.json"
DELTA = 1e-5


@dataclass(frozen=True)
class Case:
    """Data and how they are trained on. A person's contribution is a mean over rows: its clip may be smaller."""

    rows: Callable[[], Rows]
    epsilons: tuple[float, ...]
    rounds: int
    step_size: float
    row_clip: float
    person_clip: float
    rows_per_person: int
    draws: int = 3


CASES = {
    "made up": Case(lambda: made_up(0), (1.0,), 20, 2.0, 0.5, 0.5, 20, draws=10),
    "patients, long stays": Case(long_stays, (3.0, 1.0), 60, 0.5, 3.0, 3.0, 5),
    "patients, who comes back": Case(comes_back, (3.0, 1.0), 60, 0.5, 3.0, 3.0, 5),
    "writers": Case(writers, (8.0, 3.0), 60, 12.0, 2.0, 0.2, 100, draws=2),
}


def accuracy(case: Case, rows: Rows, data: Federation, privacy: PrivacyLevel) -> float:
    """The mean share of right labels among all test rows, over draws of noise."""
    draws = case.draws if privacy.level.private else 1
    experiment = Experiment(
        seed=0,
        seeds=draws,
        model=ModelChoice("logistic" if rows.outcome == "binary" else "softmax"),
        training=Training(None, weights="size", tail=0.5),
        privacy=privacy,
        phases=(Phase("fedavg", case.rounds, {"step_size": case.step_size}),),
    )
    figure = sweep(experiment, data=[data] * draws)
    states = figure.rounds(figure.init(range(draws)), 0, case.rounds)
    return round(1 - float(np.mean(figure.pooled(figure.errors(states)["error"]))), 4)


def measured(case: Case) -> dict[str, Any]:
    """Accuracies at person level, at row level, and by other ways to protect people."""
    begin, rows = time.process_time(), case.rows()
    by_row, by_person = rows.federation(None), rows.federation(case.rows_per_person)
    trained = ~rows.test()
    people = np.unique(rows.person[trained], return_counts=True)[1]
    found: dict[str, Any] = {
        "people": len(people),
        "rows": int(trained.sum()),
        "most rows": int(people.max()),
        "no privacy": accuracy(case, rows, by_row, none()),
    }
    for epsilon in case.epsilons:
        level = example_level(epsilon, DELTA, clip=case.row_clip)
        people_level = replace(level, clip=case.person_clip)
        own = {
            "row level": accuracy(case, rows, by_row, level),
            "person level": accuracy(case, rows, by_person, people_level),
        }
        once = rows.one_each()
        own["one row each"] = accuracy(case, once, once.federation(None), level)
        (noise,) = noise_multipliers([Planned(epsilon, DELTA, case.rounds, 1.0)])
        group = replace(level, epsilon=None, noise_multiplier=float(noise) * case.rows_per_person)
        own["row level, with noise for all rows of a person"] = accuracy(case, rows, by_row, group)
        found[f"{epsilon:g}"] = own
        print(epsilon, own, flush=True)
    return {**found, "seconds": round(time.process_time() - begin)}


def page(results: dict[str, Any]) -> str:
    """The page of results."""
    lines = []
    for name, found in results.items():
        for epsilon, own in ((key, value) for key, value in found.items() if isinstance(value, dict)):
            ways = (own["person level"], own["row level"], own["one row each"])
            rest = own["row level, with noise for all rows of a person"]
            cells = (name, f"{found['rows']} of {found['people']}", epsilon, *ways, rest, found["no privacy"])
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    seconds = ", ".join(f"{name} {found['seconds']}" for name, found in results.items())
    text = (Path(__file__).parent / "page.md").read_text()
    return text.format(rows="\n".join(lines), seconds=seconds)


def main() -> None:
    """Measures cases, or writes the page from what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"which of {', '.join(CASES)}; default: all")
    parser.add_argument("--page", type=Path, help="write the page of results there, from what was measured before")
    asked = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if asked.page is not None:
        asked.page.write_text(page(results))
        return
    for name in asked.cases or CASES:
        print(name, flush=True)
        results[name] = measured(CASES[name])
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
