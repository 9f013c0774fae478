"""The study's programs, with noise calibrated: written to a folder, to be computed on any machine with jax and numpy.

KINFOLK_DATA=... python -m benchmarks.studies.defaults.plan FOLDER [--half design] [--level client] [--only har ...]
python -m benchmarks.studies.defaults.compute FOLDER        (anywhere)
python -m benchmarks.studies.defaults.page FOLDER           (keeps results, writes docs/results/defaults.md)
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.studies.defaults.settings import (
    CHOICE_SEEDS,
    DESIGN_SEEDS,
    DIFFER,
    EPSILONS,
    EVERYBODY,
    HALVES,
    ROUNDS,
    SCORE_SEEDS,
    STEPS,
    STRENGTHS,
    TAUS,
    Epsilon,
    Setting,
    budgets_of,
    in_words,
)
from kinfolk import recommend, trees
from kinfolk.accounting.budgets import budget_of
from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.algorithms.mean_regularized_auto import MeanRegularizedAuto
from kinfolk.algorithms.schedules import noise_factors
from kinfolk.data.federation import Federation
from kinfolk.engines.layout import lay_out
from kinfolk.personalize.self_select import SelfSelect
from kinfolk.privacy.gates import GRADIENT, STATISTIC, UPDATE
from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level
from kinfolk.training import job_file
from kinfolk.training.build import build_afterwards, build_algorithm, build_model
from kinfolk.training.experiment import Experiment
from kinfolk.training.prepare import precision_weights
from kinfolk.training.recipes import MODELS, ModelChoice
from kinfolk.types import Afterwards, Algorithm

BATCH = {"example": None, "client": 32}


@dataclass(frozen=True)
class Piece:
    """Programs of one kind that run side by side: one per point."""

    algorithms: tuple[Algorithm, ...]
    epsilons: tuple[Epsilon, ...]
    names: tuple[str, ...]
    rounds: int
    afterwards: Afterwards | None = None
    weights: str = "uniform"
    """Of clients in a mean."""


def level_of(name: str, epsilon: Epsilon, ids: Sequence[str] = ()) -> PrivacyLevel:
    """The level with its default delta and clip. `ids`: of clients, where budgets differ."""
    if isinstance(epsilon, str):
        return example_level(EVERYBODY, budgets=budgets_of(ids))
    return example_level(epsilon) if name == "example" else client_level(epsilon)


def usual_step(data: Federation) -> float:
    """One over the curvature of features that are spread evenly, at most one half."""
    inputs = 1 + math.prod(data.shape) / 3
    return min(0.5, 1 / (inputs if data.outcome == "number" else inputs / 4))


def pieces_of(data: Federation, level: str, epsilons: tuple[Epsilon, ...]) -> list[Piece]:
    """The grid, what is recommended and, where they can be used, few releases or models of clients' own.

    Where budgets differ, the grid has strengths that go with a client's noise, too.
    """
    found: list[Piece] = []
    mixed = DIFFER in epsilons
    for rounds in ROUNDS[level]:
        points = list(itertools.product(epsilons, (False, True)[: 1 + mixed], STEPS, STRENGTHS))
        algorithms = [_of_grid(level, times * usual_step(data), strength, own) for _, own, times, strength in points]
        names = [
            f"strength {strength:g}{' by noise' * own}, step x{times:g}, {rounds} rounds"
            for _, own, times, strength in points
        ]
        found.append(Piece(tuple(algorithms), tuple(point[0] for point in points), tuple(names), rounds))
    chosen = [recommend(data, level_of(level, epsilon, data.ids), seed=0) for epsilon in epsilons]
    for one, epsilon in zip(chosen, epsilons, strict=True):
        found.append(_recommended(one, level, epsilon, f"default: {_words(one)}"))
    if level == "client":
        alone = MeanRegularized(0.1, solved=True)
        found.append(Piece((alone,), epsilons[:1], ("a model of one's own",), 1, SelfSelect(rule="alone")))
    elif data.outcome == "number" and any(one.phases[0].method != "few_releases" for one in chosen):
        for epsilon in epsilons:
            few = recommend(data, level_of(level, epsilon, data.ids), seed=0, method="few_releases")
            found.append(_recommended(few, level, epsilon, "few releases"))
    return found


def _of_grid(level: str, step: float, strength: float, own: bool) -> Algorithm:
    if level == "client":
        return MeanRegularized(strength, step)
    return MeanRegularizedAuto(step, start=strength, learning=0.0, scaling=float(own))


def _recommended(experiment: Experiment, level: str, epsilon: Epsilon, name: str) -> Piece:
    (phase,) = experiment.phases
    algorithm = build_algorithm(phase, level)
    weights = experiment.training.weights
    return Piece((algorithm,), (epsilon,), (name,), phase.rounds, build_afterwards(experiment), weights)


def _words(experiment: Experiment) -> str:
    (phase,) = experiment.phases
    after = f" + {experiment.afterwards.method}" if experiment.afterwards else ""
    strength = f" {phase.options['strength']}" if "strength" in phase.options else ""
    step = f", step {phase.options['step_size']:g}" if "step_size" in phase.options else ""
    weights = f", by {experiment.training.weights}" if experiment.training.weights != "uniform" else ""
    return f"{phase.method}{strength}, {phase.rounds} rounds{step}{weights}{after}"


def terms_of(piece: Piece, level: str, data: Federation, weights: int) -> Any:
    """The piece's mechanisms, one per point: a round of these methods makes one release per client, or one in all."""
    clients, rounds = len(data.ids), piece.rounds
    few = hasattr(piece.algorithms[0], "noise_factors")
    made = UPDATE if level == "client" else STATISTIC if few else GRADIENT
    factors = noise_factors(piece.algorithms[:1], (range(rounds),))
    who = Population(data.ids, data.train.sizes, BATCH[level], weights, noise_factors=factors)
    calibrated = {}
    for epsilon in dict.fromkeys(piece.epsilons):
        privacy = level_of(level, epsilon, data.ids)
        parties = clients if level == "example" else 1
        uses = {kind: np.full((rounds, parties), int(kind == made)) for kind in privacy.level.kinds}
        calibrated[epsilon] = terms_for(privacy, who, uses)
    return stacked([calibrated[epsilon] for epsilon in piece.epsilons])


def stacked(values: Sequence[Any]) -> Any:
    """Trees of numbers as one with a leading axis of points."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, jnp.float32) for leaf in leaves]), *values)


def of_constants(data: Federation, level: PrivacyLevel, seed: int) -> float:
    """The loss of a constant: the better of a client's own and everybody's, at the whole budget.

    At client level a client's own is free. Numbers: the mean of targets within -1 and 1. Classes: smoothed counts.
    Where budgets differ, everybody's is also weighted by how little noise there is, and the best of three taken.
    """
    generator, sizes = np.random.default_rng([seed, 5]), data.train.sizes.astype(float)
    numbers, classes, by_example = data.outcome == "number", max(2, data.classes), level.level.clients_pay
    rows = [np.asarray(y)[: int(n)] for y, n in zip(data.train.y, sizes, strict=True)]
    counted = [np.clip(y, -1, 1).sum()[None] if numbers else np.bincount(y, minlength=classes) for y in rows]
    sums = np.stack(counted).astype(float)
    units = sizes if by_example else np.array([len(sizes)])
    parties = zip(level.level.parties(data.ids), units.tolist(), strict=True)
    epsilons = np.array([budget_of(level, name, n)[0] for name, n in parties], float)
    noise = np.sqrt(2 * np.log(1.25 / np.minimum(1e-5, units**-1.1))) / epsilons
    own = sums + (noise[:, None] * generator.normal(size=sums.shape) if by_example else 0)
    common = (own / sizes[:, None]).mean(axis=0)
    common = common + (0 if by_example else noise[0] / len(sizes)) * generator.normal(size=common.shape)
    found = [common]
    if level.budgets:
        found.append(np.average(own / sizes[:, None], axis=0, weights=np.square(sizes / noise)))
    losses = np.zeros((1 + len(found), len(rows)))
    for k, (y, n) in enumerate(zip(data.test.y, data.test.sizes, strict=True)):
        for place, share in enumerate((own[k] / sizes[k], *found)):
            if numbers:
                losses[place, k] = np.square(y[:n] - share[0]).mean() / 2 if n else np.nan
            else:
                chances = np.maximum(share, 0) * sizes[k] + 1
                losses[place, k] = -np.log(chances / chances.sum())[y[:n]].mean() if n else np.nan
    return float(np.nanmean(losses, axis=1).min())


def write(setting: Setting, level: str, half: str, folder: Path) -> None:
    """One file with data and programs, and one with words about them."""
    seeds = DESIGN_SEEDS if half == "design" else CHOICE_SEEDS + SCORE_SEEDS
    taus = TAUS if setting.made_up else (0.0,)
    data = [setting.make(seed, tau) for tau in taus for seed in seeds]
    first, model = data[0], MODELS[data[0].outcome]
    built = build_model(ModelChoice(model), first.shape, first.outcome, first.classes)
    weights = trees.size(jax.eval_shape(built.init, jax.random.key(0)))
    clients, tests, widths, most = lay_out(data, batch_size=BATCH[level], epochs=1, most_blocks=2)
    epsilons = (DIFFER,) if setting in HALVES[half][1] else EPSILONS[level]
    pieces = pieces_of(first, level, epsilons)
    programs = []
    for piece in pieces:
        terms, own = terms_of(piece, level, first, weights), clients.weights
        if piece.weights == "precision":
            own = np.tile(precision_weights(trees.row(terms, 0), first.train.sizes, clients), (len(data), 1))
        programs.append((stacked(piece.algorithms), terms, piece.afterwards, own))
    name = f"{setting.name.split(',')[0].replace(' ', '-')}-{len(first.ids)}-{level}"
    job_file.save((clients, tests, tuple(programs)), folder / f"{name}.npz")
    about = {"setting": setting.name, "made_up": setting.made_up, "level": level, "half": half, "model": model}
    about |= {"shape": list(first.shape), "outcome": first.outcome, "classes": first.classes}
    about |= {"widths": widths, "most_steps": most, "seeds": seeds, "taus": taus}
    about["pieces"] = [{"rounds": p.rounds, "epsilons": p.epsilons, "names": p.names} for p in pieces]
    about["constants"] = {
        in_words(epsilon): [of_constants(one, level_of(level, epsilon, one.ids), k) for k, one in enumerate(data)]
        for epsilon in epsilons
    }
    (folder / f"{name}.json").write_text(json.dumps(about))
    print(name, len(data), "federations", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=["design", "confirmation"], default="confirmation")
    parser.add_argument("--level", choices=list(EPSILONS), action="append")
    parser.add_argument("--only", nargs="*", help="what names begin with; default: all")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.folder.mkdir(parents=True, exist_ok=True)
    for level in given.level or EPSILONS:
        equal, mixed = HALVES[given.half]
        for setting in equal + mixed if level == "example" else equal:
            if given.only is None or any(setting.name.startswith(name) for name in given.only):
                write(setting, level, given.half, given.folder)


if __name__ == "__main__":
    main()
