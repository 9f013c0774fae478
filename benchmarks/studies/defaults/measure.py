"""What methods lose on the rows kept back: those of a grid, many at a time, and what is recommended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import models, recommend, trees
from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.algorithms.mean_regularized_auto import MeanRegularizedAuto
from kinfolk.data.federation import Federation
from kinfolk.engines import resident
from kinfolk.engines.layout import lay_out, local_steps
from kinfolk.privacy.gates import CHOICE, GRADIENT, UPDATE
from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level
from kinfolk.training.build import as_array, as_sweep
from kinfolk.training.prepare import prepare
from kinfolk.types import Algorithm, Model

BATCH = {"example": None, "client": 32}


@dataclass(frozen=True)
class Point:
    """One point of a grid: a method with its numbers, and its rounds."""

    algorithm: MeanRegularizedAuto | MeanRegularized
    rounds: int


def level_of(name: str, epsilon: float) -> PrivacyLevel:
    """The level with its default delta and clip."""
    return example_level(epsilon) if name == "example" else client_level(epsilon)


def model_of(data: Federation) -> Model:
    """The linear model for the outcome."""
    features = data.shape[0]
    if data.outcome == "classes":
        return models.softmax(features, data.classes)
    return models.logistic(features) if data.outcome == "binary" else models.linear(features)


def usual_step(data: Federation) -> float:
    """One over the curvature of features that are spread evenly, at most one half."""
    inputs = 1 + data.shape[0] / 3
    return min(0.5, 1 / (inputs if data.outcome == "number" else inputs / 4))


def keys_of(seeds: Sequence[int]) -> jax.Array:
    """The streams of randomness of these seeds."""
    return jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))


def clients_mean(losses: Any) -> np.ndarray:
    """The mean over clients that have test rows; the last axis is that of clients."""
    return np.nanmean(np.asarray(losses, np.float64), axis=-1)


def on_grid(
    data: Sequence[Federation], seeds: Sequence[int], level: str, epsilons: Sequence[float], points: Sequence[Point]
) -> np.ndarray:
    """Losses of shape (2, epsilons, points, federations): the last models', and those of the average over rounds.

    Points with the same number of rounds run side by side in one program, which all numbers of rounds share as long as
    there are as many points of each. At client level there is no average: both are the same.
    """
    first, batch = data[0], BATCH[level]
    sizes, model = first.train.sizes, model_of(first)
    clients, tests, widths, most = lay_out(data, batch_size=batch, epochs=1)
    who = Population(first.ids, sizes, batch, trees.size(jax.eval_shape(model.init, jax.random.key(0))))
    plan = resident.Plan(model, level_of(level, 1.0).level, widths, most)
    found = np.zeros((2, len(epsilons), len(points), len(data)))
    for rounds in dict.fromkeys(point.rounds for point in points):
        if level == "example":
            uses = {GRADIENT: local_steps(sizes, batch, 1) * rounds, CHOICE: np.zeros(len(sizes), int)}
        else:
            uses = {UPDATE: np.array([rounds])}
        here = [k for k, point in enumerate(points) if point.rounds == rounds]
        terms = [terms_for(level_of(level, epsilon), who, uses) for epsilon in epsilons for _ in here]
        algorithms = [points[k].algorithm for _ in epsilons for k in here]
        algorithm, swept = _stacked(algorithms), _stacked(terms)
        states = resident.start_all(plan, algorithm, keys_of(seeds))
        states = resident.run_rounds(plan, algorithm, swept, clients, states, jnp.int32(0), jnp.int32(rounds))
        shape = (len(epsilons), len(here), len(data))
        averaged = clients_mean(resident.errors(plan, algorithm, tests, states)["loss"]).reshape(shape)
        last = averaged
        if level == "example":
            ended = replace(states, models=states.personal.track.model)
            last = clients_mean(resident.errors(plan, algorithm, tests, ended)["loss"]).reshape(shape)
        found[:, :, here] = np.stack([last, averaged])
    return found


def _stacked(values: Sequence[Any]) -> Any:
    """Trees of numbers as one with a leading axis of points."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, jnp.float32) for leaf in leaves]), *values)


def as_recommended(
    data: Sequence[Federation], seeds: Sequence[int], level: PrivacyLevel, **given: Any
) -> tuple[np.ndarray, str]:
    """Losses of every federation with what is recommended for them, and what that is, in a few words.

    `given`: what the user decides, as `recommend` has it.
    """
    experiment = recommend(data[0], level, seed=0, seeds=len(data), **given)
    job = prepare(experiment, list(data))
    algorithm, terms = as_sweep(job.algorithms[0]), as_sweep(job.terms)
    states = resident.start_all(job.plan, algorithm, keys_of(seeds))
    begin, end = jnp.int32(0), jnp.int32(experiment.rounds)
    states = resident.run_rounds(job.plan, algorithm, terms, job.clients, states, begin, end)
    if job.afterwards is not None:
        states = resident.personalise(job.plan, as_array(job.afterwards), algorithm, terms, job.clients, states)
    found = clients_mean(resident.errors(job.plan, algorithm, job.tests, states)["loss"])[0]
    (phase,) = experiment.phases
    after = f" + {experiment.afterwards.method}" if experiment.afterwards else ""
    return found, f"{phase.method} {phase.options.get('strength', '')} x{phase.rounds}{after}"


def of_constants(data: Sequence[Federation], level: PrivacyLevel) -> np.ndarray:
    """Losses of a constant: the better, per federation, of a client's own and everybody's, at the whole budget.

    At client level a client's own is free. Numbers: the mean of targets within -1 and 1. Classes: smoothed counts.
    """
    return np.array([min(_constant(one, level, own, k) for own in (True, False)) for k, one in enumerate(data)])


def _constant(data: Federation, level: PrivacyLevel, own: bool, seed: int) -> float:
    generator = np.random.default_rng([seed, 5])
    sizes = data.train.sizes.astype(float)
    numbers, classes = data.outcome == "number", max(2, data.classes)
    sums = np.stack(
        [
            np.array([np.clip(y[: int(n)], -1, 1).sum()]) if numbers else np.bincount(y[: int(n)], minlength=classes)
            for y, n in zip(np.asarray(data.train.y), sizes, strict=True)
        ]
    ).astype(float)
    by_example = level.level.clients_pay
    units = sizes if by_example else np.array([len(sizes)])
    deltas = np.minimum(1e-5, units**-1.1)
    noise = np.sqrt(2 * np.log(1.25 / deltas)) / float(level.epsilon or 1.0)
    if by_example:
        sums = sums + noise[:, None] * generator.normal(size=sums.shape)
    if not own:
        share = sums / sizes[:, None]
        bound = 0.0 if by_example else noise[0] / len(sizes)
        sums = sizes[:, None] * (share.mean(axis=0) + bound * generator.normal(size=sums.shape[1]))
    losses = []
    for y, n, total, size in zip(np.asarray(data.test.y), data.test.sizes, sums, sizes, strict=True):
        if numbers:
            losses.append(np.square(y[:n] - total[0] / size).mean() / 2)
        else:
            share = (np.maximum(total, 0) + 1) / (np.maximum(total, 0) + 1).sum()
            losses.append(-np.log(share[y[:n]]).mean())
    return float(np.nanmean(losses))


def numbers_of(algorithm: Algorithm) -> dict[str, Any]:
    """A method's numbers, for the results."""
    return {name: value for name, value in vars(algorithm).items() if isinstance(value, int | float)}
