"""Covariance sharing: accuracy, harm, figures of the paper with sound noise, School, and cost.

    python -m benchmarks.studies.covariance.run [--repetitions 20]
        [settings by_figure edges table printed crossed odd nearly harm schedule privacy tasks tasks_matrix school
         examples classes cost attack picture]

Each part writes results/PART.json beside it, and figures to docs/pictures. Hyper-parameters of every method
(the one-shot method has one, its ridge) were searched on other repetitions: that search is not private.
KINFOLK_DATA names the directory of School and FEMNIST.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.studies.covariance import by_figure, figures, methods
from benchmarks.studies.covariance.classes import classification
from benchmarks.studies.covariance.cost import seconds
from benchmarks.studies.covariance.data import (
    EPSILONS,
    PATTERNS,
    RESULTS,
    RIDGE,
    SEARCH_SEED,
    SEARCHED,
    delta_for,
    found_settings,
    iterative,
    synthetic,
)
from kinfolk.verify.attack import attack as play
from kinfolk.verify.covariance_attack import problems
from kinfolk.verify.covariance_iterative import WARNING

FRESH_SEED = 1000
"""Of the table and of harm: repetitions that nothing was chosen on, neither settings nor the method's own design."""


def summary(found: np.ndarray) -> dict[str, float]:
    return {"mean": float(found.mean()), "deviation": float(found.std(ddof=1)) if found.size > 1 else 0.0}


def settings(repetitions: int) -> dict[str, Any]:
    """The search: settings of the iterative method for every pattern, noise and epsilon."""
    del repetitions
    result: dict[str, Any] = {"seeds": list(range(SEARCH_SEED, SEARCH_SEED + SEARCHED))}
    for pattern in PATTERNS:
        trial = synthetic(pattern, SEARCHED, SEARCH_SEED)
        for noise in ("gaussian", "wishart_as_published"):
            for epsilon in EPSILONS if noise == "gaussian" else (0.1, 1.0, 10.0):
                found = methods.search_iterative(
                    trial, iterative(pattern, noise), epsilon, 5.4e-4, RIDGE, (1, 3, 10, 30)
                )
                result[f"{pattern}, {noise}, {epsilon:g}"] = found
                print(pattern, noise, epsilon, found, flush=True)
    return result


def edges(repetitions: int) -> dict[str, Any]:
    """What lies beyond the search's grid, where the found strength is its smallest: mean errors on the search's data.

    Of weaker strengths and larger clips; the clip as a multiple of the one that was found.
    """
    del repetitions
    result: dict[str, Any] = {"seeds": list(range(SEARCH_SEED, SEARCH_SEED + SEARCHED))}
    for pattern in PATTERNS:
        trial = synthetic(pattern, SEARCHED, SEARCH_SEED)
        for epsilon in EPSILONS:
            found = found_settings(pattern, "gaussian", epsilon)
            if found["strength"] > min(methods.STRENGTHS):
                continue
            for strength, more in itertools.product((found["strength"], 0.0003, 0.0001, 0.0), (1.0, 1.5, 3.0)):
                own = found | {"strength": strength, "clip": more * found["clip"]}
                fit = methods.fit_iterative(iterative(pattern), own, epsilon, 5.4e-4, RIDGE)
                errors = result.setdefault(f"{pattern}, {epsilon:g}", {})
                errors[f"strength {strength:g}, clip x {more:g}"] = float(methods.errors(trial, fit, 77).mean())
    return result


def table(repetitions: int) -> dict[str, Any]:
    """The table of the design: m 320, n 30, d 30, rank 5 or 4 features, delta 5.4e-4."""
    result: dict[str, Any] = {"repetitions": repetitions, "delta": 5.4e-4}
    for pattern in PATTERNS:
        data, rows = synthetic(pattern, repetitions, FRESH_SEED), {}
        own = {"low_rank": 0.01, "group_sparse": 0.03}[pattern]  # best of 0.003, 0.01, 0.03, 0.1 on the search's seeds
        shared = methods.fit_trace(1.0) if pattern == "low_rank" else methods.fit_groups(0.5)
        rows["single-task l2"] = summary(methods.errors(data, methods.fit_alone(RIDGE)))
        rows["single-task l1"] = summary(methods.errors(data, methods.fit_lasso(own)))
        rows["non-private proximal"] = summary(methods.errors(data, shared))
        if pattern == "group_sparse":
            rows["used features known"] = summary(methods.errors(data, methods.fit_known(4, RIDGE)))
        for epsilon in (0.1, 1.0, 10.0):
            fits = {"one-shot": methods.fit_one_shot(epsilon, 5.4e-4, RIDGE, pattern)}
            if pattern == "group_sparse":
                fits["one-shot, Laplace"] = methods.fit_one_shot(epsilon, 5.4e-4, RIDGE, pattern, True)
                fits["one-shot, only shared"] = methods.fit_one_shot(epsilon, 5.4e-4, RIDGE, pattern, only_shared=True)
            for noise, name in (("gaussian", "iterative"), ("wishart_as_published", f"iterative, {WARNING}")):
                found = found_settings(pattern, noise, epsilon)
                fits[name] = methods.fit_iterative(iterative(pattern, noise), found, epsilon, 5.4e-4, RIDGE)
            for name, fit in fits.items():
                rows[f"{name}, epsilon {epsilon:g}"] = summary(methods.errors(data, fit))
        result[pattern] = rows
    return result


def printed(repetitions: int) -> dict[str, Any]:
    """The paper's own design, at its delta 1/(m log m), with DP-MTRL and DP-AGGR tuned as the others are."""
    delta = delta_for(320)
    result: dict[str, Any] = {"repetitions": repetitions, "delta": delta}
    for pattern in PATTERNS:
        data = synthetic(pattern, repetitions, FRESH_SEED + 900, printed=True)
        trial = synthetic(pattern, SEARCHED, SEARCH_SEED, printed=True)
        shared = methods.fit_trace(1.0) if pattern == "low_rank" else methods.fit_groups(0.5)
        fits = {"single-task l2": methods.fit_alone(RIDGE), "non-private proximal": shared}
        for epsilon in (0.1, 1.0, 10.0):
            found = found_settings(pattern, "gaussian", epsilon)
            fits |= {
                f"one-shot, epsilon {epsilon:g}": methods.fit_one_shot(epsilon, delta, RIDGE, pattern),
                f"iterative, epsilon {epsilon:g}": methods.fit_iterative(
                    iterative(pattern), found, epsilon, delta, RIDGE
                ),
            }
            for unit, rows in (("client", 30), ("example", 1)):
                relations = methods.private_relationship(trial, epsilon, delta, rows)
                fits[f"DP-MTRL, one {unit}, epsilon {epsilon:g}"] = relations
                fits[f"DP-AGGR, one {unit}, epsilon {epsilon:g}"] = methods.private_averaged(
                    trial, epsilon, delta, rows
                )
        result[pattern] = {name: summary(methods.errors(data, fit)) for name, fit in fits.items()}
    return result


def crossed(repetitions: int) -> dict[str, Any]:
    """As `printed`: each pattern by the algorithm of the other, with settings that are searched for there."""
    delta = delta_for(320)
    result: dict[str, Any] = {"repetitions": repetitions, "delta": delta}
    for pattern, other in zip(PATTERNS, reversed(PATTERNS), strict=True):
        data, trial = (
            synthetic(pattern, repetitions, FRESH_SEED + 900, printed=True),
            synthetic(pattern, SEARCHED, SEARCH_SEED),
        )
        for epsilon in (0.1, 1.0, 10.0):
            found = methods.search_iterative(trial, iterative(other), epsilon, 5.4e-4, RIDGE, (1, 3, 10, 30))
            fit = methods.fit_iterative(iterative(other), found, epsilon, delta, RIDGE)
            key = f"{pattern} by the algorithm for {other}, epsilon {epsilon:g}"
            result[key] = summary(methods.errors(data, fit)) | found
    return result


def odd(repetitions: int) -> dict[str, Any]:
    """16 of 320 clients are like nobody else: errors of the others, with models as one and decomposed."""
    result: dict[str, Any] = {"repetitions": repetitions, "delta": 5.4e-4}
    data, trial = (
        synthetic("low_rank", count, seed, odd=16).judged_by(304)
        for count, seed in ((repetitions, FRESH_SEED + 1200), (SEARCHED, SEARCH_SEED))
    )
    result["single-task l2"] = summary(methods.errors(data, methods.fit_alone(RIDGE)))
    for epsilon in (1.0, 10.0):
        found = found_settings("low_rank", "gaussian", epsilon)

        def make(own: dict[str, float], found: Any = found, epsilon: float = epsilon) -> methods.Fit:
            return methods.fit_iterative(replace(iterative("low_rank"), **own), found, epsilon, 5.4e-4, RIDGE)  # type: ignore

        steps, strengths = (2.5, 5.0), (1e-5, 3e-5, 1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
        grid = [{"step_size": step, "outliers": strength} for step in steps for strength in strengths]
        best = methods.search(trial, make, grid)
        result[f"as one, epsilon {epsilon:g}"] = summary(methods.errors(data, make({})))
        result[f"decomposed, epsilon {epsilon:g}"] = summary(methods.errors(data, make(best))) | best
    return result


def nearly(repetitions: int) -> dict[str, Any]:
    """Features that should not matter have weights of this deviation (those that do: 1): who may rely on it?"""
    result: dict[str, Any] = {"repetitions": repetitions, "delta": 5.4e-4}
    for rest in (0.0, 0.03, 0.1, 0.3):
        data = synthetic("group_sparse", repetitions, FRESH_SEED + 600, rest=rest)
        rows = {"single-task l2": float(methods.errors(data, methods.fit_alone(RIDGE)).mean())}
        for epsilon in (0.1, 1.0, 10.0):
            for name, only_shared in (("one-shot", False), ("one-shot, only shared", True)):
                fit = methods.fit_one_shot(epsilon, 5.4e-4, RIDGE, "group_sparse", only_shared=only_shared)
                rows[f"{name}, epsilon {epsilon:g}"] = float(methods.errors(data, fit).mean())
        result[f"{rest:g}"] = rows
    return result


def harm(repetitions: int) -> dict[str, Any]:
    """How often sharing harms at epsilon 0.1: runs whose error is more than 1 % above training alone."""
    result: dict[str, Any] = {"repetitions": repetitions, "epsilon": 0.1}
    settings = [
        (pattern, clients, laplace)
        for pattern in PATTERNS
        for clients in (80, 160, 320, 640)
        for laplace in ((False,) if pattern == "low_rank" else (False, True))
    ]
    worse, runs = 0, 0
    for pattern, clients, laplace in settings:
        data = synthetic(pattern, repetitions, FRESH_SEED + 300, clients)
        alone = methods.errors(data, methods.fit_alone(RIDGE))
        fit = methods.fit_one_shot(0.1, delta_for(clients), RIDGE, pattern, laplace)
        ratios = methods.errors(data, fit, seed=5) / alone
        worse, runs = worse + int((ratios > 1.01).sum()), runs + repetitions
        name = f"{pattern}, {clients} clients" + (", Laplace" if laplace else "")
        result[name] = {"harmed": float((ratios > 1.01).mean()), "largest": float(ratios.max()), **summary(ratios)}
    return result | {"harmed": worse / runs, "runs": runs}


def classes(repetitions: int) -> dict[str, Any]:
    """FEMNIST, digits and letters, with 30 % and 10 % training rows: mean AUC over writers against epsilon."""
    epsilons = (0.1, 1.0, 10.0)
    result: dict[str, Any] = {"epsilons": epsilons, "repetitions": repetitions}
    for centred in (True, False):
        for fraction in (0.3, 0.1):
            name = f"{fraction:.0%}, {'centred' if centred else 'as they are'}"
            result[name] = classification(fraction, repetitions, epsilons, delta_for, centred)
    return result


def cost(repetitions: int) -> dict[str, Any]:
    """CPU seconds of the one-shot method for many clients."""
    del repetitions
    return seconds(RIDGE)


def attack(repetitions: int) -> dict[str, Any]:
    """From the other clients' output models only: the published algorithm, and the sound one."""
    del repetitions
    confidence = 1 - 1e-4 / len(problems())
    return {
        f"{p.name}, epsilon {p.claim:.3g}": play(p, runs=100_000, confidence=confidence).record() for p in problems()
    }


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "settings": settings,
    "by_figure": by_figure.search,
    "edges": edges,
    "table": table,
    "printed": printed,
    "crossed": crossed,
    "odd": odd,
    "nearly": nearly,
    "harm": harm,
    "schedule": figures.schedule,
    "privacy": figures.privacy,
    "tasks": figures.tasks,
    "tasks_matrix": figures.tasks_matrix,
    "school": figures.school_part,
    "examples": figures.examples_again,
    "classes": classes,
    "cost": cost,
    "attack": attack,
    "picture": figures.support_picture,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--repetitions", type=int, default=20)
    args = parser.parse_args()
    for part in args.parts or PARTS:
        began = time.process_time()
        result = PARTS[part](args.repetitions)
        if result:
            result["cpu_seconds"] = time.process_time() - began
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{part}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(part, json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
