"""Classification with covariance sharing: is a writer's character a digit or a letter? Mean AUC over writers.

FEMNIST, images averaged to 7 x 7 pixels, rows of length 1 with a constant; a share of each writer's rows is for
training, the rest for testing. Writers with fewer than 60 images are left out. `centred`: every writer's own mean image
is subtracted, which is free, and the ridge is the best for training alone, on other splits, by squared error of
probabilities, which is what evidence is about; otherwise pixels stay as they are, and the ridge is the best by AUC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.studies.covariance import methods
from benchmarks.studies.covariance.one_shot import Rows, models_alone, one_shot
from kinfolk.data.sets.femnist import femnist

LEAST = 60


@dataclass(frozen=True)
class Split:
    """Training rows of all clients, padded, and each client's test rows."""

    train: Rows
    test: list[tuple[np.ndarray, np.ndarray]]


def splits(fraction: float, seeds: Sequence[int], centred: bool) -> list[Split]:
    """One split for each seed; every client has at least four training rows."""
    data = femnist().train
    small = data.x.reshape(*data.x.shape[:2], 7, 4, 7, 4).mean(axis=(3, 5)).reshape(*data.x.shape[:2], 49)
    letters = (data.y >= 10).astype(np.float32)
    clients = [k for k in range(len(data.sizes)) if data.sizes[k] >= LEAST]

    def split(seed: int) -> Split:
        order = np.random.default_rng(seed)
        most = max(int(data.sizes[k] * fraction) for k in clients)
        x = np.zeros((len(clients), most, 50), np.float32)
        y, mask, test = np.zeros((len(clients), most), np.float32), np.zeros((len(clients), most), bool), []
        for number, client in enumerate(clients):
            shuffled = order.permutation(int(data.sizes[client]))
            count = max(4, int(data.sizes[client] * fraction))
            own, rest = shuffled[:count], shuffled[count:]
            centre = small[client, own].mean(axis=0) if centred else None
            x[number, :count], y[number, :count] = prepared(small[client, own], centre), letters[client, own]
            mask[number, :count] = True
            test.append((prepared(small[client, rest], centre), letters[client, rest]))
        return Split((jnp.asarray(x), jnp.asarray(y), jnp.asarray(mask)), test)

    return [split(seed) for seed in seeds]


def prepared(rows: np.ndarray, centre: np.ndarray | None) -> np.ndarray:
    """Rows of length 1: with the constant, or less the centre and the constant appended afterwards."""
    constant = np.ones((len(rows), 1), np.float32)
    if centre is None:
        joined = np.concatenate([rows, constant], axis=1)
        return (joined / np.linalg.norm(joined, axis=1, keepdims=True)).astype(np.float32)
    moved = rows - centre
    return np.concatenate([moved / np.linalg.norm(moved, axis=1, keepdims=True), constant], axis=1).astype(np.float32)


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The chance that a letter scores above a digit; ties count half, and one class alone is not a number."""
    gaps = scores[labels > 0][:, None] - scores[labels == 0][None, :]
    return float((np.sign(gaps) + 1).mean() / 2) if gaps.size else float("nan")


def mean_auc(models: Any, split: Split) -> float:
    found = [auc(x @ model, y) for model, (x, y) in zip(np.asarray(models), split.test, strict=True)]
    return float(np.nanmean(found))


def mean_brier(models: Any, split: Split) -> float:
    """Squared error of probabilities."""
    found = [np.square(y - 1 / (1 + np.exp(-x @ m))).mean() for m, (x, y) in zip(models, split.test, strict=True)]
    return float(np.mean(found))


def classification(
    fraction: float, repetitions: int, epsilons: Sequence[float], delta_for: Callable[[int], float], centred: bool
) -> dict[str, Any]:
    """Mean AUC of training alone and of the one-shot method; the ridge is the former's best on other splits."""
    trial, ridges = splits(fraction, (100, 101), centred), (0.1, 0.3, 1.0, 3.0, 10.0)

    def score(ridge: float, split: Split) -> float:
        models = np.asarray(models_alone(split.train, ridge, True))
        return -mean_brier(models, split) if centred else mean_auc(models, split)

    tried = [np.mean([score(ridge, split) for split in trial]) for ridge in ridges]
    ridge = ridges[int(np.argmax(tried))]
    alone, shared = [], {epsilon: [] for epsilon in epsilons}
    for seed, split in enumerate(splits(fraction, range(repetitions), centred)):
        alone.append(mean_auc(models_alone(split.train, ridge, True), split))
        for epsilon in epsilons:
            noise = methods.whole_noise(epsilon, delta_for(len(split.test)))
            models = one_shot(jax.random.key(seed), split.train, ridge, noise, logistic=True)[1]
            shared[epsilon].append(mean_auc(models, split))
    return {
        "ridge": ridge,
        "clients": len(trial[0].test),
        "single-task": float(np.mean(alone)),
        "one-shot": [float(np.mean(found)) for found in shared.values()],
        "better than single-task, share of runs": [
            float(np.mean(np.array(found) > alone)) for found in shared.values()
        ],
    }
