"""What an evaluation that may be published is worth: error by noise and bins, bias, and how often intervals hold.

    python -m benchmarks.studies.evaluation.run [--trials 1000] [--page docs/results/evaluation.md]

Rows are drawn from populations whose metrics are known, put into the table that an evaluation releases, noise is added,
and metrics with their intervals are computed by the code that `kinfolk evaluate` runs. Errors are against the metric of
the same rows without noise and without bins; an interval holds if the population's metric lies in it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy.special import expit, logit
from scipy.stats import norm, rankdata

from kinfolk.data.target import courses
from kinfolk.metrics import misses, scores, survival
from kinfolk.metrics.intervals import measured
from kinfolk.metrics.noisy_table import NoisyTable
from kinfolk.metrics.scores import Measure

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "evaluation.json"
SIZES, BUDGETS = (300, 1000, 3000), (0.5, 1.0, 2.0)
AIMS = {(1000, 0.5): 0.010, (1000, 1.0): 0.006, (300, 1.0): 0.018}
"""Root mean square error of the AUC, by noise and bins together, that was aimed for."""
WIDTH = 2.0
"""The range of a predicted number, as models see it."""


@dataclass(frozen=True)
class Scores:
    """Log odds of two outcomes, normal with equal variances, so that they are right up to a factor."""

    title: str
    yes: float = 0.5
    """Share of rows with the outcome."""
    apart: float = 1.19
    """Distance between the two, in standard deviations: 1.19 is an AUC of 0.8."""
    stretched: float = 1.0
    """How much too far from 0 the model's scores are: the calibration slope is one over it."""
    clumped: bool = False
    """Whether log odds lie in two clumps, about -2 and 2, instead: not normal for either outcome."""

    def truth(self) -> dict[str, float]:
        """The metrics of the population; of clumps by a large sample."""
        if self.clumped:
            return {**of_many(self), "calibration slope": 1 / self.stretched}
        middle, half = logit(self.yes), self.apart**2 / 2
        right = self.yes * norm.cdf((middle + half) / self.apart) + (1 - self.yes) * norm.cdf(
            (half - middle) / self.apart
        )
        return {
            "AUC": float(norm.cdf(self.apart / 2**0.5)),
            "accuracy": float(right),
            "calibration slope": 1 / self.stretched,
        }

    def rows(self, generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores, and what came out."""
        if self.clumped:
            odds = np.where(generator.random(count) < 0.5, 2, -2) + 0.6 * generator.standard_normal(count)
            return self.stretched * odds, (generator.random(count) < expit(odds)).astype(int)
        yes = generator.random(count) < self.yes
        spread = np.where(yes, 1, -1) * self.apart**2 / 2 + self.apart * generator.standard_normal(count)
        return self.stretched * (logit(self.yes) + spread), yes.astype(int)

    def trial(self, generator: np.random.Generator, count: int, epsilon: float) -> tuple[NoisyTable, Measures, Exact]:
        """A released table, its metrics, and those of the same rows."""
        score, yes = self.rows(generator, count)
        ends = scores.edges(scores.bins_for(count, epsilon), self.stretched * float(logit(self.yes)))
        table = np.zeros((len(ends) + 1, 2))
        np.add.at(table, (np.searchsorted(ends, score, side="right"), yes), 1)
        every = scores.measures(ends)
        return noisy(generator, table, count, epsilon), {name: every[name] for name in self.truth()}, exact(score, yes)


@dataclass(frozen=True)
class Misses:
    """What predictions of a number miss; of a target with range 2."""

    title: str
    spread: float = 0.25
    heavy: bool = False
    """Whether a tenth of them is four times as large."""

    def truth(self) -> dict[str, float]:
        """The metrics of the population, by a large sample: misses end where the range does."""
        return {"MAE": float(np.abs(self.rows(np.random.default_rng(1), 4_000_000)).mean())}

    def rows(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Outcome minus prediction."""
        wide = np.where(generator.random(count) < 0.1, 4, 1) if self.heavy else 1
        return (0.02 + wide * self.spread * generator.standard_normal(count)).clip(-WIDTH, WIDTH)

    def trial(self, generator: np.random.Generator, count: int, epsilon: float) -> tuple[NoisyTable, Measures, Exact]:
        """As of scores."""
        miss, at = self.rows(generator, count), misses.nodes(WIDTH)
        right = np.searchsorted(at, miss, side="right").clip(1, len(at) - 1)
        share = (miss - at[right - 1]) / (at[right] - at[right - 1])
        table = np.bincount(right, share, len(at)) + np.bincount(right - 1, 1 - share, len(at))
        own = {"MAE": misses.measures_of_numbers(at, 1.0)["MAE"]}
        return noisy(generator, table, count, epsilon), own, {"MAE": float(np.abs(miss).mean())}


@dataclass(frozen=True)
class Times:
    """Times until an event, whose rate grows with a score; some are lost before, and all after the last edge."""

    title: str
    strength: float = 0.8
    """How much one standard deviation of the score moves the logarithm of the rate."""
    edges: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)

    def truth(self) -> dict[str, float]:
        """Harrell's C-index of the population: of many pairs."""
        return {C_INDEX: of_pairs(self)}

    def rows(self, generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores (log odds of the event by the last edge), times, and whether the event came."""
        rate = 0.4 * np.exp(self.strength * generator.standard_normal(count))
        event, lost = generator.exponential(1 / rate), generator.exponential(5.0, count)
        last = np.minimum(lost, self.edges[-1])
        return logit(-np.expm1(-rate * self.edges[-1])), np.minimum(event, last), event <= last

    def trial(self, generator: np.random.Generator, count: int, epsilon: float) -> tuple[NoisyTable, Measures, Exact]:
        """As of scores; a table of score bins and courses."""
        score, time, came = self.rows(generator, count)
        middle = float(logit(-np.expm1(-0.4 * self.edges[-1])))
        ends = scores.edges(scores.bins_for(count / len(self.edges), epsilon), middle)
        table = np.zeros((len(ends) + 1, 2 * len(self.edges) + 1))
        np.add.at(table, (np.searchsorted(ends, score, side="right"), courses(time, came, self.edges)), 1)
        own = {C_INDEX: survival.measures(ends, self.edges, "")[C_INDEX]}
        return noisy(generator, table, count, epsilon), own, {C_INDEX: survival.concordance(score, time, came)}


C_INDEX = "concordance (C-index)"
Measures = dict[str, Measure]
Exact = dict[str, float]
WORLDS: tuple[Scores | Misses | Times, ...] = (
    Scores("scores, AUC 0.8, half have it"),
    Scores("scores, AUC 0.75, a fifth has it", yes=0.2, apart=0.954),
    Scores("scores, AUC 0.9, too sure (slope 0.5)", apart=1.812, stretched=2.0),
    Misses("misses, normal, an eighth of the range"),
    Misses("misses, small with heavy tails", spread=0.06, heavy=True),
    Scores("scores, AUC 0.9, too timid (slope 4)", apart=1.812, stretched=0.25),
    Scores("scores, AUC 0.9, far too timid (slope 10)", apart=1.812, stretched=0.1),
    Scores("scores in two clumps, far too timid (slope 10)", stretched=0.1, clumped=True),
    Scores("scores, AUC 0.9, all but flat (slope 40)", apart=1.812, stretched=0.025),
    Times("times until an event, four intervals"),
)


@cache
def of_pairs(world: Times) -> float:
    """Of the pairs whose order in time is known, the share in which the earlier event has the higher score."""
    score, time, came = (part.reshape(2, -1) for part in world.rows(np.random.default_rng(1), 4_000_000))
    known = came[0] & (time[0] < time[1])
    return float((score[0] > score[1])[known].mean())


@cache
def of_many(world: Scores) -> Exact:
    """The metrics of a population, by a large sample."""
    return exact(*world.rows(np.random.default_rng(1), 300_000))


def noisy(generator: np.random.Generator, table: np.ndarray, count: int, epsilon: float) -> NoisyTable:
    """The table as it is released: every row moves it by 1."""
    return NoisyTable(table + generator.laplace(0, 1 / epsilon, table.shape), count, 1 / epsilon)


def exact(score: np.ndarray, yes: np.ndarray) -> Exact:
    """The metrics of rows, without bins."""
    count = yes.sum()
    pairs = rankdata(score)[yes == 1].sum() - count * (count + 1) / 2
    slope, intercept = 1.0, 0.0
    for _ in range(30):
        chance = expit(intercept + slope * score)
        weight = chance * (1 - chance)
        hessian = np.array([[weight.sum(), weight @ score], [weight @ score, weight @ score**2]]) + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, [(yes - chance).sum(), (yes - chance) @ score])
        intercept, slope = np.array([intercept, slope]) + np.clip(step, -0.5, 0.5)
    return {
        "AUC": float(pairs / max(count * (len(yes) - count), 1)),
        "accuracy": float(((score >= 0) == (yes == 1)).mean()),
        "calibration slope": float(slope),
    }


def two_histograms(generator: np.random.Generator, world: Scores, count: int, epsilon: float) -> float:
    """The error of the AUC of the usual way: two noisy histograms of 16 even bins of the chance."""
    score, yes = world.rows(generator, count)
    place = np.minimum((16 * expit(score)).astype(int), 15)
    table = np.zeros((16, 2))
    np.add.at(table, (place, yes), 1)
    table = np.maximum(table + generator.laplace(0, 1 / epsilon, table.shape), 0)
    below = np.cumsum(table[:, 0]) - table[:, 0] / 2
    return float((below * table[:, 1]).sum() / max(np.prod(table.sum(axis=0)), 1e-9) - exact(score, yes)["AUC"])


def setting(job: tuple[int, int, float, int]) -> list[dict[str, object]]:
    """All trials of one population, size and budget."""
    place, count, epsilon, trials = job
    world = WORLDS[place]
    truth, generator = world.truth(), np.random.default_rng([place, count, int(100 * epsilon)])
    off: dict[str, list[float]] = {name: [] for name in truth}
    held: dict[str, list[bool]] = {name: [] for name in truth}
    wide: dict[str, list[float]] = {name: [] for name in truth}
    for _ in range(trials):
        table, own, known = world.trial(generator, count, epsilon)
        for one in measured(table, own):
            off[one.name].append(one.value - known[one.name])
            held[one.name].append(one.low <= truth[one.name] <= one.high)
            wide[one.name].append(one.high - one.low)
    return [
        {
            "world": world.title,
            "metric": name,
            "rows": count,
            "epsilon": epsilon,
            "trials": trials,
            "rmse": float(np.sqrt(np.mean(np.square(off[name])))),
            "bias": float(np.mean(off[name])),
            "coverage": float(np.mean(held[name])),
            "width": float(np.median(wide[name])),
        }
        for name in truth
    ]


def usual(count: int, epsilon: float, trials: int) -> dict[str, float]:
    """The usual way on the first population."""
    generator, world = np.random.default_rng(count), WORLDS[0]
    assert isinstance(world, Scores)
    off = np.array([two_histograms(generator, world, count, epsilon) for _ in range(trials)])
    return {"rows": count, "epsilon": epsilon, "rmse": float(np.sqrt((off**2).mean())), "bias": float(off.mean())}


def jobs(trials: int) -> list[tuple[int, int, float, int]]:
    """Populations, sizes and budgets; those with an aim first, then the hardest."""
    every = [(0, n, epsilon, trials) for n in SIZES for epsilon in BUDGETS]
    every += [(place, n, epsilon, trials) for place in (1, 2, 3, 4, 9) for n in SIZES for epsilon in BUDGETS[:2]]
    every += [(place, n, 1.0, trials) for place in (5, 6, 7, 8) for n in SIZES[:2]]
    aims = {(0, n, epsilon) for n, epsilon in AIMS}
    return sorted(every, key=lambda job: (job[:3] not in aims, -job[0]))


def run(trials: int, path: Path = RESULTS) -> None:
    """Everything that was not measured before, kept setting by setting."""
    rows: list[dict[str, object]] = json.loads(path.read_text())["rows"] if path.exists() else []
    known = {(row["world"], row["rows"], row["epsilon"]) for row in rows}
    usually = [usual(n, epsilon, trials) for n, epsilon in AIMS]
    for job in jobs(trials):
        if (WORLDS[job[0]].title, *job[1:3]) in known:
            continue
        rows += setting(job)
        path.write_text(json.dumps({"trials": trials, "rows": rows, "usual": usually}, indent=1) + "\n")


def table(rows: Sequence[dict[str, float]]) -> str:
    """Markdown: a line for each population, metric, size and budget."""
    lines = ["| population | metric | rows | epsilon | error (rms) | bias | intervals that hold | median width |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        lines.append(
            f"| {row['world']} | {row['metric']} | {row['rows']} | {row['epsilon']:g} | {row['rmse']:.4f} "
            f"| {row['bias']:+.4f} | {row['coverage']:.1%} | {row['width']:.3f} |"
        )
    return "\n".join(lines)


def aims(found: dict[str, list[dict[str, float]]]) -> str:
    """Markdown: the AUC's error against its aim, and the usual way."""
    lines = ["| rows | epsilon | aim | error (rms) | bias | two noisy histograms: error (rms) | bias |"]
    lines.append("|---|---|---|---|---|---|---|")
    for (count, epsilon), aim in AIMS.items():
        own = next(
            row
            for row in found["rows"]
            if (row["world"], row["metric"], row["rows"], row["epsilon"]) == (WORLDS[0].title, "AUC", count, epsilon)
        )
        other = next(row for row in found["usual"] if (row["rows"], row["epsilon"]) == (count, epsilon))
        lines.append(
            f"| {count} | {epsilon:g} | {aim:.3f} | {own['rmse']:.4f} | {own['bias']:+.4f} | {other['rmse']:.4f} | "
            f"{other['bias']:+.4f} |"
        )
    return "\n".join(lines)


def coverage(rows: Sequence[dict[str, float]]) -> str:
    """Markdown: how often prediction sets held, by `coverage.py`."""
    lines = ["| case | asked for | coverage | standard error | median reach | sets of everything |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        reach = "none" if row["reach"] is None else f"{row['reach']:.3f}"
        lines.append(
            f"| {row['case']} | {row['nominal']:.0%} | {row['coverage']:.1%} | {row['error']:.1%} | {reach} "
            f"| {row['everything']:.0%} |"
        )
    return "\n".join(lines)


def write_page(path: Path) -> None:
    """The page, from what was measured."""
    found = json.loads(RESULTS.read_text())
    order = sorted(found["rows"], key=lambda row: ([w.title for w in WORLDS].index(row["world"]), row["metric"]))
    text = (HERE / "page.md").read_text()
    least = min(row["coverage"] for row in found["rows"])
    parts = {"trials": str(found["trials"]), "aims": aims(found), "table": table(order), "least": f"{least:.1%}"}
    parts["coverage"] = coverage(json.loads((HERE / "results" / "coverage.json").read_text()))
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--page", type=Path, help="Only write the page, from what was measured before.")
    given = parser.parse_args()
    if given.page:
        write_page(given.page)
    else:
        run(given.trials)


if __name__ == "__main__":
    main()
