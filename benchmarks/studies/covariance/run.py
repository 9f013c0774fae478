"""Covariance sharing: accuracy, harm, figures of the paper with sound noise, School, and cost.

    python -m benchmarks.studies.covariance.run [--repetitions 20]
        [settings table nearly harm schedule privacy tasks school classes cost attack picture]

Each part writes results/PART.json beside it, and figures to docs/pictures. Hyper-parameters of every method
(the one-shot method has one, its ridge) were searched on 4 repetitions with other seeds: that search is not private.
KINFOLK_DATA names the directory of School and FEMNIST.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.studies.covariance import methods, picture
from benchmarks.studies.covariance.classes import classification
from benchmarks.studies.covariance.cost import seconds
from benchmarks.studies.covariance.methods import Repetitions
from benchmarks.studies.covariance.tasks import synthetic_tasks
from kinfolk.data.sets.school import school
from kinfolk.report import line_chart
from kinfolk.verify.covariance_iterative import WARNING, Iterative

HERE = Path(__file__).parent
RESULTS, PICTURES = HERE / "results", HERE.parents[2] / "docs" / "pictures"
PATTERNS = ("low_rank", "group_sparse")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
RIDGE = 0.01
"""Single-task ridge, the best of 0.003, 0.01 and 0.03 on the search's repetitions for both patterns."""
SEARCH_SEED = 100
FRESH_SEED = 1000
"""Of the table and of harm: repetitions that nothing was chosen on, neither settings nor the method's own design."""


def delta_for(clients: int) -> float:
    """The paper's delta, 1/(m log m): above 1/m times a tenth, so only for comparison."""
    return 1 / (clients * np.log(clients))


def synthetic(pattern: str, repetitions: int, seed: int = 0, clients: int = 320, rest: float = 0.0) -> Repetitions:
    found = [synthetic_tasks(pattern, seed + number, clients=clients, rest=rest) for number in range(repetitions)]
    x, y, tx, ty = (jnp.asarray(np.stack([getattr(t, name) for t in found])) for name in ("x", "y", "test_x", "test_y"))
    return Repetitions(x, y, jnp.ones(y.shape, bool), tx, ty, jnp.ones(ty.shape, bool))


def iterative(pattern: str, noise: str = "gaussian", ridge: float = RIDGE, rows: int = 30) -> Iterative:
    return Iterative(step_size=5.0, ridge=ridge / rows, pattern=pattern, noise=noise)


def summary(found: np.ndarray) -> dict[str, float]:
    return {"mean": float(found.mean()), "deviation": float(found.std(ddof=1)) if found.size > 1 else 0.0}


def settings(repetitions: int) -> dict[str, Any]:
    """The search: settings of the iterative method for every pattern, noise and epsilon."""
    del repetitions
    result: dict[str, Any] = {"seeds": list(range(SEARCH_SEED, SEARCH_SEED + 3))}
    for pattern in PATTERNS:
        trial = synthetic(pattern, 3, SEARCH_SEED)
        for noise in ("gaussian", "wishart_as_published"):
            for epsilon in EPSILONS if noise == "gaussian" else (0.1, 1.0, 10.0):
                found = methods.search_iterative(
                    trial, iterative(pattern, noise), epsilon, 5.4e-4, RIDGE, (1, 3, 10, 30)
                )
                result[f"{pattern}, {noise}, {epsilon:g}"] = found
                print(pattern, noise, epsilon, found, flush=True)
    return result


def found_settings(pattern: str, noise: str, epsilon: float) -> dict[str, float]:
    return json.loads((RESULTS / "settings.json").read_text())[f"{pattern}, {noise}, {epsilon:g}"]


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


def schedule(repetitions: int) -> dict[str, Any]:
    """Figure 4: how the budget is divided over rounds, 1/z_t growing like t^power, with and without acceleration."""
    powers, rounds, result = (-1.0, -0.5, 0.0, 0.4, 1.0, 2.0), 10, {}
    for pattern in PATTERNS:
        data = synthetic(pattern, repetitions)
        found = found_settings(pattern, "gaussian", 10.0) | {"rounds": rounds}
        for accelerated in (False, True):
            base = replace(iterative(pattern), accelerated=accelerated)
            curve = []
            for power in powers:
                weights = np.arange(1, rounds + 1) ** power
                fit = methods.fit_iterative(base, found, 10.0, 5.4e-4, RIDGE, weights)
                curve.append(float(methods.errors(data, fit).mean()))
            result[f"{pattern}, {'accelerated' if accelerated else 'plain'}"] = curve
    x = [float(np.exp(power)) for power in powers]
    draw(
        "covariance_schedule",
        "Figure 4: budget schedules, epsilon 10, 10 rounds, sound noise",
        "e^power, 1/z_t growing like t^power",
        x,
        result,
    )
    return {"powers": powers, "rounds": rounds, "epsilon": 10.0, "repetitions": repetitions, "curves": result}


def privacy(repetitions: int) -> dict[str, Any]:
    """Figure 6: error against epsilon, for all methods."""
    result: dict[str, Any] = {"epsilons": EPSILONS, "repetitions": repetitions}
    for pattern in PATTERNS:
        data, trial = synthetic(pattern, repetitions), synthetic(pattern, 3, SEARCH_SEED)

        def setting(epsilon: float, pattern: str = pattern) -> dict[str, float]:
            return found_settings(pattern, "gaussian", epsilon)

        curves = compare(
            data, trial, pattern, RIDGE, 30, 30, lambda ridge, pattern=pattern: iterative(pattern), setting
        )
        result[pattern] = curves
        draw(
            f"covariance_privacy_{pattern}",
            f"Figure 6: error and epsilon, {pattern.replace('_', '-')}, sound noise",
            "epsilon",
            EPSILONS,
            curves,
        )
    return result


def compare(
    data: Repetitions,
    trial: Repetitions,
    pattern: str,
    ridge: float,
    least: int,
    most: int,
    base: Callable[[float], Iterative],
    setting: Callable[[float], dict[str, float]],
) -> dict[str, list[float]]:
    """Mean errors of all methods over EPSILONS; those without privacy are flat."""
    delta, curves = delta_for(data.clients), {}

    def flat(name: str, fit: methods.Fit) -> None:
        curves[name] = [float(methods.errors(data, fit).mean())] * len(EPSILONS)

    flat("single-task l2", methods.fit_alone(ridge))
    flat("single-task l1", methods.fit_lasso(methods.search(trial, methods.fit_lasso, (0.01, 0.03, 0.1))))
    shared = methods.fit_trace if pattern == "low_rank" else methods.fit_groups
    flat("non-private proximal", shared(methods.search(trial.only(2), shared, (0.3, 1.0, 3.0))))
    strength = methods.search(trial.only(2), methods.fit_relationship, (0.001, 0.01, 0.1))
    flat("MTRL (non-private)", methods.fit_relationship(strength))
    private: dict[str, Callable[[float], methods.Fit]] = {
        "one-shot": lambda e: methods.fit_one_shot(e, delta, ridge, pattern),
        "DP-MTRL, group privacy": lambda e: methods.fit_relationship(
            strength, methods.relationship_noise(e, delta, most, ridge)
        ),
        "DP-AGGR, group privacy": lambda e: methods.fit_averaged(
            ridge, methods.averaged_noise(e, delta, least, most, data.clients, ridge)
        ),
    }
    if pattern == "group_sparse":
        private["one-shot, Laplace"] = lambda e: methods.fit_one_shot(e, delta, ridge, pattern, True)
    for name, make in private.items():
        curves[name] = [float(methods.errors(data, make(epsilon)).mean()) for epsilon in EPSILONS]
    curves["iterative"] = []
    for epsilon in EPSILONS:
        fit = methods.fit_iterative(base(ridge), setting(epsilon), epsilon, delta, ridge)
        curves["iterative"].append(float(methods.errors(data, fit).mean()))
    return curves


def tasks(repetitions: int) -> dict[str, Any]:
    """Figure 7: error against the number of tasks, at epsilon 1."""
    counts, result = (20, 40, 80, 160, 320, 640), {"repetitions": repetitions, "epsilon": 1.0}
    for pattern in PATTERNS:
        curves: dict[str, list[float]] = {"single-task l2": [], "one-shot": [], "iterative": []}
        for clients in counts:
            data, delta = synthetic(pattern, repetitions, 0, clients), delta_for(clients)
            found = found_settings(pattern, "gaussian", 1.0)
            fits = {
                "single-task l2": methods.fit_alone(RIDGE),
                "one-shot": methods.fit_one_shot(1.0, delta, RIDGE, pattern),
                "iterative": methods.fit_iterative(iterative(pattern), found, 1.0, delta, RIDGE),
            }
            for name, fit in fits.items():
                curves[name].append(float(methods.errors(data, fit).mean()))
        result[pattern] = curves
        draw(
            f"covariance_tasks_{pattern}",
            f"Figure 7: error and number of tasks, {pattern}, epsilon 1, sound noise",
            "number of tasks",
            counts,
            curves,
        )
    return result | {"counts": counts}


def school_rows(fraction: float, seeds: range) -> Repetitions:
    """School with a share of each school's rows for training; a constant is appended and rows get length 1."""
    parts = []
    for seed in seeds:
        data = school(test_fraction=1 - fraction, seed=seed)
        found = []
        for part in (data.train, data.test):
            x = np.concatenate([part.x, np.ones((*part.x.shape[:2], 1), np.float32)], axis=2)
            mask = np.arange(x.shape[1])[None, :] < part.sizes[:, None]
            x = x / np.linalg.norm(x, axis=2, keepdims=True) * mask[:, :, None]
            found += [x.astype(np.float32), part.y * mask, mask]
        parts.append(found)
    return Repetitions(*(jnp.asarray(np.stack([part[i] for part in parts])) for i in range(6)))


def school_part(repetitions: int) -> dict[str, Any]:
    """School with 30 % and 10 % training rows: nMSE against epsilon for all methods."""
    result: dict[str, Any] = {"epsilons": EPSILONS, "repetitions": repetitions}
    for fraction in (0.3, 0.1):
        data = school_rows(fraction, range(repetitions))
        trial = school_rows(fraction, range(SEARCH_SEED, SEARCH_SEED + 2))
        ridge = methods.search(trial, methods.fit_alone, (0.1, 0.3, 1.0, 3.0))
        sizes = np.asarray(data.mask[0].sum(axis=1))
        base = Iterative(step_size=1.0, ridge=ridge / float(sizes.mean()))

        def setting(epsilon: float, trial: Repetitions = trial, base: Iterative = base, ridge: float = ridge) -> Any:
            return methods.search_iterative(trial, base, epsilon, delta_for(139), ridge, (1, 3))

        sides = int(sizes.min()), int(sizes.max())
        curves = compare(data, trial, "low_rank", ridge, *sides, lambda _, base=base: base, setting)
        result[f"{fraction:.0%}"] = {"ridge": ridge, "curves": curves}
        draw(
            f"covariance_school_{fraction * 100:.0f}",
            f"School, {fraction:.0%} of the rows for training",
            "epsilon",
            EPSILONS,
            curves,
        )
    return result


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
    from kinfolk.verify.attack import attack as play
    from kinfolk.verify.covariance_attack import problems

    confidence = 1 - 1e-4 / len(problems())
    return {
        f"{p.name}, epsilon {p.claim:.3g}": play(p, runs=100_000, confidence=confidence).record() for p in problems()
    }


def support_picture(repetitions: int) -> dict[str, Any]:
    """The picture of why the published noise is not private."""
    del repetitions
    (PICTURES / "covariance_support.svg").write_text(picture.supports())
    return {}


def draw(name: str, title: str, across: str, x: Any, curves: dict[str, list[float]]) -> None:
    """Curves on logarithmic axes; what is far off is cut at twenty times the median."""
    most = 20 * float(np.median([value for curve in curves.values() for value in curve]))
    series = {key: [(a, min(b, most)) for a, b in zip(x, curve, strict=True)] for key, curve in curves.items()}
    svg = line_chart.lines(title, series, across, "test error / variance", log_across=True, log_up=True)
    (PICTURES / f"{name}.svg").write_text(svg)


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "settings": settings,
    "table": table,
    "nearly": nearly,
    "harm": harm,
    "schedule": schedule,
    "privacy": privacy,
    "tasks": tasks,
    "school": school_part,
    "classes": classes,
    "cost": cost,
    "attack": attack,
    "picture": support_picture,
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
