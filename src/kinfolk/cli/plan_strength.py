"""`kinfolk plan strength`: the best strength in theory, and what it gains, before anybody touches data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kinfolk import limits

TRIALS = 10
"""For comparison: tuning by repetition with so many trials on average (logarithmic, the cheapest dp_accounting has)."""


def strength(
    *,
    clients: Annotated[int, typer.Option(help="K, how many clients there are.")],
    examples: Annotated[int, typer.Option(help="n, examples of each client.")],
    sigma: Annotated[float, typer.Option(help="Standard deviation of the examples within a client.")],
    tau: Annotated[float, typer.Option(help="Standard deviation of the clients' true means.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget of each client (example level).")],
    delta: Annotated[float | None, typer.Option(help="Default: min(1e-5, n^-1.1).")] = None,
    clip: Annotated[float, typer.Option(help="Largest size of one example.")] = 1.0,
    picture: Annotated[Path | None, typer.Option(help="Write an SVG picture of error against strength here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """The best strength of mean-regularised estimation of a mean, and its gains over training alone and FedAvg.

    `kinfolk plan strength --clients 20 --examples 200 --sigma 0.4 --tau 0.08 --epsilon 0.25`
    """
    from kinfolk.cli.output import console, emit

    values, svg = strength_plan(clients, examples, sigma, tau, epsilon, delta, clip)
    if picture is not None:
        picture.write_text(svg)
    if as_json:
        emit("plan strength", values)
        return
    table = Table("", "", title="The best strength for estimating a mean", show_header=False)
    for key, value in values.items():
        if key != "advice":
            table.add_row(key.replace("_", " "), f"{value:.5g}" if isinstance(value, float) else str(value))
    console.print(table)
    console.print(values["advice"], highlight=False)


def strength_plan(
    clients: int, examples: int, sigma: float, tau: float, epsilon: float, delta: float | None, clip: float
) -> tuple[dict[str, Any], str]:
    """The plan as plain values, and its picture. The noise is calibrated exactly, for one release."""
    from kinfolk.accounting import composition, noise_for_budget
    from kinfolk.report import line_chart
    from kinfolk.theory import tuning
    from kinfolk.theory.mean_estimation import Problem

    given = {"clients": clients, "examples": examples, "sigma": sigma, "tau": tau, "clip": clip}
    given |= {"epsilon": epsilon, "delta": delta}
    for name, value in given.items():
        if value is not None:
            limits.checked(name, value)
    delta = composition.default_delta(examples) if delta is None else delta
    (multiplier,) = noise_for_budget.noise_multipliers([noise_for_budget.Case(epsilon, delta, 1)])
    problem = Problem(clients, examples, sigma, tau, multiplier * clip)
    tuned = Problem(clients, examples, sigma, tau, clip * tuning.noise_for(epsilon, delta, mean=TRIALS, shape=0.0))
    local, averaging = problem.error(0.0), problem.error(math.inf)
    values: dict[str, Any] = {
        "clients": clients,
        "examples": examples,
        "sigma": sigma,
        "tau": tau,
        "epsilon": epsilon,
        "delta": delta,
        "noise_multiplier": multiplier,
        "variance_of_an_estimate": problem.variance,
        "best_strength": problem.best_strength if tau else "infinity",
        "best_error": problem.best_error,
        "error_of_training_alone": local,
        "error_of_averaging": averaging,
        "gain_over_training_alone": problem.gain_over_local,
        "gain_over_averaging": problem.gain_over_averaging,
        "cost_of_privacy_at_best": problem.cost_of_privacy(problem.best_strength),
        f"best_error_if_tuned_over_{TRIALS}_trials": tuned.best_error,
        "advice": _advice(problem.best_error, local, averaging, tuned.best_error),
    }
    centre = min(max(problem.best_strength, 1e-3), 1e3)
    span = [centre * 10 ** (k / 20) for k in range(-60, 61)]
    series = {
        "mean-regularised": [(s, problem.error(s)) for s in span],
        "training alone": [(s, local) for s in (span[0], span[-1])],
        "federated averaging": [(s, averaging) for s in (span[0], span[-1])],
        f"best after tuning over {TRIALS} trials": [(s, tuned.best_error) for s in (span[0], span[-1])],
    }
    title = f"Error against strength: K={clients}, n={examples}, sigma={sigma:g}, tau={tau:g}, epsilon={epsilon:g}"
    marks = {"best": (problem.best_strength, problem.best_error)} if math.isfinite(problem.best_strength) else None
    axes = {"log_across": True, "log_up": True}
    return values, line_chart.lines(title, series, "strength", "mean squared error", marks=marks, **axes)


def _advice(best: float, local: float, averaging: float, tuned: float) -> str:
    """What follows: an endpoint where it is nearly as good, and never tuning where an endpoint beats it."""
    simple, error = min((("training alone", local), ("federated averaging", averaging)), key=lambda item: item[1])
    if error <= 1.02 * best:
        return f"{simple.capitalize()} is within 2 % of the best: no strength to choose."
    tuning = "worse than" if error < tuned else "better than"
    return (
        f"The better endpoint is {simple}, {error / best - 1:.0%} above the best strength; tuning by repetition is "
        f"expected to be {tuning} that endpoint ({tuned / best - 1:.0%} above the best). A strength learned during "
        'training (strength = "auto") costs nothing.'
    )
