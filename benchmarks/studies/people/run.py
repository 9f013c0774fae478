"""People as units: accuracy at person level beside row level, on made-up people, visits of patients and writers.

    python -m benchmarks.studies.people.run [CASE ...] [--page docs/results/people.md]

Federated averaging of a linear model at example level, delta 1e-5. Where a case has several steps and clips, each
level's are chosen on a quarter of the *training* people, by the mean accuracy over draws of noise; else they were tried
until row level trained well. Test rows are those of people who were not trained on, whatever is the unit. KINFOLK_DATA
names the data's directory; what is measured goes into results/people.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.people.cases import Rows, comes_back, encoded_writers, long_stays, made_up, writers
from kinfolk import Experiment, Federation, ModelChoice, Phase, PrivacyLevel, Training, example_level, none, sweep
from kinfolk.accounting.noise_for_budget import Case as Planned
from kinfolk.accounting.noise_for_budget import noise_multipliers

RESULTS = Path(__file__).parent / "results" / "people.json"
DELTA = 1e-5


MOST_NOISE = 2500.0
"""Noise multipliers above it are refused, as there is nothing left to learn from."""
CHOOSING_DRAWS = 4
"""Of noise, for each setting that is tried."""


@dataclass(frozen=True)
class Case:
    """Data and how they are trained on. A person's contribution is a mean over rows: its clip may be smaller."""

    rows: Callable[[], Rows]
    epsilons: tuple[float, ...]
    rounds: int
    step_sizes: tuple[float, ...]
    row_clips: tuple[float, ...]
    person_clips: tuple[float, ...]
    rows_per_person: int
    draws: int = 3

    def federation(self, rows: Rows, people: bool) -> Federation:
        """With people or rows as units."""
        return rows.federation(self.rows_per_person if people else None)


@dataclass(frozen=True)
class Setting:
    """What a level is trained with."""

    step_size: float
    clip: float


STEPS, ROW_CLIPS, PERSON_CLIPS = (1.0, 2.0, 4.0, 8.0, 16.0), (5.0, 2.0), (0.5, 0.25, 0.1, 0.05)
CASES = {
    "made up": Case(lambda: made_up(0), (1.0,), 20, (2.0,), (0.5,), (0.5,), 20, draws=10),
    "patients, long stays": Case(long_stays, (3.0, 1.0), 60, (0.5,), (3.0,), (3.0,), 5),
    "patients, who comes back": Case(comes_back, (3.0, 1.0), 60, (0.5,), (3.0,), (3.0,), 5),
    "writers": Case(writers, (8.0, 5.0, 3.0), 100, STEPS, ROW_CLIPS, PERSON_CLIPS, 100, draws=10),
    "writers, public encoder": Case(
        encoded_writers,
        (8.0, 5.0, 3.0, 1.0),
        100,
        (2.0, 4.0, 8.0, 16.0, 32.0),
        (2.0, 1.0, 0.5),
        (0.12, 0.06, 0.03, 0.015),
        100,
        draws=10,
    ),
}


def accuracies(case: Case, data: Federation, privacy: PrivacyLevel, steps: Sequence[float], draws: int) -> np.ndarray:
    """The share of right labels among all test rows, for every step size and draw of noise."""
    draws = draws if privacy.level.private else 1
    experiment = Experiment(
        seed=0,
        seeds=draws,
        model=ModelChoice("logistic" if data.outcome == "binary" else "softmax"),
        training=Training(None, weights="size", tail=0.5),
        privacy=privacy,
        phases=(Phase("fedavg", case.rounds, {"step_size": steps[0]}),),
    )
    figure = sweep(experiment, {"step_size": steps}, data=[data] * draws)
    states = figure.rounds(figure.init(range(draws)), 0, case.rounds)
    return 1 - np.asarray(figure.pooled(figure.errors(states)["error"]))


def chosen(case: Case, rows: Rows, privacy: PrivacyLevel, people: bool) -> Setting:
    """The step and clip of a level: the best on training people who are left out for it, if there are several."""
    clips = case.person_clips if people else case.row_clips
    clips = clips if privacy.level.private else clips[:1]
    if len(clips) == len(case.step_sizes) == 1:
        return Setting(case.step_sizes[0], clips[0])
    data, found = case.federation(rows.to_choose_on(), people), {}
    for clip in clips:
        each = accuracies(case, data, replace(privacy, clip=clip), case.step_sizes, CHOOSING_DRAWS).mean(axis=1)
        found |= {Setting(step, clip): value for step, value in zip(case.step_sizes, each.tolist(), strict=True)}
        print("  chosen on:", "people" if people else "rows", clip, each.round(4).tolist(), flush=True)
    return max(found, key=lambda setting: found[setting])


def measured(case: Case) -> dict[str, Any]:
    """Accuracies at person level, at row level, and by other ways to protect people."""
    begin, rows = time.process_time(), case.rows()
    trained, once, root = ~rows.test(), rows.one_each(), case.rows_per_person**0.5
    people = np.unique(rows.person[trained], return_counts=True)[1]

    def mean(own: Rows, privacy: PrivacyLevel, setting: Setting, by_person: bool = False) -> tuple[float, float]:
        """And its standard error over draws of noise."""
        level, data = replace(privacy, clip=setting.clip), case.federation(own, by_person)
        each = accuracies(case, data, level, (setting.step_size,), case.draws)[0]
        return round(float(each.mean()), 4), round(
            float(each.std(ddof=1 if len(each) > 1 else 0) / len(each) ** 0.5), 4
        )

    found: dict[str, Any] = {
        "people": len(people),
        "rows": int(trained.sum()),
        "most rows": int(people.max()),
        "no privacy": mean(rows, none(), chosen(case, rows, none(), False))[0],
    }
    for epsilon in case.epsilons:
        level = example_level(epsilon, DELTA)
        by_row, by_person = (chosen(case, rows, level, of_people) for of_people in (False, True))
        (noise,) = noise_multipliers([Planned(epsilon, DELTA, case.rounds, 1.0)])
        for_all = float(noise) * case.rows_per_person
        ways = {
            "row level": mean(rows, level, by_row),
            "person level": mean(rows, level, by_person, True),
            "person level, clip of rows": mean(rows, level, by_row, True),
            "person level, clip by rule": mean(rows, level, replace(by_row, clip=by_row.clip / root), True),
            "one row each": mean(once, level, by_row),
        }
        if for_all <= MOST_NOISE:
            group = replace(level, epsilon=None, noise_multiplier=for_all)
            ways["row level, with noise for all rows of a person"] = mean(rows, group, by_row)
        found[f"{epsilon:g}"] = {**ways, "row setting": vars(by_row), "person setting": vars(by_person)}
        print(epsilon, found[f"{epsilon:g}"], flush=True)
    return {**found, "seconds": round(time.process_time() - begin)}


def page(results: dict[str, Any]) -> str:
    """The page of results."""
    lines, settings = [], []
    for name, found in results.items():
        for epsilon, own in ((key, value) for key, value in found.items() if isinstance(value, dict)):
            ways = [f"{own[way][0]:.4f} ± {own[way][1]:.4f}" for way in ("person level", "row level")]
            others = ("person level, clip by rule", "one row each", "row level, with noise for all rows of a person")
            rest = [own[way][0] if way in own else "-" for way in others]
            cells = (name, f"{found['rows']} of {found['people']}", epsilon, *ways, *rest, found["no privacy"])
            lines.append("| " + " | ".join(map(str, cells)) + " |")
            numbers = (own[f"{unit} setting"][what] for unit in ("person", "row") for what in ("step_size", "clip"))
            settings.append("| " + " | ".join(map(str, (name, epsilon, *numbers))) + " |")
    seconds = ", ".join(f"{name} {found['seconds']}" for name, found in results.items() if "seconds" in found)
    text = (Path(__file__).parent / "page.md").read_text()
    return text.format(rows="\n".join(lines), settings="\n".join(settings), seconds=seconds)


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
