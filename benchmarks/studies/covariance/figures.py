"""The study's figures: curves of all methods, written to docs/pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.covariance import methods, picture
from benchmarks.studies.covariance.data import (
    EPSILONS,
    PATTERNS,
    RESULTS,
    RIDGE,
    SEARCH_SEED,
    delta_for,
    found_settings,
    iterative,
    school_rows,
    synthetic,
)
from benchmarks.studies.covariance.methods import Repetitions
from benchmarks.studies.covariance.tasks_matrix import USES, ByTasks
from kinfolk.report import line_chart
from kinfolk.verify.covariance_iterative import Iterative

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"


Errors = dict[str, list[np.ndarray]]
"""By method, for each of EPSILONS: of every repetition."""


def means(found: Errors) -> dict[str, list[float]]:
    """Of the repetitions."""
    return {name: [float(values.mean()) for values in own] for name, own in found.items()}


def each(found: Errors) -> dict[str, list[list[float]]]:
    """As JSON holds them."""
    return {name: [values.round(6).tolist() for values in own] for name, own in found.items()}


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

        found = compare(
            data,
            trial,
            pattern,
            RIDGE,
            30,
            base=lambda ridge, pattern=pattern: iterative(pattern),
            setting=setting,
        )
        result[pattern] = curves = means(found)
        draw_privacy(pattern, curves)
    return result


def draw_privacy(pattern: str, curves: dict[str, list[float]]) -> None:
    title = f"Figure 6: error and epsilon, {pattern.replace('_', '-')}, sound noise"
    draw(f"covariance_privacy_{pattern}", title, "epsilon", EPSILONS, curves)


def draw_school(share: str, curves: dict[str, list[float]]) -> None:
    title = f"School, {share} of the rows for training"
    draw(f"covariance_school_{share[:-1]}", title, "epsilon", EPSILONS, curves)


def compare(
    data: Repetitions,
    trial: Repetitions,
    pattern: str,
    ridge: float,
    rows: int,
    *,
    base: Callable[[float], Iterative],
    setting: Callable[[float], dict[str, float]],
    centred: bool = False,
) -> Errors:
    """Errors of all methods; those without privacy are flat. `centred`: example-level methods get `mean_target`."""
    delta, found = delta_for(data.clients), {}

    def flat(name: str, fit: methods.Fit) -> None:
        found[name] = [methods.errors(data, fit)] * len(EPSILONS)

    flat("single-task l2", methods.fit_alone(ridge))
    flat("single-task l1", methods.fit_lasso(methods.search(trial, methods.fit_lasso, (0.01, 0.03, 0.1))))
    shared = methods.fit_trace if pattern == "low_rank" else methods.fit_groups
    flat("non-private proximal", shared(methods.search(trial.only(2), shared, (0.3, 1.0, 3.0))))
    mean = mean_target(trial) if centred else 0.0
    found |= example_level(data.less(mean), trial.only(2).less(mean), rows)
    private: dict[str, Callable[[float], methods.Fit]] = {
        "one-shot": lambda e: methods.fit_one_shot(e, delta, ridge, pattern)
    }
    if pattern == "group_sparse":
        private["one-shot, Laplace"] = lambda e: methods.fit_one_shot(e, delta, ridge, pattern, True)
    for name, make in private.items():
        found[name] = [methods.errors(data, make(epsilon)) for epsilon in EPSILONS]
    found["iterative"] = []
    for epsilon in EPSILONS:
        fit = methods.fit_iterative(base(ridge), setting(epsilon), epsilon, delta, ridge)
        found["iterative"].append(methods.errors(data, fit))
    return found


def mean_target(data: Repetitions) -> float:
    """Of all training rows, as if everybody knew it: so much is given to the example-level methods."""
    return float(data.y.sum()) / int(data.mask.sum())


def example_level(data: Repetitions, trial: Repetitions, rows: int) -> Errors:
    """Errors of the two example-level methods, protecting a whole client of at most `rows` examples.

    All tuned on the trial; task relations without privacy beside them. Strong penalties make these methods predict 0,
    so targets should be less their mean.
    """
    delta = delta_for(data.clients)
    free = methods.errors(data, methods.shared_relationship(trial))
    found = {"MTRL (non-private)": [free] * len(EPSILONS)}
    for name, make in (("DP-MTRL", methods.private_relationship), ("DP-AGGR", methods.private_averaged)):
        fits = [make(trial, epsilon, delta, rows) for epsilon in EPSILONS]
        found[f"{name}, group privacy"] = [methods.errors(data, fit) for fit in fits]
    return found


def examples_again(repetitions: int) -> dict[str, Any]:
    """Only the example-level methods of figure 6 and of School, put into the results that are there."""
    for part in ("privacy", "school"):
        path = RESULTS / f"{part}.json"
        result = json.loads(path.read_text())
        for name in PATTERNS if part == "privacy" else ("30%", "10%"):
            if part == "privacy":
                data, trial, rows = synthetic(name, repetitions), synthetic(name, 2, SEARCH_SEED), 30
                curves, draw_it, kept = result[name], draw_privacy, {}
            else:
                share = int(name[:-1]) / 100
                seeds = range(repetitions), range(SEARCH_SEED, SEARCH_SEED + 2)
                data, trial = (school_rows(share, chosen) for chosen in seeds)
                data, trial = (one.less(mean_target(trial)) for one in (data, trial))
                rows = int(np.asarray(data.mask[0].sum(axis=1)).max())
                curves, draw_it, kept = result[name]["curves"], draw_school, result[name]["each"]
            again = example_level(data, trial, rows)
            curves |= means(again)
            kept |= each(again)
            draw_it(name, curves)
        path.write_text(json.dumps(result | {"repetitions of example-level methods": repetitions}, indent=1) + "\n")
    return {}


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


def tasks_matrix(repetitions: int) -> dict[str, Any]:
    """`W^T W` in place of `W W^T`: error against epsilon, low-rank design; settings searched on other seeds."""
    epsilons = (0.1, 1.0, 10.0)
    data, trial = synthetic("low_rank", repetitions, 1500), synthetic("low_rank", 1, SEARCH_SEED)
    delta, base = delta_for(data.clients), iterative("low_rank")
    alone = float(methods.errors(data, methods.fit_alone(RIDGE)).mean())
    curves: dict[str, list[float]] = {"single-task l2": [alone] * len(epsilons), "features' matrix": []}
    for epsilon in epsilons:
        fit = methods.fit_iterative(base, found_settings("low_rank", "gaussian", epsilon), epsilon, delta, RIDGE)
        curves["features' matrix"].append(float(methods.errors(data, fit).mean()))
    for use in USES:
        own = ByTasks(step_size=base.step_size, ridge=base.ridge, use=use)
        name = f"tasks' matrix, {use}" + (f" ({own.label})" if own.label else "")
        fits = [methods.search_by_tasks(trial, own, epsilon, delta, RIDGE) for epsilon in epsilons]
        curves[name] = [float(methods.errors(data, fit).mean()) for fit in fits]
    draw(
        "covariance_tasks_matrix",
        "Features' matrix and tasks' matrix, low-rank, sound noise",
        "epsilon",
        epsilons,
        curves,
    )
    return {"epsilons": epsilons, "repetitions": repetitions, "delta": delta, "curves": curves}


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

        most = int(sizes.max())
        found = compare(
            data, trial, "low_rank", ridge, most, base=lambda _, base=base: base, setting=setting, centred=True
        )
        curves = means(found)
        result[f"{fraction:.0%}"] = {"ridge": ridge, "curves": curves, "each": each(found)}
        draw_school(f"{fraction:.0%}", curves)
    return result


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
