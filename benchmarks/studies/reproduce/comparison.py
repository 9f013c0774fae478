"""Methods against each other on one federation: over budgets, over strengths, over rounds. All items that train go
through these functions, and these through `sweep`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.studies.reproduce.records import NO_PRIVACY, Curves, Point, Strengths, settled
from benchmarks.studies.reproduce.scores import followed, point, scores
from kinfolk.accounting import planning
from kinfolk.data.federation import Federation
from kinfolk.engines.loop import Sweep
from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level, none
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.sweep import sweep


@dataclass(frozen=True)
class Method:
    """An algorithm with options; the best of `strengths` is picked on test data, as the papers do."""

    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    strengths: tuple[float, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A federation, and how it is trained on."""

    data: Callable[[int], Federation]
    """From a seed."""
    methods: Mapping[str, Method]
    epsilons: tuple[float, ...]
    """Infinity: no privacy."""
    model: ModelChoice = field(default_factory=lambda: ModelChoice("linear"))
    level: str = "client"
    delta: float = 1e-3
    clip: float = 1.0
    cohort: float | None = None
    rounds: int = 20
    batch: int = 32
    step_size: float = 0.1
    seeds: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the privacy level."""
    choosing: float = 0.0
    """Epsilon of a choice among clusters, as a share of the whole; 0: there are none."""
    weights: str = "uniform"
    """Of clients in a mean: `uniform` or `size`."""

    def privacy(self, epsilon: float, noise_multiplier: float | None = None) -> PrivacyLevel:
        """The guarantee, or fixed noise."""
        if math.isinf(epsilon):
            return replace(none(), cohort=self.cohort)
        budget: dict[str, Any] = {"delta": self.delta, "clip": self.clip, **self.options}
        budget |= {"choice_epsilon": self.choosing * epsilon} if self.choosing else {}
        budget |= {"epsilon": epsilon} if noise_multiplier is None else {"noise_multiplier": noise_multiplier}
        if self.level == "example":
            return example_level(**budget, allow_large_delta=True)
        return client_level(**budget, cohort=self.cohort, allow_large_delta=True)

    def figure(self, method: Method, level: PrivacyLevel, data: Sequence[Federation]) -> Sweep:
        """One program for all strengths and seeds."""
        options = {"step_size": self.step_size, **method.options}
        batches = "poisson" if self.level == "example" else "shuffled"  # nobody pays for a client's own batches
        experiment = Experiment(
            seed=0,
            seeds=self.seeds,
            model=self.model,
            training=Training(batch_size=self.batch, weights=self.weights, batches=batches),
            privacy=level,
            phases=(Phase(method.algorithm, self.rounds, options),),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sweep(experiment, {"strength": method.strengths} if method.strengths else None, data=list(data))


ONE_LOOK = ("local", "fedavg", "mean_regularized", "fine_tune", "mocha")
"""Methods that look at a client's data once in a round, and so need the same noise."""


def figures(
    setting: Comparison, methods: Mapping[str, Method], epsilon: float, data: Sequence[Federation]
) -> Iterator[tuple[str, Sweep]]:
    """Every method made ready at one budget; noise that several need is calibrated once."""
    level, known = setting.privacy(epsilon), None
    for name, method in methods.items():
        shared = method.algorithm in ONE_LOOK and setting.level == "example" and not math.isinf(epsilon)
        if not shared or known is None:
            figure = setting.figure(method, level, data)
            known = figure.terms if shared else known
        else:
            figure = setting.figure(method, replace(level, epsilon=None, noise_multiplier=1.0), data)
            points = len(jax.tree.leaves(figure.terms)[0])
            figure = replace(figure, terms=jax.tree.map(lambda leaf, n=points: jnp.repeat(leaf[:1], n, axis=0), known))
        yield name, figure


@dataclass(frozen=True)
class Compared:
    """Curves over epsilon, and the strengths that they were best at."""

    curves: Curves
    strengths: Strengths


def compare(setting: Comparison) -> Compared:
    """Every method against epsilon, at its best strength in hindsight; no privacy is at 100."""
    data = [setting.data(seed) for seed in range(setting.seeds)]
    return gathered(
        setting,
        data[0].outcome,
        (
            (name, epsilon, trained(setting, figure, data[0].outcome))
            for epsilon in setting.epsilons
            for name, figure in figures(setting, setting.methods, epsilon, data)
        ),
    )


def gathered(setting: Comparison, outcome: str, found: Iterable[tuple[str, float, np.ndarray]]) -> Compared:
    """Curves from method, epsilon, and the scores of every strength and seed."""
    curves: dict[str, list[Point]] = {name: [] for name in setting.methods}
    strengths: dict[str, list[tuple[float, float, bool]]] = {}
    for name, epsilon, scored in found:
        means, grid = scored.mean(axis=1), setting.methods[name].strengths
        best = int(means.argmin() if outcome == "number" else means.argmax())
        x = NO_PRIVACY if math.isinf(epsilon) else epsilon
        curves[name].append(point(x, scored[best]))
        if len(grid) > 1:
            strengths.setdefault(name, []).append((x, grid[best], settled(grid, grid[best])))
    return Compared(curves, strengths)


def trained(setting: Comparison, figure: Sweep, outcome: str) -> np.ndarray:
    """Scores of every point and seed after all rounds."""
    return scores(figure, figure.rounds(figure.init(range(setting.seeds)), 0, setting.rounds), outcome)


def by_strength(setting: Comparison, swept: Mapping[str, Method]) -> Curves:
    """Methods of `swept` against their strength, the others as flat lines; the first epsilon, and without privacy."""
    data = [setting.data(seed) for seed in range(setting.seeds)]
    curves: dict[str, list[Point]] = {}
    strengths = next(iter(swept.values())).strengths
    for epsilon in setting.epsilons:
        about = "no privacy" if math.isinf(epsilon) else f"epsilon {epsilon:g}"
        for name, figure in figures(setting, {**setting.methods, **swept}, epsilon, data):
            found = trained(setting, figure, data[0].outcome)
            found = found if name in swept else np.repeat(found, len(strengths), axis=0)
            curves[f"{name}, {about}"] = [point(s, row) for s, row in zip(strengths, found, strict=True)]
    return curves


MOST_LOSS = 10.0
"""Shown of a loss: larger ones, and those of runs that diverged and have none, are shown as this."""
MOST_EPSILON = 1000.0
"""Likewise: with the paper's noise on a mean, and a stand-in's two clients in a cohort, there is none."""
Noises = Mapping[str, tuple[float, float]]
"""By name: noise multiplier and clip norm."""


def over_rounds(setting: Comparison, noises: Noises) -> Curves:
    """The first method with noise of every kind, followed over the rounds: see `traced`."""
    data = [setting.data(seed) for seed in range(setting.seeds)]
    found = (
        (name, followed(figure, setting.seeds, ends(setting), data[0].outcome))
        for name, figure in noisy(setting, noises, data)
    )
    return traced(setting, noises, len(data[0].ids), found)


def ends(setting: Comparison, steps: int = 5) -> list[int]:
    """Rounds after which curves have a point: parts of all, as equal as they come."""
    return np.unique(np.linspace(0, setting.rounds, steps + 1).astype(int))[1:].tolist()


def noisy(setting: Comparison, noises: Noises, data: Sequence[Federation]) -> Iterator[tuple[str, Sweep]]:
    """The first method made ready with noise of every kind."""
    method = next(iter(setting.methods.values()))
    for name, (noise, clip) in noises.items():
        own = replace(setting, clip=clip)
        yield name, own.figure(method, own.privacy(1.0, noise), data)


def traced(
    setting: Comparison,
    noises: Noises,
    clients: int,
    found: Iterable[tuple[str, Mapping[str, Sequence[Sequence[float]]]]],
) -> Curves:
    """Curves `NAME: loss`, `NAME: accuracy` and `NAME: epsilon` over rounds, from what `followed` found for a name."""
    curves: dict[str, list[Point]] = {}
    for name, parts in found:
        spent = [
            planning.plan(
                "client",
                units=clients,
                sample=setting.cohort or clients,
                uses=end,
                noise_multiplier=noises[name][0],
                delta=setting.delta,
            ).epsilon
            for end in ends(setting)
        ]
        for part, kept in (("loss", "losses"), ("accuracy", "scores")):
            values = np.fmin(np.array(parts[kept]), MOST_LOSS)  # what is not a number is as large
            rows = zip(ends(setting), values, strict=True)
            curves[f"{name}: {part}"] = [point(end, own) for end, own in rows]
        costs = zip(ends(setting), spent, strict=True)
        curves[f"{name}: epsilon"] = [Point(float(end), round(min(epsilon, MOST_EPSILON), 4)) for end, epsilon in costs]
    return curves
