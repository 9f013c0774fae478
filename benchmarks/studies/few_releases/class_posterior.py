"""Personal models of classes from released gradients: what clients have in common becomes everybody's prior.

A client's released sums are an average of clipped gradients at known models. What they are expected to be under any
other model follows from draws that stand in for the client's rows, clipping included; so its weights are found by
Gauss and Newton's steps, with noise of known size. Weights are normal around a mean that may go with a client's size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

TURNS, STEPS = 6, 3
"""Of EM in a step, and steps after each release."""
FASTER, FASTER_MEAN = 1.8, 1.5
"""Powers of EM's own step in the logarithm of a variance."""
HELD, USUAL = 4.0, 0.5
"""The variance of the mean's slopes is taken to be this, as if so many more weights had said so."""
LARGEST_MOVE = 6.0
"""Of an output, in one step."""


@dataclass(frozen=True)
class Shown:
    """What all clients have released, and draws that stand in for their rows."""

    rows: np.ndarray
    draws: np.ndarray
    """(client, draw, 1 and features)."""
    sums: np.ndarray
    """The average of released gradients: (client, weight)."""
    pushes: np.ndarray
    """What a row of each class contributes to that average, per output: (client, draw, class, output)."""
    noise: np.ndarray
    """Variance of every sum's noise."""


@dataclass
class Prior:
    """What clients have in common."""

    mean: np.ndarray
    by_size: np.ndarray
    """What weights change by with the (standardised) logarithm of a client's rows."""
    variance: np.ndarray
    outputs: int
    slopes: float = USUAL
    """Variance of the mean's slopes around 0."""
    blocks: list[np.ndarray] = field(default_factory=list[np.ndarray])
    """Which weights are constants, and which are slopes."""


def first_prior(features: int, outputs: int) -> Prior:
    """Before any gradient."""
    weights = (features + 1) * outputs
    variance = np.full(weights, 1.5 / features)
    variance[:outputs] = 0.5
    blocks = [np.arange(outputs), np.arange(outputs, weights)]
    return Prior(np.zeros(weights), np.zeros(weights), variance, outputs, blocks=blocks)


def chances(outputs: np.ndarray) -> np.ndarray:
    """Of classes along the last axis; of the second of two classes, where there is one output."""
    if outputs.shape[-1] == 1:
        return 1 / (1 + np.exp(-np.clip(outputs, -30, 30)))
    powers = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def misses(x: np.ndarray, weights: np.ndarray, clip: float) -> np.ndarray:
    """What a row of each class adds to the gradient, per output, so that its product with the row is within the clip.

    Axes (client, row, class, output), for rows (client, row, feature) and weights (client, feature, output).
    """
    found = chances(np.einsum("kma,kac->kmc", x, weights))
    size = found.shape[-1]
    each = np.stack([-found, 1 - found], axis=2) if size == 1 else np.eye(size) - found[:, :, None, :]
    length = np.linalg.norm(each, axis=3) * np.linalg.norm(x, axis=2)[:, :, None]
    return each * np.minimum(1, clip / np.maximum(length, 1e-9))[..., None]


def sizes_of(rows: np.ndarray) -> np.ndarray:
    """The standardised logarithm of clients' rows."""
    logs = np.log(rows)
    return (logs - logs.mean()) / max(logs.std(), 0.1)


def settled(shown: Shown, prior: Prior, weights: np.ndarray, with_size: tuple[bool, bool]) -> np.ndarray:
    """Weights after new evidence, beginning at old ones; the prior is brought up to date.

    `weights`: (client, feature, output). `with_size`: whether constants and slopes may go with a client's size.
    """
    for _ in range(STEPS):
        information, said = _evidence(shown, weights)
        flat = weights.reshape(len(weights), -1)
        found = flat
        for _ in range(TURNS):
            found = _turn(information, said, sizes_of(shown.rows), prior, with_size)
        step = (found - flat).reshape(weights.shape)
        move = np.abs(np.einsum("kma,kac->kmc", shown.draws, step)).max(axis=(1, 2))
        weights = weights + step * np.minimum(1, LARGEST_MOVE / np.maximum(move, 1e-9))[:, None, None]
    return weights


def _evidence(shown: Shown, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What sums say about weights near these: F' R^-1 F and F' R^-1 (sums - expected + F weights)."""
    x, (clients, draws, size) = shown.draws, shown.draws.shape
    outputs = weights.shape[2]
    count = size * outputs
    found = chances(np.einsum("kma,kac->kmc", x, weights))
    if outputs == 1:
        each, bend = np.concatenate([1 - found, found], axis=2), found * (1 - found)
        bends = np.stack([-bend, bend], axis=2)
    else:
        each = found
        bends = found[..., None] * np.eye(outputs) - found[..., :, None] * found[..., None, :]
    push = shown.pushes
    expected = np.einsum("kma,kmc->kac", x, np.einsum("kmy,kmyc->kmc", each, push)).reshape(clients, count) / draws

    def products(inner: np.ndarray) -> np.ndarray:
        found = np.einsum("kma,kmce,kmb->kacbe", x, inner, x, optimize=True)
        return found.reshape(clients, count, count) / draws

    slope = products(np.einsum("kmyc,kmye->kmce", push, bends))
    scatter = products(np.einsum("kmyc,kmye,kmy->kmce", push, push, each, optimize=True))
    scatter -= expected[:, :, None] * expected[:, None, :]
    spread = scatter / shown.rows[:, None, None] + (shown.noise[:, None, None] + 1e-10) * np.eye(count)
    target = shown.sums - expected + np.einsum("kpq,kq->kp", slope, weights.reshape(clients, count))
    solved = np.linalg.solve(spread, np.concatenate([slope, target[:, :, None]], axis=2))
    both = np.swapaxes(slope, 1, 2) @ solved
    return (both[:, :, :-1] + np.swapaxes(both[:, :, :-1], 1, 2)) / 2, both[:, :, -1]


def _turn(
    information: np.ndarray, said: np.ndarray, sizes: np.ndarray, prior: Prior, with_size: tuple[bool, bool]
) -> np.ndarray:
    """One turn of EM: the mean and how it goes with size by least squares, weights, then variances."""
    covariance = np.linalg.inv(information + np.diag(1 / prior.variance))
    kept = information @ covariance
    about, right = information - kept @ information, said - np.einsum("kpq,kq->kp", kept, said)
    _fit_mean(about, right, sizes, prior, with_size)
    centres = prior.mean + sizes[:, None] * prior.by_size
    found = np.einsum("kpq,kq->kp", covariance, said + centres / prior.variance)
    seen = (np.square(found - centres) + np.diagonal(covariance, axis1=1, axis2=2)).mean(axis=0)
    for block in prior.blocks:
        seen[block] = (seen[block] + seen[block].mean()) / 2
    prior.variance = np.clip(prior.variance * (seen / prior.variance) ** FASTER, 1e-6, 1e2)
    return found


def _fit_mean(
    about: np.ndarray, right: np.ndarray, sizes: np.ndarray, prior: Prior, with_size: tuple[bool, bool]
) -> None:
    """Least squares for the mean and its change with size, which is kept as far as it is sure, block by block."""
    count = prior.mean.size
    across = np.einsum("k,kpq->pq", sizes, about)
    matrix = np.block([[about.sum(axis=0), across], [across, np.einsum("k,kpq->pq", np.square(sizes), about)]])
    loose = np.full(2 * count, 1 / prior.slopes)
    loose[: prior.outputs] = 1 / 25
    inverse = np.linalg.inv(matrix + np.diag(loose))
    solved = inverse @ np.concatenate([right.sum(axis=0), sizes @ right])
    mean, change = solved[:count], solved[count:]
    slopes = np.square(mean[prior.outputs :]) + np.diag(inverse)[prior.outputs : count]
    unsure, kept = inverse[count:, count:], np.zeros(count)
    for block, allowed in zip(prior.blocks, with_size, strict=True):
        length = change[block] @ np.linalg.solve(unsure[np.ix_(block, block)], change[block])
        by_chance = block.size + 2 * math.sqrt(2 * block.size)
        kept[block] = max(0.0, 1 - by_chance / max(length, 1e-9)) if allowed else 0.0
    dropped = (kept - 1) * change
    prior.mean = mean + inverse[:count, count:] @ np.linalg.solve(unsure, dropped)
    prior.by_size = change + dropped
    wanted = (slopes.sum() + HELD * USUAL) / (slopes.size + HELD)
    prior.slopes = float(np.clip(prior.slopes * (wanted / prior.slopes) ** FASTER_MEAN, 1e-4, 1e2))
