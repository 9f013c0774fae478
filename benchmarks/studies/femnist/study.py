"""The runs behind `run.py`, in order of importance, until the time is up. Needs jax and numpy only.

What the results' file already has is not measured again, so that the study can be done in several sittings.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.studies.femnist.judged import accuracy_errors, selected, summary, tuned
from benchmarks.studies.reproduce.scores import machine
from kinfolk import trees
from kinfolk.algorithms import REGISTRY
from kinfolk.engines.loop import Sweep, points
from kinfolk.engines.resident import Clients, Plan
from kinfolk.personalize.fine_tune import OBJECTIVES
from kinfolk.personalize.self_select import SelfSelect
from kinfolk.privacy.levels import Terms
from kinfolk.training import job_file
from kinfolk.training.experiment import ModelChoice

STEP, CLIP, DELTA, BATCH = 0.1, 0.5, 1e-3, 10
NO_PRIVACY = "none"
PULL = "step"
"""In every local step, as algorithm 1 of the paper has it. (What is stored of the H200 was pulled once a round.)"""
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "global": ("fedavg", {}),
    "personal": ("mean_regularized", {"pull": PULL}),
    "FedProx": ("fedprox", {"strength": 0.1}),
    "shared convolutions": ("shared_layers", {"layers": 2}),
    "small shared part": ("shared_layers", {"layers": 1}),
}
FLOPS_PER_IMAGE = 2 * (3 * 1024 * 62 + 3 * 64 * 800 * 64 + 2 * 576 * 25 * 32)
"""Of training on one image: forward, weights' gradients, and inputs' gradients of all layers but the first."""
STRENGTHS = (0.0, 0.1, 1.0, 10.0, 100.0, 1e3, math.inf)
"""Of mean regularisation: from training alone, which is shown and not chosen, to averaging."""
WEAK = (0.001, 0.01)
"""Strengths that are tried with the most rounds where training alone does better than all others: noise of the mean
hardly reaches a model that is hardly pulled, so its best number of rounds is not the global model's. (0.1 and 1 are too
strong for that: with 300 rounds at epsilon 0.8 their accuracy on held-out images is 0.05 and 0.02.)"""
TUNED = ("global", "personal", "small shared part", "local")
"""Methods whose models are fine-tuned."""
PAPER = ModelChoice("cnn_paper")
Say = Callable[[str], None]
SAID: Say = partial(print, flush=True)
"""Where rows are told as they come."""


@dataclass(frozen=True)
class Setting:
    """The size of the study."""

    writers: int | None = None
    most_images: int = 50
    cohort: int = 100
    places: int = 152
    """For a round's cohort, whose size is random: as many as any number of rounds may need."""
    epsilons: tuple[float, ...] = (0.1, 0.8, 2.0, 8.0)
    rounds: tuple[int, ...] = (1, 3, 10, 30, 100, 300)
    local_rounds: int = 300
    seeds: int = 3
    tuning_steps: int = 60
    selecting_steps: int = 60
    model: ModelChoice = PAPER
    speed: bool = True
    methods: tuple[str, ...] = tuple(METHODS)
    """Which are compared, besides training alone."""


def without_privacy(terms: Terms) -> Terms:
    """The same program without noise and with a clip norm that nothing reaches."""
    inbox: Any = terms.inbox
    return replace(terms, inbox=replace(inbox, noise_multiplier=jnp.float32(0), clip=jnp.float32(1e6)))


def copies(clients: Clients, seeds: int) -> Clients:
    """The same data for several seeds."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seeds, *leaf.shape[1:])), clients)


@dataclass(frozen=True)
class Run:
    """What is trained together: one method on the same data, for several terms (and strengths) and seeds."""

    plan: Plan
    method: str
    clients: Clients
    terms: Sequence[Terms]
    strengths: Sequence[float] = ()
    first_seed: int = 0


class Study:
    """A packed folder and its results, which are written one by one."""

    def __init__(
        self, folder: Path, setting: Setting, seconds: float, results: Path, *, select: bool = True, say: Say = SAID
    ) -> None:
        self.folder, self.setting, self.results, self.say = folder, setting, results, say
        self.parts = (self.tune, self.select) if select else (self.tune,)
        self.began = time.perf_counter()
        self.end = self.began + seconds
        self.found: dict[str, Any] = {"device": machine(), "setting": asdict(setting), "rows": []}
        if results.exists():
            self.found["rows"] = json.loads(results.read_text())["rows"]
        names = json.loads((folder / "terms.json").read_text())
        self.terms = dict(zip(names, job_file.load(folder / "terms.npz"), strict=True))
        self.exact = without_privacy(next(iter(self.terms.values())))
        self.data = job_file.load(folder / "data.npz")
        self.choosing = job_file.load(folder / "choosing.npz")
        self.many = copies(self.data.clients, setting.seeds)
        self.budgets = [*(f"{epsilon:g}" for epsilon in setting.epsilons), NO_PRIVACY]
        self.plan = self.data.plan()
        self.models: dict[tuple[str, str], Any] = {}
        self.common: dict[str, Any] = {}

    def write(self, **row: Any) -> None:
        row["at_seconds"] = time.perf_counter() - self.began
        self.found["rows"].append(row)
        self.say(json.dumps(row))
        self.results.write_text(json.dumps(self.found, allow_nan=False))

    def known(self, **values: Any) -> dict[str, Any] | None:
        """The row with these values, if it was measured before."""
        return next((row for row in self.found["rows"] if values.items() <= row.items()), None)

    def late(self) -> bool:
        return time.perf_counter() > self.end

    def terms_for(self, budget: str, rounds: int) -> Terms:
        return self.exact if budget == NO_PRIVACY else self.terms[f"{budget} {rounds}"]

    def begun(self, run: Run) -> tuple[Sweep, Any]:
        """A run's points and seeds, and their states before the first round; compiled once for every shape."""
        name, options = METHODS[run.method]
        algorithm: Any = REGISTRY[name].build(step_size=STEP, **options)
        each = [replace(algorithm, strength=s) for s in run.strengths] or [algorithm] * len(run.terms)
        figure = Sweep(run.plan, points(each), points(run.terms), run.clients, ())
        seeds = range(run.first_seed, run.first_seed + run.clients.sizes.shape[0])
        return figure, jax.block_until_ready(figure.rounds(figure.init(seeds), 0, 0))

    def train(self, run: Run, rounds: int) -> tuple[Any, Any, float]:
        """The models and the shared state after so many rounds, and the seconds of those."""
        figure, state = self.begun(run)
        began = time.perf_counter()
        state = jax.block_until_ready(figure.rounds(state, 0, rounds))
        return figure.models(state), state.shared, time.perf_counter() - began

    def run(self) -> dict[str, Any]:
        with ThreadPoolExecutor(len(OBJECTIVES)) as beside:
            for objective in OBJECTIVES:
                beside.submit(self.compile_tuning, objective)
            self.trained()
        for part in self.parts:
            for seed in range(self.setting.seeds):
                part(seed)
        return self.found

    def trained(self) -> None:
        """Everything up to the models that are fine-tuned."""
        open_methods = {"personal" if method == "local" else method for method, _ in self.open_runs()}
        runs = [Run(self.plan, m, self.many, [self.exact], [1.0] * (m == "personal")) for m in open_methods]
        if not self.known(part="chosen"):
            each = [self.exact] * len(STRENGTHS)
            runs.append(Run(self.plan, "personal", self.choosing.clients, each, STRENGTHS))
            for method in self.with_own_rounds() if len(self.setting.rounds) > 1 else ():
                runs.append(Run(self.plan, method, self.choosing.clients, [self.exact] * len(self.budgets)))
        speed = self.speed_runs() if self.setting.speed and not self.known(part="speed") else {}
        with ThreadPoolExecutor(4) as pool:  # what fails to compile here fails again where it is needed
            for run in [*runs, *speed.values()]:
                pool.submit(self.begun, run)
        self.write(part="compile", programs=len(runs) + len(speed))
        for what, run in speed.items():
            self.speed(what, run)
        self.figure(*self.choose())

    def speed_runs(self) -> dict[str, Run]:
        """One run, and noise x clip x seeds as one program."""
        parcel = job_file.load(self.folder / "speed.npz")
        base = trees.row(parcel.terms, 0)
        inbox: Any = base.inbox
        sweep = [
            replace(base, inbox=replace(inbox, noise_multiplier=inbox.noise_multiplier * z, clip=jnp.float32(c)))
            for z in (0.5, 1.0, 2.0)
            for c in (0.2, 0.5, 1.0)
        ]
        return {
            "one run": Run(parcel.plan(), "personal", parcel.clients, [base], [1.0]),
            "18 runs as one": Run(parcel.plan(), "personal", copies(parcel.clients, 2), sweep, [1.0] * len(sweep)),
        }

    def speed(self, what: str, run: Run) -> None:
        rounds = 1000 if len(run.terms) == 1 else 100
        _, _, seconds = self.train(run, rounds)
        runs, images = len(run.terms) * len(run.clients.sizes), BATCH * float(jnp.mean(run.clients.steps))
        work = FLOPS_PER_IMAGE * self.setting.cohort * images * rounds * runs
        each = 1000 * seconds / rounds / runs
        self.write(part="speed", what=what, rounds=rounds, ms_per_round=each, tflops=work / seconds / 1e12)

    def choose(self) -> tuple[dict[tuple[str, str], int], dict[str, float]]:
        """For every budget the rounds, then the strength, that do best on held-out training images."""
        if chosen := self.known(part="chosen"):
            strengths = {budget: float(strength) for budget, strength in chosen["strengths"].items()}
            return {(method, budget): number for method, budget, number in chosen["rounds"]}, strengths
        rounds, strengths = self.choose_rounds(), {}
        alone = self.by_strength(NO_PRIVACY, rounds["personal", NO_PRIVACY])[0.0]
        for budget in self.budgets:
            usual, most = rounds["personal", budget], max(self.setting.rounds)
            scores = {(usual, s): score for s, score in self.by_strength(budget, usual).items() if s}
            if max(scores.values()) < alone and usual < most:
                scores |= {(most, s): score for s, score in self.by_strength(budget, most, WEAK).items()}
            rounds["personal", budget], strengths[budget] = max(scores, key=lambda pair: scores[pair])
        every = [[*key, value] for key, value in rounds.items()]
        shown = {budget: f"{strength:g}" for budget, strength in strengths.items()}  # JSON has no infinity
        self.write(
            part="chosen",
            rounds=every,
            strengths=shown,
            grid=[f"{s:g}" for s in sorted({*STRENGTHS, *WEAK})],
            pull=PULL,
        )
        return rounds, strengths

    def by_strength(self, budget: str, rounds: int, strengths: Sequence[float] = STRENGTHS) -> dict[float, float]:
        """Held-out accuracy of mean regularisation after so many rounds."""
        names = [f"{strength:g}" for strength in strengths]
        terms = [self.terms_for(budget, rounds)] * len(strengths)
        found = self.held_out(
            Run(self.plan, "personal", self.choosing.clients, terms, strengths), rounds, names, epsilon=budget
        )
        return {strength: found[name] for strength, name in zip(strengths, names, strict=True)}

    def choose_rounds(self) -> dict[tuple[str, str], int]:
        """For every method and budget the number of rounds that does best, where there are several to choose from."""
        grid, best = self.setting.rounds, {}
        if len(grid) == 1:
            return {(method, budget): grid[0] for method in self.setting.methods for budget in self.budgets}
        for method in self.with_own_rounds():
            scores: dict[str, dict[int, float]] = {budget: {} for budget in self.budgets}
            for rounds in grid:
                terms = [self.terms_for(budget, rounds) for budget in self.budgets]
                found = self.held_out(Run(self.plan, method, self.choosing.clients, terms), rounds, self.budgets)
                for budget, value in found.items():
                    scores[budget][rounds] = value
            best[method] = {budget: max(of, key=lambda r, of=of: of[r]) for budget, of in scores.items()}
        return {
            (method, b): best.get(method, best["global"])[b] for method in self.setting.methods for b in self.budgets
        }

    def with_own_rounds(self) -> list[str]:
        """The methods whose number of rounds is chosen without a strength; the others take that of the global model."""
        return [method for method in ("global", "small shared part") if method in self.setting.methods]

    def held_out(self, run: Run, rounds: int, names: Sequence[str], **about: str) -> dict[str, float]:
        """Accuracy on held-out training images at every point of a sweep, with a seed of its own."""
        what = {"part": "choose", "method": run.method, "rounds": rounds, **about}
        if before := self.known(**what):
            return before["accuracy"]
        models, _, seconds = self.train(replace(run, first_seed=100), rounds)
        errors = accuracy_errors(self.plan, self.choosing.tests, jax.tree.map(lambda leaf: leaf[:, 0], models))
        found = {name: summary(own)["mean"] for name, own in zip(names, np.asarray(errors), strict=True)}
        self.write(**what, seconds=seconds, accuracy=found)
        return found

    def figure(self, rounds: dict[tuple[str, str], int], strengths: dict[str, float]) -> None:
        """All methods at all budgets, and training alone; what fine-tuning starts from is kept."""
        for method, budget in self.open_runs():
            if self.late():
                return
            local = method == "local"
            number = self.setting.local_rounds if local else rounds[method, budget]
            terms, strength = self.terms_for(budget, number), 0.0 if local else strengths[budget]
            own = "personal" if local else method
            run = Run(self.plan, own, self.many, [terms], [strength] * (own == "personal"))
            if self.known(part="figure", method="personal", epsilon=budget, strength="inf") and method == "personal":
                self.models[method, budget] = None  # tuned as the global one
                continue
            models, shared, seconds = self.train(run, number)
            models = trees.row(models, 0)
            if method in TUNED:
                self.models[method, budget] = models
            if method == "personal":
                self.common[budget] = trees.row(shared, 0)
            if self.known(part="figure", method=method, epsilon=budget):
                continue
            sent = shared[0] if "shared" in method else shared
            weights = trees.size(jax.eval_shape(lambda s: trees.row(s, (0, 0)), sent))
            inbox: Any = terms.inbox
            noise = float(inbox.noise_multiplier)
            self.write(
                part="figure",
                method=method,
                epsilon=budget,
                rounds=number,
                strength=f"{strength:g}" if own == "personal" else None,
                noise_multiplier=noise,
                shared_weights=weights,
                most_signal_to_noise=self.setting.cohort / (noise * weights**0.5) if noise else None,
                seconds=seconds,
                by_seed=[summary(e) for e in np.asarray(accuracy_errors(self.plan, self.data.tests, models))],
            )

    def open_runs(self) -> list[tuple[str, str]]:
        """Methods and budgets that are not measured yet, or whose models something else still needs."""

        def needed(method: str, budget: str) -> bool:
            parts: list[dict[str, Any]] = [{"part": "tune", "start": method}] * (method in TUNED)
            parts += [{"part": "select"}] * (method == "global" and self.select in self.parts)
            seeds = range(self.setting.seeds)
            later = all(self.known(**part, epsilon=budget, seed=seed) for part in parts for seed in seeds)
            return not (later and self.known(part="figure", method=method, epsilon=budget))

        every = [(method, budget) for budget in reversed(self.budgets) for method in self.setting.methods]
        return [(method, budget) for method, budget in [*every, ("local", NO_PRIVACY)] if needed(method, budget)]

    def tune(self, seed: int) -> None:
        """Fine-tuning from the personal and from the global model, with the four objectives."""
        for (start, budget), models in self.models.items():
            what: dict[str, Any] = {"part": "tune", "start": start, "epsilon": budget, "seed": seed}
            if self.known(**what):
                continue
            if start == "personal" and self.known(part="figure", method=start, epsilon=budget, strength="inf"):
                self.tune_as_global(what)
                continue
            if self.late():
                return
            own = trees.row(models, seed)
            common = trees.row(self.common[budget], seed) if start == "personal" else trees.row(own, 0)
            for objective in OBJECTIVES if start in ("global", "personal") else ("vanilla",):  # else nothing to be near
                each = tuned(self.plan, self.setting.tuning_steps, objective, *self.own_rows(), common, own)
                self.write(**what, objective=objective, **summary(each))

    def own_rows(self) -> tuple[Clients, Sequence[Any]]:
        """What clients tune on, and what they are tested on."""
        return self.data.clients, self.data.tests

    def compile_tuning(self, objective: str) -> None:
        """Takes minutes on an accelerator, so it is begun with everything else."""
        one = jax.eval_shape(self.plan.model.init, jax.random.key(0))
        each = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((self.plan.clients, *leaf.shape), leaf.dtype), one)
        tuned.lower(self.plan, self.setting.tuning_steps, objective, *self.own_rows(), one, each).compile()

    def tune_as_global(self, what: dict[str, Any]) -> None:
        """With infinite strength a personal model is the global one: its rows are that one's."""
        for row in [r for r in self.found["rows"] if {**what, "start": "global"}.items() <= r.items()]:
            self.write(**{**row, **what, "same_as": "global"})

    def select(self, seed: int) -> None:
        """Self-selection among a model trained alone, the global one, and one held near it."""
        step = SelfSelect(step_size=0.2, strengths=(0.01, 0.1), steps=self.setting.selecting_steps)
        if self.late() or self.known(part="select", seed=seed):
            return
        budgets = [budget for start, budget in self.models if start == "global"]
        each = [trees.row(self.models["global", budget], (seed, 0)) for budget in budgets]
        shared = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        errors = np.asarray(selected(self.plan, step, self.data.clients, self.data.tests, shared))
        for budget, own in zip(budgets, errors.T, strict=True):
            self.write(part="select", epsilon=budget, seed=seed, **summary(own))
