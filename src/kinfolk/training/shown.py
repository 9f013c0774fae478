"""What may be shown of an evaluation: metrics with intervals, and the noisy table that they were computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np

from kinfolk.metrics import misses, scores, survival
from kinfolk.metrics.intervals import Measured, measured
from kinfolk.metrics.noisy_table import NoisyTable
from kinfolk.metrics.scores import Measure
from kinfolk.privacy.tables import GAIN_SHARE, MOST_LABELS
from kinfolk.training import run_directory, run_files
from kinfolk.training.evaluation_units import Question
from kinfolk.training.run_directory import Run

FEW = 3.0
"""A group that counts less than this many standard deviations of its noise is too small to tell anything of."""


class Metric(TypedDict):
    """A metric that may be published."""

    name: str
    """What it is called."""
    unit: str
    """What it is measured in; empty: a share, or a number without unit."""
    value: float
    """The best estimate."""
    low: float
    """Where its 95 % interval begins."""
    high: float
    """Where it ends."""


class Group(TypedDict):
    """The metrics of one group, and how they differ from everybody's."""

    group: str
    """The column and its value."""
    about: float
    """How many units it has, by the noisy table."""
    metrics: list[Metric]
    """Of the group; none where it has too few units to tell."""
    differences: list[Metric]
    """The group's minus everybody's."""


class Pair(TypedDict):
    """A cell of the confusion table, as a share of everybody."""

    outcome: str
    """What came out."""
    predicted: str
    """What the more likely label was."""
    share: float
    """The best estimate."""
    low: float
    """Where its 95 % interval begins."""
    high: float
    """Where it ends."""


class Shown(TypedDict):
    """One evaluation."""

    version: int
    """Of this format."""
    epsilon: float
    """What it cost each unit."""
    counted: int
    """How many units."""
    unit: str
    """What was counted, in words."""
    parties: int
    """How many tables, each with noise of its own, were added up."""
    noise_scale: float
    """Of the noise in each cell of each party's table."""
    noise: NotRequired[str]
    """Its law: `normal`, where clients add it in shares, and `noise_scale` is the standard deviation; else Laplace."""
    simulated: bool
    """Whether the noise can be repeated from a seed."""
    outcome: str
    """A key of `outcomes.OUTCOMES`."""
    metrics: list[Metric]
    """Of everybody."""
    groups: list[Group]
    """Of each group, where a column was named."""
    confusion: NotRequired[list[Pair]]
    """What came out against what was predicted, of labels."""
    table: list[float]
    """The noisy counts, cell by cell."""
    shape: list[int]
    """Of the table: groups first."""
    edges: list[float]
    """Where bins of scores end, or nodes of misses lie."""
    times: NotRequired[list[float]]
    """Where intervals of a time until an event end."""
    program: str
    """Hash of the program that the flow check passed."""
    without: NotRequired[list[str]]
    """Silos of a federation that keep rows for it and did not answer."""
    ledger_run: NotRequired[str]
    """What the ledger calls it."""


def shown_before(where: Run) -> list[Shown]:
    """The evaluations that a run has had."""
    path = where.public / run_directory.EVALUATIONS
    return run_files.read_json(path, list[Shown]) if path.exists() else []


@dataclass(frozen=True)
class Release:
    """How a table was released."""

    epsilon: float
    scale: float
    """Of the noise in each cell of each party's table."""
    program: str
    """Hash of the program that the flow check passed."""
    simulated: bool
    law: str = "laplace"
    """Of the noise: `laplace` or `normal`."""


def metrics_of(asked: Question, cells: np.ndarray, how: Release) -> Shown:
    """All that is said about a noisy table. `cells`: the table, and behind it what was counted about gains."""
    board = asked.board
    size = int(np.prod(board.shape))
    scale, counted = how.scale, int(asked.mask.sum())
    share = 1.0 if board.shared is None else 1 - GAIN_SHARE
    edges = np.asarray(board.edges, float)
    table = NoisyTable(cells[:size].reshape(board.shape) / share, counted, scale / share, asked.parties, how.law)
    own = measures(asked, edges)
    everybody = survival.falling(measured(table, {name: _sum_of(one) for name, one in own.items()}))
    metrics = [_metric(one, asked) for one in everybody]
    if board.shared is not None:
        metrics.append(_metric(gain(cells[size:], counted, scale, how.law), asked))
    found: Shown = {
        "version": 1,
        "epsilon": how.epsilon,
        "counted": counted,
        "unit": asked.unit,
        "parties": asked.parties,
        "noise_scale": scale,
        "noise": how.law,
        "simulated": how.simulated,
        "outcome": board.model.outcome,
        "metrics": metrics,
        "groups": [_group(asked, table, own, place) for place in range(len(asked.groups))],
        "table": [round(float(cell), 4) for cell in cells],
        "shape": list(board.shape),
        "edges": [round(float(edge), 6) for edge in edges],
        "program": how.program,
    }
    if pairs := confusion(asked, table, edges):
        found["confusion"] = pairs
    return found if board.model.outcome != "survival" else {**found, "times": list(asked.target.edges)}


def confusion(asked: Question, table: NoisyTable, edges: np.ndarray) -> list[Pair]:
    """What came out against what was predicted; nothing for numbers, and for many labels.

    `table`: with an axis of groups in front. `edges`: of score bins.
    """
    outcome, labels = asked.board.model.outcome, asked.target.labels or ("no", "yes")
    if outcome not in ("binary", "classes") or asked.board.labels > MOST_LABELS:
        return []
    own = scores.measures_of_pairs(edges) if outcome == "binary" else misses.measures_of_pairs(len(labels))
    names = [(came, said) for came in labels for said in labels]
    found = measured(
        table, {f"came out {a}, predicted {b}": _sum_of(one) for (a, b), one in zip(names, own, strict=True)}
    )
    return [
        {"outcome": came, "predicted": said, "share": one.value, "low": one.low, "high": one.high}
        for (came, said), one in zip(names, found, strict=True)
    ]


def measures(asked: Question, edges: np.ndarray) -> dict[str, Measure]:
    """The metrics of one group's table."""
    outcome = asked.board.model.outcome
    if outcome in ("number", "count"):
        return misses.measures_of_numbers(edges, asked.target.factor)
    if outcome == "binary":
        return scores.measures(edges)
    if outcome == "survival":
        return survival.measures(edges, asked.target.edges, asked.target.unit)
    if outcome == "labels":
        return misses.measures_of_labels(("no", "yes"))
    if asked.board.labels > MOST_LABELS:
        return misses.measures_of_right()
    found = misses.measures_of_labels(asked.target.labels)
    return {LEVELS_OFF: levels_off, **found} if outcome == "ordinal" else found


LEVELS_OFF = "levels that the guess is off, on average"


def levels_off(tables: np.ndarray, _: object) -> np.ndarray:
    """How far predictions are from outcomes, in levels: of confusion tables (outcome, prediction)."""
    places = np.arange(tables.shape[1])
    away = np.abs(places[:, None] - places[None, :])
    return (tables * away).sum(axis=(1, 2)) / np.maximum(tables.sum(axis=(1, 2)), 1e-9)


def gain(cells: np.ndarray, counted: int, scale: float, law: str) -> Measured:
    """The share of clients whose own model has less error on their rows than the shared one; ties count half."""
    table = NoisyTable(cells / GAIN_SHARE, counted, scale / GAIN_SHARE, law=law)

    def better(tables: np.ndarray, _: object) -> np.ndarray:
        return (tables[:, 0] + tables[:, 1] / 2) / np.maximum(tables.sum(axis=1), 1e-9)

    return measured(table, {"share of clients that gain by a model of their own": better})[0]


def _sum_of(measure: Measure) -> Measure:
    return lambda tables, guess: measure(tables.sum(axis=1), guess)


def _one_of(measure: Measure, place: int) -> Measure:
    return lambda tables, guess: measure(tables[:, place], guess)


def _apart(measure: Measure, place: int) -> Measure:
    return lambda tables, guess: measure(tables[:, place], guess) - measure(tables.sum(axis=1), guess)


def _group(asked: Question, table: NoisyTable, own: Mapping[str, Measure], place: int) -> Group:
    about, noise = table.part(place)
    if about < FEW * noise:
        return {"group": asked.groups[place], "about": round(about, 1), "metrics": [], "differences": []}
    first = {name: own[name] for name in list(own)[:2]}
    found = measured(table, {name: _one_of(one, place) for name, one in first.items()})
    apart = measured(table, {f"{name}, against everybody": _apart(one, place) for name, one in first.items()})
    return {
        "group": asked.groups[place],
        "about": round(about, 1),
        "metrics": [_metric(one, asked) for one in found],
        "differences": [_metric(one, asked) for one in apart],
    }


def _metric(found: Measured, asked: Question) -> Metric:
    unit = (
        asked.target.words
        if asked.board.model.outcome in ("number", "count") and not found.name.startswith("share")
        else ""
    )
    return {"name": found.name, "unit": unit, "value": found.value, "low": found.low, "high": found.high}
