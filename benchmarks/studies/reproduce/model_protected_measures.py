"""The tables and figures of Liang et al., Model-Protected Multi-Task Learning; linear models, client level.

The published noise is not private (docs/explain/published-noise.md), so its curves stand beside those of sound Gaussian
noise, and claims are tried on the sound ones unless they say otherwise. LSOA II cannot be had.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.studies.covariance import methods
from benchmarks.studies.covariance.data import RIDGE, delta_for, found_settings, iterative, school_rows, synthetic
from benchmarks.studies.reproduce.records import Curves, Measured, Size, means
from benchmarks.studies.reproduce.scores import point
from kinfolk.accounting import group_privacy
from kinfolk.theory import covariance_rates as rates
from kinfolk.theory.covariance_noise import published_scale

STUDY = Path(__file__).parents[1] / "covariance" / "results"
OURS, PUBLISHED, ONE_SHOT = "MP-MTL, sound noise", "MP-MTL, as published (NOT PRIVATE)", "one-shot (ours)"
ALONE, SHARED, RELATED, AVERAGED = "single-task", "MTL, no privacy", "DP-MTRL", "DP-AGGR"
DESIGN = "the paper's design: 320 tasks, 30 rows, 30 features, {}"
PATTERN_WORDS = {"low_rank": "models of rank 5", "group_sparse": "4 used features"}


def repetitions(size: Size) -> int:
    return {"cell": 1, "quick": 2, "full": 20}[size]


def fits(pattern: str, epsilon: float, clients: int) -> dict[str, methods.Fit]:
    """The private methods at one budget."""
    delta = delta_for(clients)
    found = {
        name: methods.fit_iterative(
            iterative(pattern, noise), found_settings(pattern, noise, epsilon), epsilon, delta, RIDGE
        )
        for name, noise in ((OURS, "gaussian"), (PUBLISHED, "wishart_as_published"))
    }
    return {**found, ONE_SHOT: methods.fit_one_shot(epsilon, delta, RIDGE, pattern)}


def references(pattern: str) -> dict[str, methods.Fit]:
    shared = methods.fit_trace(1.0) if pattern == "low_rank" else methods.fit_groups(0.5)
    return {ALONE: methods.fit_alone(RIDGE), SHARED: shared}


STRONG = 1e4
"""A ridge that makes small models, which need little noise: about what a search finds for the two rivals."""


def rivals(epsilon: float, clients: int) -> dict[str, methods.Fit]:
    """DP-MTRL and DP-AGGR, made to protect whole tasks of 30 rows."""
    noise = group_privacy.noise_for_client(epsilon, delta_for(clients), 1, 30)
    return {
        RELATED: methods.fit_relationship(0.0, STRONG, noise, 1),
        AVERAGED: methods.fit_averaged(STRONG, noise),
    }


def figure_2(size: Size) -> Measured:
    """The running example: how far the other nine models turn because of the tenth."""
    runs = {"cell": 3, "quick": 100, "full": 1000}[size]
    turned: dict[str, list[float]] = {"without noise": [], "as published (NOT PRIVATE)": [], "sound noise": []}
    clip, strength, epsilon = 100 * np.sqrt(5), 50.0, 0.1
    multiplier = methods.whole_noise(epsilon, 1e-3)
    for seed in range(runs):
        generator = np.random.default_rng(seed)
        models = generator.uniform(size=(5, 10))
        models[:, 9] *= 100
        normal = generator.normal(size=(6, 5)) * np.sqrt(published_scale(clip, epsilon))
        upper = np.triu(generator.normal(size=(5, 5)))
        sound = (upper + np.triu(upper, 1).T) * clip**2 * multiplier
        for name, noise in zip(turned, (np.zeros((5, 5)), normal.T @ normal, sound), strict=True):
            values, vectors = np.linalg.eigh(models @ models.T + noise)
            kept = np.maximum(1 - strength / np.sqrt(np.maximum(values, 1e-9)), 0) * (values > 0)
            after = (vectors * kept) @ vectors.T @ models[:, :9]
            own = models[:, :9] / np.linalg.norm(models[:, :9], axis=0)
            after = after / np.maximum(np.linalg.norm(after, axis=0), 1e-12)
            turned[name].append(float(np.mean(1 - (own * after).sum(axis=0))))
    curves = {name: [point(0.1, np.array(values))] for name, values in turned.items()}
    return Measured(
        curves,
        "made as the paper says: 5 features, 10 tasks, the tenth 100 times as large",
        runs,
        "epsilon 0.1",
        note="What protects here is not private. With sound noise nothing is left of a moment of ten tasks.",
    )


def figure_3(size: Size) -> Measured:
    """How alike the models, and the relations between tasks, are to the true ones: cosines, at epsilon 0.1."""
    count = repetitions(size)
    data = synthetic("low_rank", count)
    from benchmarks.studies.covariance.tasks import synthetic_tasks

    truths = [synthetic_tasks("low_rank", seed).truth for seed in range(count)]
    made = {**fits("low_rank", 0.1, 320), RELATED: rivals(0.1, 320)[RELATED], ALONE: methods.fit_alone(RIDGE)}
    curves = {}
    for name, fit in made.items():
        models, relations = [], []
        for n, key in enumerate(data.keys(0)):
            found = np.asarray(fit(key, data.x[n], data.y[n], data.mask[n]))
            models.append(_cosine(found, truths[n]))
            relations.append(_cosine(found @ found.T, truths[n] @ truths[n].T))
        curves[f"{name}: models"] = [point(0.1, np.array(models))]
        curves[f"{name}: relations"] = [point(0.1, np.array(relations))]
    return Measured(curves, DESIGN.format("models of rank 5"), count, "epsilon 0.1")


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / max(np.linalg.norm(one) * np.linalg.norm(other), 1e-12))


def figure_4(kind: str, size: Size) -> Measured:
    """How the budget is divided over rounds, at the paper's epsilon of 0.1."""
    count, rounds, epsilon = repetitions(size), 10, 0.1
    data = synthetic("low_rank", count)
    places = (-1.0, 0.0, 1.0) if size != "full" else (-1.0, -0.5, 0.0, 0.4, 1.0, 2.0)
    if kind == "ratio":
        places = (-0.3, 0.0, 0.3) if size != "full" else (-0.6, -0.3, -0.1, 0.0, 0.1, 0.3, 0.6)
    turns = np.arange(1, rounds + 1)
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for name, noise in ((OURS, "gaussian"), (PUBLISHED, "wishart_as_published")):
        found = found_settings("low_rank", noise, epsilon) | {"rounds": rounds}
        for accelerated in (False, True):
            base = replace(iterative("low_rank", noise), accelerated=accelerated)
            label = f"{name}, {'accelerated' if accelerated else 'plain'}"
            curves[label] = []
            for place in places:
                weights = turns**place if kind == "power" else np.exp(place * turns)
                fit = methods.fit_iterative(base, found, epsilon, delta_for(320), RIDGE, weights)
                curves[label].append(point(place, methods.errors(data, fit)))
    for name, fit in references("low_rank").items():
        values = methods.errors(data, fit)
        curves[name] = [point(place, values) for place in places]
    return Measured(curves, DESIGN.format("models of rank 5"), count, "epsilon 0.1, 10 rounds")


def figure_5(size: Size) -> Measured:
    """Noise over signal in every round, log10 of Frobenius norms."""
    count, rounds, epsilon = repetitions(size), 3 if size == "cell" else 10, 0.1
    data = synthetic("low_rank", count)
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for name, noise in ((OURS, "gaussian"), (PUBLISHED, "wishart_as_published")):
        found = found_settings("low_rank", noise, epsilon)
        own: dict[str, Any] = {key: jnp.float32(value) for key, value in found.items() if key != "rounds"}
        settings = replace(iterative("low_rank", noise), **own)
        levels = np.asarray(methods.levels_for(epsilon, delta_for(320), rounds, noise, None))
        start = jax.vmap(lambda x, y: methods._ridge(x, y, RIDGE))(data.x, data.y)
        curves[name] = []
        for turn in range(rounds):
            ratios = []
            for n, key in enumerate(data.keys(turn)):
                before = start[n]
                if turn:
                    used = jnp.asarray(levels[:turn], jnp.float32)
                    before = methods._iterative(settings, key, data.x[n], data.y[n], data.mask[n], used, before)
                signal, _ = replace(settings, noise="none").moment(key, before, jnp.float32(0))
                released, _ = settings.moment(key, before, jnp.float32(levels[turn]))
                ratios.append(float(jnp.log10(jnp.linalg.norm(released - signal) / jnp.linalg.norm(signal))))
            curves[name].append(point(turn + 1, np.array(ratios)))
    curves[RELATED] = [point(1, noise_of_models(data, epsilon))]
    note = "DP-MTRL releases the models themselves, so its ratio is that of the models."
    return Measured(curves, DESIGN.format("models of rank 5"), count, "epsilon 0.1", note=note)


def noise_of_models(data: methods.Repetitions, epsilon: float) -> np.ndarray:
    """log10 of DP-MTRL's noise over the models that it is added to, in every repetition."""
    noisy, plain = rivals(epsilon, data.clients)[RELATED], methods.fit_relationship(0.0, STRONG, 0.0, 1)
    ratios = []
    for n, key in enumerate(data.keys(0)):
        with_noise, without = (np.asarray(fit(key, data.x[n], data.y[n], data.mask[n])) for fit in (noisy, plain))
        ratios.append(np.log10(np.linalg.norm(with_noise - without) / np.linalg.norm(without)))
    return np.array(ratios)


EPSILONS = (0.1, 1.0, 10.0)
PRINTED_NAMES = {
    ALONE: "single-task l2",
    SHARED: "non-private proximal",
    OURS: "iterative, epsilon {:g}",
    ONE_SHOT: "one-shot, epsilon {:g}",
    RELATED: "DP-MTRL, one client, epsilon {:g}",
    AVERAGED: "DP-AGGR, one client, epsilon {:g}",
}


def figure_6_in_full(pattern: str) -> Measured:
    """On the paper's own design, with all methods tuned: what the covariance study measured."""
    found = json.loads((STUDY / "printed.json").read_text())
    root = np.sqrt(found["repetitions"])
    curves = {}
    for name, words in PRINTED_NAMES.items():
        rows = [found[pattern][words.format(epsilon)] for epsilon in EPSILONS]
        curves[name] = [
            (e, round(row["mean"], 6), round(row["deviation"] / root, 6)) for e, row in zip(EPSILONS, rows, strict=True)
        ]
    return Measured(
        curves,
        "made as the paper prints its design: 320 tasks, 30 rows, 30 features",
        found["repetitions"],
        f"delta {found['delta']:.2g}",
        took=f"Measured by the covariance study: {found['cpu_seconds']:.0f} CPU seconds for both patterns.",
    )


def figure_6(pattern: str, size: Size) -> Measured:
    """Error against epsilon, for all methods."""
    if size == "full":
        return figure_6_in_full(pattern)
    count = repetitions(size)
    epsilons = (1.0,) if size == "cell" else EPSILONS
    data = synthetic(pattern, count)
    curves: dict[str, list[tuple[float, float, float]]] = {}
    flat = {name: methods.errors(data, fit) for name, fit in references(pattern).items()}
    for name, values in flat.items():
        curves[name] = [point(epsilon, values) for epsilon in epsilons]
    for epsilon in epsilons:
        for name, fit in (fits(pattern, epsilon, 320) | rivals(epsilon, 320)).items():
            curves.setdefault(name, []).append(point(epsilon, methods.errors(data, fit)))
    return Measured(curves, DESIGN.format(PATTERN_WORDS[pattern]), count, "delta 5.4e-4")


def figure_7(size: Size) -> Measured:
    """Error of the first 20 tasks against the number of tasks, at the paper's epsilon of 0.1."""
    count = repetitions(size)
    counts = {"cell": (20,), "quick": (20, 80, 320), "full": (20, 40, 80, 160, 320)}[size]
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for clients in counts:
        data = synthetic("low_rank", count, 0, clients)
        for name, fit in {ALONE: methods.fit_alone(RIDGE), **fits("low_rank", 0.1, clients)}.items():
            values = []
            for n, key in enumerate(data.keys(0)):
                models = fit(key, data.x[n], data.y[n], data.mask[n])[:20]
                values.append(
                    float(methods.error(models, data.test_x[n, :20], data.test_y[n, :20], data.test_mask[n, :20]))
                )
            curves.setdefault(name, []).append(point(clients, np.array(values)))
    return Measured(curves, DESIGN.format("models of rank 5, 20 to 320 tasks"), count, "epsilon 0.1, delta 1/(m log m)")


def figure_8(size: Size) -> Measured:
    """School, 30 % for training: what the covariance study measured, or a few repetitions of it."""
    if size == "full":
        found = json.loads((STUDY / "school.json").read_text())
        names = {"single-task l2": ALONE, "non-private proximal": SHARED, "iterative": OURS, "one-shot": ONE_SHOT}
        curves = {
            new: [(e, round(v, 6), 0.0) for e, v in zip(found["epsilons"], found["30%"]["curves"][old], strict=True)]
            for old, new in names.items()
        }
        return Measured(
            curves,
            "School, 30 % of each school for training",
            found["repetitions"],
            "delta 1/(m log m)",
            note="Means over repetitions; the study kept no spread.",
            took=f"Measured by the covariance study: {found['cpu_seconds']:.0f} CPU seconds for all its curves.",
        )
    count, ridge = 1 if size == "cell" else 3, 0.3
    data = school_rows(0.3, range(count))
    epsilons = (1.0,) if size == "cell" else (0.1, 1.0, 10.0)
    curves = {}
    for name, fit in {ALONE: methods.fit_alone(ridge), SHARED: methods.fit_trace(1.0)}.items():
        values = methods.errors(data, fit)
        curves[name] = [point(epsilon, values) for epsilon in epsilons]
    for epsilon in epsilons:
        fit = methods.fit_one_shot(epsilon, delta_for(data.clients), ridge, "low_rank")
        curves.setdefault(ONE_SHOT, []).append(point(epsilon, methods.errors(data, fit)))
    curves[OURS] = curves[ONE_SHOT]
    return Measured(
        curves,
        "School, 30 % of each school for training",
        count,
        "delta 1/(m log m)",
        note="Small runs use the one-shot method alone, under both names.",
    )


def lsoa(size: Size) -> Measured:
    """A stand-in for LSOA II: 41 tasks of 188 features would be; here the group-sparse design with 41 tasks."""
    count = repetitions(size)
    data = synthetic("group_sparse", count, 0, 41)
    curves = {}
    for name, fit in {
        ALONE: methods.fit_alone(RIDGE),
        ONE_SHOT: methods.fit_one_shot(1.0, delta_for(41), RIDGE, "group_sparse"),
    }.items():
        curves[name] = [point(1.0, methods.errors(data, fit))]
    return Measured(curves, "a stand-in for LSOA II: 41 made tasks", count, "epsilon 1", True)


CONDITION = 1e-3
"""Strong convexity over smoothness: the exponents do not depend on it."""


def table_1(size: Size) -> Measured:
    """The powers of the bounds, worked out again: exact, so every size is the same."""
    del size
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for accelerated in (False, True):
        speed = "accelerated" if accelerated else "plain"
        for pure in (True, False):
            power = rates.best_power(accelerated=accelerated, pure=pure)
            found = rates.power_exponent(power, accelerated=accelerated, pure=pure)
            curves[f"{'delta 0' if pure else 'delta > 0'}, {speed}, convex"] = [(0.0, round(found, 6), 0.0)]
        ratio = rates.best_ratio(CONDITION, accelerated=accelerated)
        found = rates.ratio_exponent(ratio, CONDITION, accelerated=accelerated)
        curves[f"{speed}, strongly convex"] = [(0.0, round(found, 6), 0.0)]
    note = (
        "The group-sparse theorems ask more of the budget than one round can have where anything is sparse, so that "
        "column's bounds are empty; and the published noise, for which all of them are stated, is not private."
    )
    return Measured(curves, "none: closed forms", 1, "exponents of d log(d) / (sqrt(m) epsilon)", note=note)


def between(curves: Curves, name: str) -> bool:
    """Whether a method lies between single-task and non-private multi-task learning, up to 1 % above, 5 % below."""
    return all(
        s * 0.95 <= v <= a * 1.01
        for v, a, s in zip(means(curves, name), means(curves, ALONE), means(curves, SHARED), strict=True)
    )
