"""Pulled in every local step, or once a round: which does better, on five data sets.

    python -m benchmarks.studies.pull.run [CASE ...] [--page docs/results/pull.md]

Mean regularisation on synthetic schools, School, HAR, rotated MNIST (8 silos) and FEMNIST (60 writers), all small, at
epsilon 1, 4 and without noise, but for the first with several passes over a client's data in a round: in rounds of one
local step the two differ in the last pull alone. The other methods that pull, with their defaults, on School and HAR:
Ditto, Mocha, IFCA, a graph in which all are neighbours (with one group it is mean regularisation), joint. Settings
were fixed before; both pulls get the same noise and the same grid of strengths, and the best of each is picked on test
data: a reference, not something to deploy. What is measured goes into results/pull.json. KINFOLK_DATA names the data's
directory.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.algorithms.pull import PULLS
from kinfolk.data.federation import Federation
from kinfolk.data.sets.femnist import femnist
from kinfolk.data.sets.har import har
from kinfolk.data.sets.mnist import rotated_mnist
from kinfolk.data.sets.school import school
from kinfolk.data.sets.synthetic import synthetic_schools
from kinfolk.privacy.levels import PrivacyLevel, Terms, client_level, example_level
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.sweep import sweep

RESULTS = Path(__file__).parent / "results" / "pull.json"
EPSILONS = (1.0, 4.0, 0.0)
"""0: no noise."""
WIDE = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, math.inf)
WIDEST = (*WIDE[:-2], 30.0, *WIDE[-2:])
FEW = (0.0, 0.1, 1.0, 10.0, 100.0, math.inf)
"""From training alone to averaging."""


LINEAR, SOFTMAX, CNN = ModelChoice("linear"), ModelChoice("softmax"), ModelChoice("cnn", (8, 16))


@dataclass(frozen=True)
class Case:
    """A data set and how it is trained on."""

    what: str
    level: str
    rounds: int
    epochs: int
    step_size: float
    batch_size: int
    model: ModelChoice = LINEAR
    clip: float = 1.0
    cohort: float | None = None
    seeds: int = 2
    strengths: tuple[float, ...] = WIDE
    method: str = "mean_regularized"
    options: Mapping[str, Any] = field(default_factory=dict)

    def federation(self, seed: int) -> Federation:
        """The data of one repetition."""
        if self.what == "synthetic":
            return synthetic_schools(seed=seed)
        if self.what == "School":
            return school(seed=seed)
        if self.what == "HAR":
            return har(seed=seed)
        if self.what == "MNIST":
            return rotated_mnist(silos=8, train_rows=300, test_rows=200, seed=seed)
        return femnist(writers=60, most_images=20, seed=seed)

    def privacy(self, epsilon: float) -> PrivacyLevel:
        """The guarantee."""
        if self.level == "example":
            return example_level(epsilon, 1e-3, clip=self.clip)
        return replace(client_level(epsilon, 1e-3, clip=self.clip), cohort=self.cohort)


def all_neighbours(clients: int) -> dict[str, Any]:
    """Options of a graph in which everybody is joined to everybody, with the same weight."""
    return {"graph": (np.ones((clients, clients)) - np.eye(clients)).tolist()}


MAIN = {
    "synthetic-1": Case("synthetic", "example", 60, 1, 0.1, 32, seeds=3, strengths=WIDEST),
    "school-5": Case("School", "example", 20, 5, 0.03, 32),
    "har-5": Case("HAR", "client", 20, 5, 0.1, 32, SOFTMAX, clip=0.5),
    "mnist-4": Case("MNIST", "example", 5, 4, 0.1, 50, CNN, seeds=1, strengths=FEW),
    "femnist-5": Case("FEMNIST", "client", 30, 5, 0.1, 10, CNN, clip=0.5, cohort=30.0, seeds=1, strengths=FEW),
}
"""Mean regularisation."""
OTHERS = {
    "school-5": {"ditto": {}, "mocha": {}, "ifca": {}, "relation_regularized": all_neighbours(139)},
    "har-5": {"ditto": {}, "ifca": {}, "joint": {}, "relation_regularized": all_neighbours(30)},
}
"""Other methods that pull, and their options."""


def of_method(case: Case, method: str, options: Mapping[str, Any]) -> Case:
    """The same data and training by another method."""
    finite = tuple(strength for strength in case.strengths if strength < math.inf)
    return replace(case, method=method, options=options, strengths=finite if method == "mocha" else case.strengths)


CASES = MAIN | {
    f"{name}-{method}": of_method(MAIN[name], method, options)
    for name, methods in OTHERS.items()
    for method, options in methods.items()
}


def without_noise(terms: Terms) -> Terms:
    """The same program, with no noise and a clip norm that nothing reaches."""
    gates: dict[str, Any] = {"data": terms.data, "inbox": terms.inbox}
    quiet = {
        name: replace(gate, noise_multiplier=0 * gate.noise_multiplier, clip=0 * gate.clip + 1e6)
        for name, gate in gates.items()
        if not gate.open
    }
    return replace(terms, **quiet)


def measured(case: Case, before: dict[str, Any]) -> dict[str, Any]:
    """Mean client's test error (mean over seeds) for every epsilon, pull and strength; local steps; seconds.

    `before`: what was measured of it, which is not measured again.
    """
    begin, data = time.process_time(), [case.federation(seed) for seed in range(case.seeds)]
    found: dict[str, Any] = {"error": before.get("error", {}), "local steps": before.get("local steps")}
    for epsilon in EPSILONS:
        own = found["error"].setdefault(f"{epsilon:g}" if epsilon else "none", {pull: {} for pull in PULLS})
        left = [strength for strength in case.strengths if f"{strength:g}" not in own[PULLS[0]]]
        if not left:
            continue
        phase = Phase(case.method, case.rounds, {"step_size": case.step_size, **case.options})
        experiment = Experiment(
            seed=0,
            seeds=case.seeds,
            model=case.model,
            training=Training(case.batch_size, case.epochs),
            privacy=case.privacy(epsilon or EPSILONS[0]),
            phases=(phase,),
        )
        figure = sweep(experiment, {"strength": left}, data=data)
        figure = figure if epsilon else replace(figure, terms=without_noise(figure.terms))
        steps = np.asarray(figure.clients.steps[0])
        found["local steps"] = [int(steps.min()), int(np.median(steps)), int(steps.max())]
        for pull in PULLS:
            algorithms: Any = figure.algorithms
            pulled = replace(figure, algorithms=replace(algorithms, pull=pull))
            states = pulled.rounds(pulled.init(range(case.seeds)), 0, case.rounds)
            errors = np.asarray(pulled.errors(states)["error"]).mean(axis=2)
            own[pull] |= {f"{s:g}": round(float(e), 5) for s, e in zip(left, errors.mean(axis=1), strict=True)}
        print(f"  epsilon {epsilon}: " + json.dumps(own), flush=True)
    spent = round(time.process_time() - begin)
    known = not before or "seconds" in before
    return found | ({"seconds": before.get("seconds", 0) + spent} if known else {})


USUAL = "1"
"""The default strength of most methods that pull."""
ENDS = {"0": "0, alone", "inf": "infinite"}
"""Of a grid: training alone, and averaging."""
PAGE = """# Pulled in every step, or once a round

`pull = "step"` pulls a client's model to the shared one in every local step and minimises the objective of the paper;
`pull = "round"` makes a round's pulls at once, before its steps, and goes over into federated averaging with
fine-tuning (formulas, tested against closed forms: `algorithms/pull.py`). The same noise for both, the same grid of
strengths, from 0 (training alone, alike for both) to infinity (averaging; with `round` a client uses what its own last
round makes of the common model); the error of the mean client (squared error; share of wrong labels for HAR, MNIST and
FEMNIST) at the best strength of each, in hindsight, and that strength. The better one is bold where they differ by
more than a hundredth.
"""
OTHERS_SAID = """## The other methods that pull

With their defaults. `relation_regularized` has a graph in which all are neighbours; with one group it is mean
regularisation.
"""
END = """
{verdict}

`python -m benchmarks.studies.pull.run` measures, and needs KINFOLK_DATA; with `--page docs/results/pull.md` it writes
this page. The grids are in `benchmarks/studies/pull/results/pull.json`. CPU seconds, on two busy cores: {seconds}.
"""


def best(own: dict[str, dict[str, float]], *, ends: bool) -> dict[str, tuple[str, float]]:
    """Of each pull the best strength and its error; `ends`: training alone and averaging are among them."""
    return {
        pull: min(((s, e) for s, e in own[pull].items() if ends or s not in ENDS), key=lambda pair: pair[1])
        for pull in PULLS
    }


def compared(ratios: list[float]) -> str:
    """How often each pull is better, and by how much."""
    step, by_round = sum(r < 0.99 for r in ratios), sum(r > 1.01 for r in ratios)
    return (
        f"of {len(ratios)} settings `step` is better by more than a hundredth in {step}, `round` in {by_round}; "
        f"geometric mean of the ratios step / round {np.exp(np.mean(np.log(ratios))):.3f}"
    )


def table(cases: dict[str, Case], results: dict[str, Any], *, methods: bool) -> str:
    """What was measured of these cases, and how often each pull is better; `methods`: with their names."""
    heads = ["method"] * methods + ["data", "level", "rounds x passes (local steps)", "epsilon", *PULLS, "ratio"]
    heads += [f"ratio at strength {USUAL}"]
    rows, ratios, between, usual = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"], [], [], []
    for name, case in cases.items():
        if name not in results:
            continue
        low, middle, high = results[name]["local steps"]
        steps = f"{case.rounds} x {case.epochs} ({middle}; {low} to {high})"
        for epsilon, own in results[name]["error"].items():
            found, inside = (best(own, ends=ends) for ends in (True, False))
            ratio = found["step"][1] / found["round"][1]
            ratios.append(ratio)
            between.append(inside["step"][1] / inside["round"][1])
            usual.append(own["step"][USUAL] / own["round"][USUAL])
            words = {pull: f"{value:.4f} ({ENDS.get(at, at)})" for pull, (at, value) in found.items()}
            if abs(ratio - 1) > 0.01:
                winner = "step" if ratio < 1 else "round"
                words[winner] = f"**{words[winner]}**"
            head = [f"`{case.method}`"] * methods + [case.what, case.level, steps, epsilon]
            cells = (*head, *words.values(), f"{ratio:.3f}", f"{usual[-1]:.3f}")
            rows.append(f"| {' | '.join(cells)} |")
    summary = f"\nWith both ends in the grid, {compared(ratios)}. Between the ends, {compared(between)}.\n"
    return "\n".join([*rows, f"{summary}At strength {USUAL}, which nobody chose, {compared(usual)}.\n"])


def page(results: dict[str, Any], verdict: str) -> str:
    """The tables, from what was measured."""
    others = {name: case for name, case in CASES.items() if name not in MAIN}
    seconds = ", ".join(f"{name} {part['seconds']}" for name, part in results.items() if "seconds" in part)
    wanted = [(name, f"{epsilon:g}" if epsilon else "none") for name in CASES for epsilon in EPSILONS]
    missing = [f"{name} ({e})" for name, e in wanted if e not in results.get(name, {"error": {}})["error"]]
    left = f"\nNot measured yet: {', '.join(missing)}.\n" if missing else ""
    return "\n".join(
        [PAGE, table(MAIN, results, methods=False), OTHERS_SAID, table(others, results, methods=True) + left]
    ) + END.format(verdict=verdict.strip(), seconds=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all ({', '.join(CASES)})")
    parser.add_argument("--page", type=Path, help="write the page from what was measured before; measures named cases")
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in arguments.cases or ([] if arguments.page else CASES):
        print(name, flush=True)
        results[name] = measured(CASES[name], results.get(name, {}))
        ordered = {key: results[key] for key in CASES if key in results}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    if arguments.page:
        arguments.page.write_text(page(results, (Path(__file__).parent / "verdict.md").read_text()))


if __name__ == "__main__":
    main()
