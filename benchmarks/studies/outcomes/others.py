"""Counts, ordered levels and several labels, each on one data set beside a plain reference on all rows together."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, special
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import roc_auc_score

from benchmarks.studies.outcomes.visits import CHAPTERS, visits
from kinfolk import Federation, example_level, from_rows, models, none, recommend, sweep
from kinfolk.outcomes import OUTCOMES, median_level, rate

DRAWS = 5
ROUNDS = 60
COUNT_CLIP = 3.0
"""As long as a row is, about: what a count misses by is about 1 in the models' unit."""
EPSILONS = (3.0, 1.0)
DAYS = 14
"""The most that the set has by its description."""
LEVELS = 5
Metric = Callable[[np.ndarray, np.ndarray], dict[str, float]]


@dataclass(frozen=True)
class Case:
    """A data set, its metrics, and a reference."""

    what: str
    data: Federation
    metric: Metric
    """Of outputs and targets of the test rows."""
    reference: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    """From training features and targets, and test features, to outputs."""
    name: str
    """Of the reference."""
    clip: float = 1.0


def rows_of(data: Federation, part: str) -> tuple[np.ndarray, np.ndarray]:
    """All clients' rows."""
    own = getattr(data, part)
    mask = np.arange(own.y.shape[1])[None] < own.sizes[:, None]
    return np.asarray(own.x)[mask], np.asarray(own.y)[mask]


def counts() -> Case:
    """Days in hospital, by medical specialties."""
    found = visits()
    y = (found.days / np.sqrt(DAYS)).astype(np.float32)
    data = from_rows(found.x, y, found.specialty, outcome="count", name="visits", scaling="bounds")

    def metric(outputs: np.ndarray, y: np.ndarray) -> dict[str, float]:
        expected, days = np.sqrt(DAYS) * np.asarray(rate(jnp.asarray(outputs))), np.sqrt(DAYS) * y
        deviance = 2 * (special.xlogy(days, days / expected) - days + expected)
        return {"MAE (days)": float(np.abs(days - expected).mean()), "Poisson deviance": float(deviance.mean())}

    def reference(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.log(PoissonRegressor(alpha=1e-4, max_iter=1000).fit(x, y).predict(new))

    return Case("count: days in hospital", data, metric, reference, "scikit-learn's PoissonRegressor", COUNT_CLIP)


def levels() -> Case:
    """How severe heart disease is, 0 to 4, in four hospitals."""
    with np.load(Path(os.environ["KINFOLK_DATA"]) / "heart_disease.npz") as file:
        raw, y, client = file["x"].astype(float), file["y"].astype(np.int32), file["client_name"][file["client"]]
    bounds = {0: (20, 100), 3: (80, 200), 4: (100, 400), 7: (60, 200), 9: (0, 6)}
    columns = [np.clip(2 * (raw[:, k] - low) / (high - low) - 1, -1, 1) for k, (low, high) in bounds.items()]
    columns += [2 * raw[:, k] - 1 for k in (1, 5, 8)]
    columns += [(raw[:, 2] == kind).astype(float) for kind in (1, 2, 3, 4)]
    x = np.nan_to_num(np.column_stack(columns)).astype(np.float32)
    data = from_rows(x, y, client, outcome="ordinal", classes=LEVELS, name="heart", scaling="bounds")

    def metric(outputs: np.ndarray, y: np.ndarray) -> dict[str, float]:
        guess = np.asarray(jax.vmap(median_level)(jnp.asarray(outputs)))
        return {"levels off": float(np.abs(guess - y).mean()), "wrong": float((guess != y).mean())}

    return Case("ordinal: severity of heart disease", data, metric, cumulative_odds, "cumulative odds by scipy")


def cumulative_odds(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The proportional odds model of textbooks, as hazards of its levels."""

    def below(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        cuts = np.cumsum(np.concatenate([theta[:1], np.exp(theta[1 : LEVELS - 1])]))
        return special.expit(cuts[None] - (x @ theta[LEVELS - 1 :])[:, None])

    def loss(theta: np.ndarray) -> float:
        edges = np.pad(below(theta, x), ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
        chance = np.diff(edges, axis=1)[np.arange(len(y)), y]
        return float(-np.log(np.maximum(chance, 1e-12)).mean() + 1e-4 * np.square(theta[LEVELS - 1 :]).sum())

    theta = optimize.minimize(loss, np.zeros(LEVELS - 1 + x.shape[1]), method="L-BFGS-B").x
    found = below(theta, new)
    before = np.concatenate([np.zeros((len(new), 1)), found[:, :-1]], axis=1)
    hazard = np.clip((found - before) / np.maximum(1 - before, 1e-9), 1e-9, 1 - 1e-9)
    return np.log(hazard / (1 - hazard))


def labels() -> Case:
    """Which of eight chapters of ICD-9 a visit's diagnoses are from."""
    found = visits()
    days = 2 * (found.days[:, None] - 1) / (DAYS - 1) - 1
    x = np.concatenate([found.x, days], axis=1).astype(np.float32)
    data = from_rows(
        x, found.chapters, found.specialty, outcome="labels", classes=len(CHAPTERS), name="visits", scaling="bounds"
    )

    def metric(outputs: np.ndarray, y: np.ndarray) -> dict[str, float]:
        areas = [roc_auc_score(y[:, k], outputs[:, k]) for k in range(y.shape[1])]
        return {"mean AUC": float(np.mean(areas)), "wrong": float(((outputs > 0) != (y > 0)).mean())}

    def reference(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
        fits = [LogisticRegression(max_iter=2000).fit(x, y[:, k]) for k in range(y.shape[1])]
        return np.column_stack([fit.decision_function(new) for fit in fits])

    return Case("labels: chapters of the diagnoses", data, metric, reference, "a LogisticRegression per label")


def measured(case: Case) -> dict[str, Any]:
    """The metrics of a reference, of nothing at all, and of federated averaging at default settings."""
    data = case.data
    (x, y), (new, truth) = rows_of(data, "train"), rows_of(data, "test")
    model = models.generalized_linear(x.shape[1], data.outcome, data.classes)
    width = OUTCOMES[data.outcome].outputs(data.classes)
    result: dict[str, Any] = {
        "reference": {"name": case.name, **_rounded(case.metric(case.reference(x, y, new), truth))}
    }
    for epsilon in (None, *EPSILONS):
        draws = DRAWS if epsilon else 1
        level = none() if epsilon is None else example_level(epsilon, 1e-5, clip=case.clip)
        rounds = ROUNDS if epsilon else 10 * ROUNDS
        experiment = recommend(data, level, seed=0, seeds=draws, method="fedavg", batch_size=0, rounds=rounds)
        experiment = replace(experiment, training=replace(experiment.training, weights="size", tail=0.5))
        figure = sweep(experiment, data=[data] * draws)
        states = figure.rounds(figure.init(range(draws)), 0, experiment.rounds)
        fitted = jax.tree.map(lambda leaf: np.asarray(leaf)[0, :, 0], figure.models(states))
        found = []
        for draw in range(draws):
            params = jax.tree.map(lambda leaf, at=draw: jnp.asarray(leaf[at]), fitted)
            outputs = np.asarray(jax.vmap(lambda one, p=params: model.predict(p, one))(new))
            found.append(case.metric(outputs, truth))
        result["none" if epsilon is None else f"{epsilon:g}"] = _rounded(
            {key: float(np.mean([one[key] for one in found])) for key in found[0]}
        )
    nothing = case.reference(np.zeros_like(x), y, np.zeros_like(new))
    assert nothing.shape == (len(new), width) or width == 1
    return {
        **result,
        "constant": _rounded(case.metric(nothing, truth)),
        "rows": [len(x), len(new)],
        "clients": len(data.ids),
    }


def _rounded(found: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in found.items()}


CASES = (counts, levels, labels)
