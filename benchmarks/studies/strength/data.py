"""Synthetic federations for the sweep of strengths: how much clients differ, their sizes, and what they predict."""

from __future__ import annotations

import numpy as np

from kinfolk import models
from kinfolk.data.federation import Federation, from_rows
from kinfolk.types import Model

CLIENTS, FEATURES, CLASSES = 20, 8, 4
SIZES = {
    "equal": np.full(CLIENTS, 100),
    "unequal": np.round(np.geomspace(20, 320, CLIENTS)).astype(int),
}
SIZES["unequal with the task"] = SIZES["unequal"]
MODELS: dict[str, Model] = {
    "linear": models.linear(FEATURES),
    "logistic": models.logistic(FEATURES),
    "softmax": models.softmax(FEATURES, CLASSES),
}
OUTCOMES = {"linear": "number", "logistic": "binary", "softmax": "classes"}
NOISE = 0.3
"""Standard deviation of a number around its prediction."""


def federation(model: str, sizes: str, tau: float, seed: int) -> Federation:
    """Clients whose true weights are a common vector plus `tau` times a standard normal one; half the rows are test.

    With sizes that go with the task, the smaller half of the clients has a common vector of its own.
    """
    generator = np.random.default_rng([seed, 77])
    outputs = CLASSES if model == "softmax" else 1
    factor = 1.0 if model == "linear" else 3.0
    shape = (FEATURES + 1, outputs)
    centre, other = 0.5 * generator.normal(size=shape), generator.normal(size=shape)
    x, y, names = [], [], []
    for k, size in enumerate(SIZES[sizes]):
        rows = 2 * int(size)
        own = centre + tau * generator.normal(size=shape)
        if sizes == "unequal with the task" and k < CLIENTS // 2:
            own = own + 2 * tau * other
        features = generator.uniform(-1, 1, size=(rows, FEATURES))
        output = factor * (features @ own[:-1] + own[-1])
        x.append(features)
        y.append(_labels(generator, model, output))
        names += [f"client-{k:02d}"] * rows
    return from_rows(
        np.concatenate(x).astype(np.float32),
        np.concatenate(y),
        names,
        test_fraction=0.5,
        seed=seed,
        name="sweep",
        outcome=OUTCOMES[model],
        classes=CLASSES if model == "softmax" else 0,
        scaling="public bounds",
    )


def _labels(generator: np.random.Generator, model: str, output: np.ndarray) -> np.ndarray:
    if model == "linear":
        return (output[:, 0] + NOISE * generator.normal(size=len(output))).astype(np.float32)
    if model == "logistic":
        return (generator.logistic(size=len(output)) < output[:, 0]).astype(np.int32)
    return np.argmax(output + generator.gumbel(size=output.shape), axis=1).astype(np.int32)
