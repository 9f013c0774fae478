"""What models are worth on test rows, for the person at the keyboard: by name, in the target's own unit, and beside
a constant of the client's own and the shared model. Private, all of it; `published` has what is not.

>>> numbers = Yardstick("mae", "MAE", "points", 69.0)
>>> numbers.words, told(numbers, 4.234)
('MAE (points)', 'MAE 4.23 points')
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import rankdata

from kinfolk.data.client_data import Data, FunctionData
from kinfolk.data.federation import Federation
from kinfolk.data.target import Target
from kinfolk.metrics.survival import concordance
from kinfolk.outcomes import OUTCOMES, level_course, log_odds_of_event, rate
from kinfolk.training import run_files
from kinfolk.training.run_directory import Run
from kinfolk.types import Model, Params, Tree
from kinfolk.units import Several

FILE = "scorecard.json"
"""In a run's private part."""
MOST_CLIENTS = 1024
"""Of clients whose rows a function makes so many, spread evenly, are asked for their constant."""
TOGETHER = 2**22
"""Numbers of rows that are predicted together."""
CONSTANTS = {
    "number": "own mean",
    "binary": "own majority",
    "classes": "own majority",
    "survival": "own Kaplan-Meier curve",
    "count": "own mean",
    "ordinal": "own median level",
    "labels": "own majority for each label",
}


@dataclass(frozen=True)
class Yardstick:
    """A metric of one client, by the name that people know."""

    key: str
    """What it is called among measured numbers."""
    name: str
    """What people call it."""
    unit: str = ""
    """What it is measured in; empty: a share."""
    factor: float = 1.0
    """What turns a measured number into this unit."""
    less_is_better: bool = True

    @property
    def words(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


class Score(TypedDict):
    """One metric of a run: the mean client's, and what it has to be compared with. None: not measured."""

    metric: str
    """Its name."""
    unit: str
    """What it is measured in; empty: a share."""
    less_is_better: bool
    value: float
    """Of clients' own models."""
    worst_tenth: float
    """The mean of the worst tenth of clients."""
    constant: float | None
    """Of the client's own mean, or of its most frequent label."""
    shared: float | None
    """Of the shared model, where there is one."""


class Scorecard(TypedDict):
    """What was measured at the end of a run; the first metric is the one that it is judged by."""

    version: int
    constant_is: str
    """What the constant predicts."""
    clients: int
    """How many have test rows."""
    worse_than_constant: int
    """How many of them would be better off with the constant."""
    scores: list[Score]


Numbers = Mapping[str, np.ndarray]
"""Metrics by their keys, axes (seeds, clients); NaN where nothing was measured."""


def yardsticks(outcome: str, target: Target | None) -> tuple[Yardstick, ...]:
    """The metrics of an outcome, the one that runs are judged by first.

    `outcome`: what is predicted. `target`: what it is called and measured in, where that is known.
    """
    known = target or Target()
    if outcome in ("number", "count"):
        return (Yardstick("mae", "MAE", known.words, known.factor),)
    if outcome == "binary":
        return Yardstick("error", "share of wrong labels"), Yardstick("auc", "AUC", less_is_better=False)
    if outcome == "survival":
        return Yardstick("error", OUTCOMES[outcome].measured), Yardstick("c_index", "C-index", less_is_better=False)
    return (Yardstick("error", OUTCOMES[outcome].measured),)


def scored(outcome: str, outputs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """One client's metrics, as models see the target.

    `outcome`: what is predicted. `outputs`: of a model, one per row. `y`: what came out.
    """
    if outcome == "number":
        return {"mae": float(np.abs(outputs - y).mean())}
    if outcome == "count":
        return {"mae": float(np.abs(np.asarray(rate(jnp.asarray(outputs))) - y).mean())}
    each = jax.vmap(OUTCOMES[outcome].error)(jnp.asarray(outputs), jnp.asarray(y))
    found = {"error": float(np.asarray(each, float).mean())}
    if outcome == "binary":
        return {**found, "auc": auc(outputs, y > 0)}
    if outcome == "survival":
        scores = np.asarray(jax.vmap(log_odds_of_event)(jnp.asarray(outputs)))
        return {**found, "c_index": concordance(scores, y // 2, y % 2 == 1)}
    return found


def auc(outputs: np.ndarray, yes: np.ndarray) -> float:
    """The chance that a row with the outcome has the higher score than one without; NaN where all are alike."""
    count = int(yes.sum())
    if not 0 < count < len(yes):
        return math.nan
    return float((rankdata(outputs)[yes].sum() - count * (count + 1) / 2) / (count * (len(yes) - count)))


def constants(outcome: str, data: Federation) -> dict[str, np.ndarray]:
    """What each client's own constant, from its training rows, is worth on its test rows; NaN where not measured.

    `outcome`: what is predicted. `data`: whose constants.
    """
    found = {one.key: np.full(len(data.ids), np.nan) for one in yardsticks(outcome, data.target)}
    if outcome not in CONSTANTS:
        return found
    for places in _blocks(data):
        train, test = (_targets(part, places) for part in (data.train, data.test))
        for k, (y, weights), (seen, _) in zip(places.tolist(), train, test, strict=True):
            if not len(seen):
                continue
            if outcome == "number":
                found["mae"][k] = np.abs(seen - np.average(y, weights=weights)).mean()
                continue
            output = constant_output(outcome, y, weights, data.classes)
            for key, value in scored(outcome, np.repeat(output[None], len(seen), axis=0), seen).items():
                found[key][k] = 0.5 if key in ("auc", "c_index") else value
    return found


def constant_output(outcome: str, y: np.ndarray, weights: np.ndarray, classes: int) -> np.ndarray:
    """What a model that knows no features would put out, had it been fitted to these targets.

    `outcome`: what is predicted. `y`, `weights`: targets, and how much each counts. `classes`: as the data have them.
    """
    if outcome in ("count", "labels", "binary"):
        mean = np.average(y, axis=0, weights=weights)
        return np.log(np.maximum(mean, 1e-6)) - (0 if outcome == "count" else np.log(np.maximum(1 - mean, 1e-6)))
    if outcome == "classes":
        return np.log(np.bincount(y.astype(int), weights, classes) + 1e-6)
    course = y if outcome == "survival" else np.asarray(level_course(jnp.asarray(y), classes - 1))
    counts = np.bincount(course, weights, 2 * OUTCOMES[outcome].outputs(classes) + 1)
    survived, came = np.cumsum(counts[::-1])[::-1][2::2], counts[1::2]
    return np.log(came + 1e-6) - np.log(survived + 1e-6)


def _blocks(data: Federation) -> list[np.ndarray]:
    clients = len(data.ids)
    if isinstance(data.train, FunctionData) and clients > MOST_CLIENTS:
        return [np.unique(np.linspace(0, clients - 1, MOST_CLIENTS).astype(np.int32))]
    return np.array_split(np.arange(clients, dtype=np.int32), max(1, clients // MOST_CLIENTS))


def _targets(data: Data, places: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each client's targets, and how much each counts: rows of a person share one."""
    rows = data.rows(places, max(1, int(data.sizes.max())))
    y, mask = np.asarray(rows.y), np.asarray(rows.mask, float)
    shares = mask[..., None] * np.asarray(rows.x.shares) if isinstance(rows.x, Several) else mask
    return [(own[counts > 0], counts[counts > 0]) for own, counts in zip(y, shares, strict=True)]


def of_models(model: Model, models: Params, data: Federation, *, one: bool = False) -> dict[str, np.ndarray]:
    """The metrics of clients' models on their test rows.

    `model`: its functions. `models`: weights, one row per client; with `one` those of a single model for all. `data`:
    whose test rows.
    """
    sizes = np.asarray(data.test.sizes)
    found = {yard.key: np.full(len(sizes), np.nan) for yard in yardsticks(model.outcome, data.target)}
    rows = data.test.rows(slice(None), max(1, int(sizes.max())))
    mask = np.asarray(rows.mask)
    whose = np.nonzero(mask)[0]
    outputs = predicted(
        model, models, None if one else whose, jax.tree.map(lambda leaf: np.asarray(leaf)[mask], rows.x)
    )
    ends = np.cumsum(sizes)[:-1]
    for k, (own, y) in enumerate(zip(np.split(outputs, ends), np.split(np.asarray(rows.y)[mask], ends), strict=True)):
        for key, value in scored(model.outcome, own, y).items() if len(y) else ():
            found[key][k] = value
    return found


def predicted(model: Model, models: Params, whose: np.ndarray | None, x: Tree) -> np.ndarray:
    """A model's outputs, a bounded number of rows at a time.

    `models`: weights, one row per client where `whose` says which each row needs. `x`: features, one row each.
    """
    models, count = jax.device_get(models), len(jax.tree.leaves(x)[0])
    width = sum(leaf[:1].size for leaf in jax.tree.leaves(x))
    if whose is not None:
        width += sum(leaf[:1].size for leaf in jax.tree.leaves(models))
    block = min(max(64, TOGETHER // width), 1 << max(0, count - 1).bit_length())
    each = jax.jit(jax.vmap(model.predict, in_axes=(None if whose is None else 0, 0)))
    parts = []
    for first in range(0, count, block):
        places = np.arange(first, first + block).clip(max=count - 1)
        own = models if whose is None else jax.tree.map(lambda leaf, at=places: leaf[whose[at]], models)
        parts.append(np.asarray(each(own, jax.tree.map(lambda leaf, at=places: leaf[at], x))))
    return np.concatenate(parts)[:count] if parts else np.zeros(0)


def together(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Metrics of several seeds, with an axis for them in front."""
    return {key: np.stack([part[key] for part in parts]) for key in parts[0]}


def scorecard(
    outcome: str, target: Target | None, own: Numbers, constant: Numbers, shared: Numbers | None = None
) -> Scorecard | None:
    """Everything about a run in its own words; None where no client has test rows.

    `outcome`, `target`: what is predicted. `own`: metrics of clients' own models, `constant`: of their constants,
    `shared`: of the shared model, where there is one.
    """
    scores = []
    for yard in yardsticks(outcome, target):
        if (value := _mean(yard, own)) is None:
            continue
        known_somewhere = ~np.isnan(own[yard.key]).all(axis=0)
        ranked = np.sort(yard.factor * np.nanmean(own[yard.key][:, known_somewhere], axis=0))
        tenth = max(1, len(ranked) // 10)
        worst = ranked[-tenth:] if yard.less_is_better else ranked[:tenth]
        known: Score = {
            "metric": yard.name,
            "unit": yard.unit,
            "less_is_better": yard.less_is_better,
            "value": value,
            "worst_tenth": float(worst.mean()),
            "constant": _mean(yard, constant),
            "shared": None if shared is None else _mean(yard, shared),
        }
        scores.append(known)
    if not scores:
        return None
    first = yardsticks(outcome, target)[0]
    measured, other = own[first.key].mean(axis=0), constant.get(first.key, np.full((1, 1), np.nan)).mean(axis=0)
    return {
        "version": 1,
        "constant_is": CONSTANTS.get(outcome, ""),
        "clients": int((~np.isnan(measured)).sum()),
        "worse_than_constant": int((measured > other).sum()),
        "scores": scores,
    }


def _mean(yard: Yardstick, numbers: Numbers) -> float | None:
    found = numbers.get(yard.key)
    return None if found is None or np.isnan(found).all() else yard.factor * float(np.nanmean(found))


def read(run: Run) -> Scorecard | None:
    """What was measured at the end of a run; None where nothing was, or by an older version."""
    path = run.private / FILE
    return run_files.read_json(path, Scorecard) if path.exists() else None


def told(yard: Yardstick | Score, value: float | None) -> str:
    """A value with the name of its metric and its unit."""
    name, unit = (yard.name, yard.unit) if isinstance(yard, Yardstick) else (yard["metric"], yard["unit"])
    shown = "not measured" if value is None else f"{value:.3g}"
    return f"{name} {shown}" + (f" {unit}" if unit and value is not None else "")


def warning(card: Scorecard | None) -> str:
    """What has to be said of a run that is worse than its constant; empty where it is not."""
    if card is None or card["scores"][0]["constant"] is None:
        return ""
    score = card["scores"][0]
    value, constant = score["value"], score["constant"] or 0.0
    if value <= constant:
        return ""
    return (
        f"worse than a constant: {told(score, value)}, and {told(score, constant)} for each client's "
        f"{card['constant_is']} ({card['worse_than_constant']} of {card['clients']} clients are better off with it). "
        "Use a larger epsilon, fewer features, fewer rounds or a stronger pull, or do not use these models"
    )
