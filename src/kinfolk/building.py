"""From the words of an experiment to models, algorithms and arrays. Needs jax and numpy only."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import models
from kinfolk.afterwards import registry
from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.registry import resolve
from kinfolk.experiment import ConfigError, Experiment, ModelChoice, Phase
from kinfolk.types import Afterwards, Algorithm, Model


def build_model(choice: ModelChoice, shape: tuple[int, ...], outcome: str, classes: int) -> Model:
    """The model of that name, for examples of this shape and outcomes as the data has them."""
    features = math.prod(shape)
    wanted = {"linear": "number", "logistic": "binary"}.get(choice.name, "classes")
    if choice.name in ("linear", "logistic", "softmax", "cnn") and outcome != wanted:
        raise ConfigError(f"model={choice.name!r} predicts {wanted}, but the data holds {outcome}")
    if choice.name == "linear":
        return models.linear(features)
    if choice.name == "logistic":
        return models.logistic(features)
    if choice.name == "softmax":
        return models.softmax(features, classes)
    if choice.name == "mlp":
        return models.mlp(features, max(1, classes), choice.hidden, outcome)
    if choice.name == "cnn":
        if len(shape) != 3:
            raise ConfigError(f"model='cnn' needs images (height, width, channels), and an example has shape {shape}")
        return models.cnn(shape[0], classes, choice.hidden, inputs=shape[2])
    raise ConfigError(f"model={choice.name!r} is not one of linear, logistic, softmax, mlp, cnn")


def build_algorithm(phase: Phase, level: str) -> Algorithm:
    """The phase's algorithm, if it may be used at this level."""
    if phase.method not in REGISTRY:
        raise ConfigError(f"method={phase.method!r} is not one of {', '.join(REGISTRY)}")
    try:
        method, options = resolve(phase.method, phase.options)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    entry = REGISTRY[method]
    if level not in entry.levels:
        raise ConfigError(f"{method} cannot run at level={level!r}; it can at {', '.join(entry.levels)}")
    try:
        return entry.build(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{phase.method}: {error}") from None


def build_afterwards(experiment: Experiment) -> Afterwards | None:
    """What clients do alone after training, if they may."""
    chosen = experiment.afterwards
    if chosen is None:
        return None
    if experiment.privacy.level == "example":
        raise ConfigError(
            f"afterwards={chosen.method!r} looks at raw data after training: it is free at level='client' and refused "
            "at level='example', where every look is paid for (use a second phase instead)"
        )
    try:
        return registry.build(chosen.method, chosen.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"afterwards: {error}") from None


def as_array(tree: Any) -> Any:
    """Leaves as float32 arrays."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def as_sweep(tree: Any, points: int = 1) -> Any:
    """Leaves as float32 arrays with a leading sweep axis, for the engine."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf, jnp.float32), (points, *np.shape(leaf))), tree)
