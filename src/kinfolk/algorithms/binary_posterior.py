"""Personal logistic models from noisy, clipped gradients: what clients have in common becomes everybody's prior.

A client's evidence is the average of its released gradients, at weights that everybody knows. What that average is
expected to be under any other weights follows from draws that stand in for the client's rows, with clipping and all; so
its own weights are found by Newton's steps, with noise of known size. Weights are normal around a common mean that may
go with a client's size. All of it is computed from released and public numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.linear_posterior import seen_from_mean, weighed
from kinfolk.closed_form import solve_positive

TURNS, STEPS = 6, 3
"""Turns of EM in one of Newton's steps, and how many of these follow a release."""
FASTER, FASTER_MEAN = 1.8, 1.5
"""Powers of EM's own step in the logarithm of a variance: plain steps are slow."""
SMALLEST, LARGEST = 1e-6, 1e2
"""Variances."""
HELD, USUAL = 4.0, 0.5
"""The variance of the mean's slopes is taken to be the second, as if the first number of weights had said so."""
CONSTANT = 25.0
"""Variance of the mean's constant."""
LARGEST_MOVE = 6.0
"""Of an output, in one step."""


@trees.register
@dataclass(frozen=True)
class Evidence:
    """What one client has shown; or all clients, along a leading axis."""

    draws: Array
    """Rows that stand in for the client's: a 1, then features."""
    sums: Array
    """The average of released gradients."""
    pushes: Array
    """What a row of either answer adds to that average, in units of itself: (draw, answer)."""
    noise: Array
    """Variance of the noise on each of the sums."""
    rows: Array
    """0: nothing is known."""
    at: Array
    """The weights at which the last gradient was taken."""


@trees.register
@dataclass(frozen=True)
class Prior:
    """What clients have in common; public."""

    mean: Array
    variance: Array
    by_size: Array
    """What weights change by with the (standardised) logarithm of a client's rows."""
    size_centre: Array
    size_scale: Array
    slope_variance: Array
    """Of the mean's slopes around 0."""


def first_prior(weights: int) -> Prior:
    """Before any gradient.

    `weights`: the constant, and one per feature.
    """
    zeros, one = jnp.zeros(weights, jnp.float32), jnp.float32(1)
    variance = jnp.full(weights, 1.5 / max(weights - 1, 1), jnp.float32).at[0].set(0.5)
    return Prior(zeros, variance, zeros, jnp.float32(0), one, jnp.float32(USUAL))


def centre_of(prior: Prior, rows: Array) -> Array:
    """The mean of the weights of a client with so many rows; of one that is not known, without any."""
    place = (jnp.log(jnp.maximum(rows, 1)) - prior.size_centre) / prior.size_scale
    return prior.mean + jnp.where(rows > 0, place, 0) * prior.by_size


def pushes(draws: Array, weights: Array, clip: Array) -> Array:
    """What a row of either answer adds to a gradient, in units of itself, so that the product is within the clip.

    `draws`: rows. `weights`: the model's. `clip`: of one row's gradient.
    """
    chance = jax.nn.sigmoid(draws @ weights)
    each = jnp.stack([-chance, 1 - chance], axis=1)
    length = jnp.abs(each) * jnp.linalg.norm(draws, axis=1)[:, None]
    return each * jnp.minimum(1, clip / jnp.maximum(length, 1e-9))


def _seen(own: Evidence, weights: Array) -> tuple[Array, Array]:
    """What a client's sums say about weights near these; nothing where nothing is known."""
    x, count = own.draws, own.draws.shape[0]
    chance = jax.nn.sigmoid(x @ weights)
    chances = jnp.stack([1 - chance, chance], axis=1)
    expected = x.T @ (chances * own.pushes).sum(axis=1) / count
    bend = chance * (1 - chance) * (own.pushes[:, 1] - own.pushes[:, 0])
    curvature = (x * bend[:, None]).T @ x / count
    scatter = (x * (chances * jnp.square(own.pushes)).sum(axis=1)[:, None]).T @ x / count
    scatter = scatter - jnp.outer(expected, expected)
    identity = jnp.eye(weights.size, dtype=jnp.float32)
    spread = scatter / jnp.maximum(own.rows, 1) + (own.noise + 1e-8) * identity
    information, shown = weighed(curvature, spread, own.sums - expected + curvature @ weights)
    return jnp.where(own.rows > 0, information, 0), jnp.where(own.rows > 0, shown, 0)


def _moved(own: Evidence, weights: Array, information: Array, shown: Array, prior: Prior) -> Array:
    """A client's weights after one of Newton's steps, of limited length."""
    covariance, _, __ = seen_from_mean(information, shown, prior.variance)
    centre = centre_of(prior, own.rows)
    step = centre + covariance @ (shown - information @ centre) - weights
    move = jnp.abs(own.draws @ step).max()
    return weights + step * jnp.minimum(1, LARGEST_MOVE / jnp.maximum(move, 1e-9))


def fitted(clients: Evidence, prior: Prior) -> tuple[Prior, Array]:
    """The prior that all clients' evidence makes most likely, beginning from one; and everybody's weights under it.

    Newton's steps go twice from where the clients' last gradients were taken: while the prior is found, then with it.
    """
    there = (clients.rows > 0).astype(jnp.float32)
    known, count = there * jnp.log(jnp.maximum(clients.rows, 1)), jnp.maximum(there.sum(), 1)
    centre = known.sum() / count
    scale = jnp.maximum(jnp.sqrt((there * jnp.square(known - centre)).sum() / count), 0.1)
    sizes = there * (known - centre) / scale
    start = replace(prior, size_centre=centre, size_scale=scale)

    def step(number: Array, state: tuple[Prior, Array]) -> tuple[Prior, Array]:
        prior, weights = state
        weights = jnp.where(number == STEPS, clients.at, weights)
        information, shown = jax.vmap(_seen)(clients, weights)
        turns = jnp.where(number < STEPS, TURNS, 0)
        prior = jax.lax.fori_loop(0, turns, lambda _, prior: _turn(information, shown, sizes, there, prior), prior)
        moved = jax.vmap(_moved, in_axes=(0, 0, 0, 0, None))(clients, weights, information, shown, prior)
        return prior, moved

    return jax.lax.fori_loop(0, 2 * STEPS, step, (start, clients.at))


def _turn(information: Array, shown: Array, sizes: Array, there: Array, prior: Prior) -> Prior:
    """One turn of EM: the mean and how it goes with size by least squares over all clients, then variances."""
    covariance, about, said = jax.vmap(seen_from_mean, in_axes=(0, 0, None))(information, shown, prior.variance)
    prior = _with_mean(about, said, sizes, prior)
    centres = prior.mean[None, :] + sizes[:, None] * prior.by_size[None, :]
    moved = jnp.einsum("kij,kj->ki", covariance, shown - jnp.einsum("kij,kj->ki", information, centres))
    squares = jnp.square(moved) + jnp.diagonal(covariance, axis1=1, axis2=2)
    seen = (there[:, None] * squares).sum(axis=0) / jnp.maximum(there.sum(), 1)
    slopes = jnp.arange(seen.size, dtype=jnp.int32) > 0
    mean_of_slopes = jnp.where(slopes, seen, 0).sum() / max(seen.size - 1, 1)
    wanted = (seen + jnp.where(slopes, mean_of_slopes, seen)) / 2
    variance = jnp.clip(prior.variance * (wanted / prior.variance) ** FASTER, SMALLEST, LARGEST)
    return replace(prior, variance=variance)


def _with_mean(about: Array, said: Array, sizes: Array, prior: Prior) -> Prior:
    """The mean and its change with size by least squares; the change is kept as far as it is sure."""
    size = prior.mean.size
    across = jnp.einsum("k,kij->ij", sizes, about)
    corner = jnp.einsum("k,kij->ij", jnp.square(sizes), about)
    loose = jnp.full(2 * size, 1, jnp.float32) / prior.slope_variance
    matrix = jnp.block([[about.sum(axis=0), across], [across, corner]]) + jnp.diag(loose.at[0].set(1 / CONSTANT))
    scale = 1 / jnp.sqrt(jnp.diagonal(matrix))
    inverse = scale[:, None] * solve_positive(matrix * scale[:, None] * scale[None, :], jnp.diag(scale))
    solved = inverse @ jnp.concatenate([said.sum(axis=0), sizes @ said])
    mean, change, unsure = solved[:size], solved[size:], inverse[size:, size:]
    constant = _sure(change[:1], unsure[:1, :1])
    slopes = _sure(change[1:], unsure[1:, 1:])
    dropped = (jnp.concatenate([constant[None], jnp.full(size - 1, 1, jnp.float32) * slopes]) - 1) * change
    mean = mean + inverse[:size, size:] @ _solved(unsure, dropped)
    wide = (jnp.square(solved[1:size]) + jnp.diagonal(inverse)[1:size]).sum() + HELD * USUAL
    wanted = wide / (size - 1 + HELD)
    slope_variance = prior.slope_variance * (wanted / prior.slope_variance) ** FASTER_MEAN
    return replace(prior, mean=mean, by_size=change + dropped, slope_variance=jnp.clip(slope_variance, 1e-4, LARGEST))


def _sure(change: Array, covariance: Array) -> Array:
    """How much of a change is kept: nothing, where chance alone makes one as long."""
    by_chance = change.size + 2 * (2 * change.size) ** 0.5
    return jnp.maximum(0, 1 - by_chance / jnp.maximum(change @ _solved(covariance, change), 1e-9))


def _solved(covariance: Array, right: Array) -> Array:
    scale = 1 / jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), 1e-12))
    return scale * solve_positive(covariance * scale[:, None] * scale[None, :], scale * right)
