"""Personal linear models from noisy gradients: what clients have in common becomes everybody's prior.

A client's evidence is b = H theta + e: H its curvature, e sampling error (variance / rows times H) and known noise.
Weights theta are normal around a common mean, each with a variance of its own; mean and variances are the most likely
ones (EM). All of it is computed from released and public numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.closed_form import solve_positive

TURNS = 24
"""Of EM."""
FASTER, FASTER_MEAN = 1.8, 1.5
"""Powers of EM's own step in the logarithm of a variance: plain steps are slow."""
SMALLEST, LARGEST = 1e-6, 1e4
"""Variances, in units of the residuals' variance."""


@trees.register
@dataclass(frozen=True)
class Evidence:
    """What one client has shown; or all clients, along a leading axis."""

    curvature: Array
    target: Array
    noise: Array
    """Variance of the noise on each entry of the target."""
    rows: Array
    at: Array
    """The weights at which the last gradient was taken."""
    square: Array
    """Mean square of what these weights miss."""
    square_noise: Array


@trees.register
@dataclass(frozen=True)
class Prior:
    """What clients have in common; public."""

    mean: Array
    variance: Array
    by_size: Array
    """What the constant changes by with the (standardised) logarithm of a client's rows."""
    size_centre: Array
    size_scale: Array
    slope_variance: Array
    """Of the mean's slopes around 0."""
    residual: Array
    """Variance of what models miss."""


def first_prior(weights: int) -> Prior:
    """Before any gradient."""
    slopes = jnp.full(weights - 1, 0.5 / max(weights - 1, 1), jnp.float32)
    variance = jnp.concatenate([jnp.full(1, 0.5, jnp.float32), slopes])
    one, zero = jnp.float32(1), jnp.float32(0)
    return Prior(jnp.zeros(weights, jnp.float32), variance, zero, zero, one, jnp.float32(0.25), one)


def no_evidence(weights: int) -> Evidence:
    """Of somebody who has shown nothing."""
    zero, zeros = jnp.float32(0), jnp.zeros(weights, jnp.float32)
    return Evidence(jnp.eye(weights, dtype=jnp.float32), zeros, zeros + LARGEST, zero, zeros, zero, zero)


def centre_of(prior: Prior, rows: Array) -> Array:
    """The mean of the weights of a client with so many rows; of one that is not known, without any."""
    place = (jnp.log(jnp.maximum(rows, 1)) - prior.size_centre) / prior.size_scale
    return prior.mean.at[0].add(jnp.where(rows > 0, place * prior.by_size, 0))


def _information(own: Evidence, residual: Array) -> tuple[Array, Array]:
    """H R^-1 H and H R^-1 b; nothing where there are no rows."""
    spread = residual / jnp.maximum(own.rows, 1) * own.curvature + jnp.diag(own.noise + 1e-9)
    information, shown = weighed(own.curvature, spread, own.target)
    return jnp.where(own.rows > 0, information, 0), jnp.where(own.rows > 0, shown, 0)


def weighed(curvature: Array, spread: Array, target: Array) -> tuple[Array, Array]:
    """H R^-1 H and H R^-1 b.

    `curvature`: H, symmetric. `spread`: R, the covariance of what the target misses. `target`: b.
    """
    both = jnp.concatenate([curvature, target[:, None]], axis=1)
    scale = 1 / jnp.sqrt(jnp.diagonal(spread))
    solved = scale[:, None] * solve_positive(spread * scale[:, None] * scale[None, :], scale[:, None] * both)
    found = curvature @ solved
    return (found[:, :-1] + found[:, :-1].T) / 2, found[:, -1]


def _within(information: Array, root: Array, right: Array) -> Array:
    """(I + S P S)^-1 times the right side."""
    scaled = root[:, None] * information * root[None, :]
    return solve_positive(jnp.eye(root.size, dtype=jnp.float32) + scaled, right)


def seen_from_mean(information: Array, shown: Array, variance: Array) -> tuple[Array, Array, Array]:
    """A client's covariance; and what it says about the mean: (P^-1 + T)^-1 and its right side.

    `information`, `shown`: of the client. `variance`: of weights around their mean.
    """
    size, root = variance.size, jnp.sqrt(variance)
    scaled = root[:, None] * jnp.concatenate([information, shown[:, None]], axis=1)
    solved = _within(information, root, jnp.concatenate([jnp.diag(root), scaled], axis=1))
    about = solved[:, size:] / root[:, None]
    return root[:, None] * solved[:, :size], about[:, :size], about[:, size]


@trees.register
@dataclass(frozen=True)
class Fitted:
    """A prior, and under it the weights of all clients and their covariances."""

    prior: Prior
    weights: Array
    covariance: Array


def fitted(clients: Evidence, prior: Prior) -> Fitted:
    """The prior that all clients' evidence makes most likely, beginning from one; and everybody's weights under it.

    Every turn of EM begins with these weights: the last one is for them alone, and what follows in it is not used.
    """
    there = (clients.rows > 0).astype(jnp.float32)
    known, count = there * jnp.log(jnp.maximum(clients.rows, 1)), jnp.maximum(there.sum(), 1)
    centre = known.sum() / count
    scale = jnp.maximum(jnp.sqrt((there * jnp.square(known - centre)).sum() / count), 0.1)
    square = _pooled_square(clients)
    start = replace(prior, size_centre=centre, size_scale=scale, slope_variance=jnp.float32(0.25), residual=square)
    places = _Places(there, there * (known - centre) / scale, prior.mean[0], square)
    turn = lambda _, state: _turn(clients, places, state[0])  # noqa: E731
    nothing = Fitted(start, jnp.zeros_like(clients.target), jnp.zeros_like(clients.curvature))
    return jax.lax.fori_loop(0, TURNS + 1, turn, (start, nothing))[1]


@trees.register
@dataclass(frozen=True)
class _Places:
    """What stays the same over all turns."""

    there: Array
    """Which clients have shown anything."""
    sizes: Array
    """The standardised logarithm of their rows."""
    constant: Array
    """The mean's constant before."""
    square: Array
    """Mean square of what the clients' last weights miss."""


def _pooled_square(clients: Evidence) -> Array:
    """Mean square of what the clients' weights miss, on the pool; never below its own noise."""
    weights = pooling(clients.rows, clients.square_noise * clients.rows)
    noise = jnp.sqrt(jnp.square(weights * clients.square_noise).sum())
    return jnp.maximum(jnp.maximum((weights * clients.square).sum(), noise), 1e-4)


def pooling(rows: Array, noise: Array) -> Array:
    """Weights of a mean over all rows in which clients of much noise count less; they add up to 1.

    `noise`: of each client's sum.
    """
    usual = jnp.median(noise)
    weights = rows * jnp.minimum(1, jnp.square((usual + 1e-12) / (noise + 1e-12)))
    return weights / jnp.maximum(weights.sum(), 1e-12)


def _turn(clients: Evidence, places: _Places, prior: Prior) -> tuple[Prior, Fitted]:
    """One turn of EM: the mean by least squares over all clients, then variances, then what is missed.

    Also what it began with: the prior, and everybody's weights under it.
    """
    information, shown = jax.vmap(_information, in_axes=(0, None))(clients, prior.residual)
    size = prior.mean.size
    covariance, about, said = jax.vmap(seen_from_mean, in_axes=(0, 0, None))(information, shown, prior.variance)

    def found(prior: Prior) -> tuple[Array, Array]:
        """Where clients' weights are expected from their sizes alone, and how far their evidence moves them."""
        centres = prior.mean[None, :] + prior.by_size * places.sizes[:, None] * jnp.eye(1, size, dtype=jnp.float32)
        return centres, jnp.einsum("kij,kj->ki", covariance, shown - jnp.einsum("kij,kj->ki", information, centres))

    centres, moved = found(prior)
    before = Fitted(prior, centres + moved, covariance)
    prior = _with_mean(about, said, places, prior)
    centres, moved = found(prior)
    squares = jnp.square(moved) + jnp.diagonal(covariance, axis1=1, axis2=2)
    seen = (places.there[:, None] * squares).sum(axis=0) / jnp.maximum(places.there.sum(), 1)
    slopes = jnp.arange(size, dtype=jnp.int32) > 0
    mean_of_slopes = jnp.where(slopes, seen, 0).sum() / max(size - 1, 1)
    wanted = (seen + jnp.where(slopes, mean_of_slopes, seen)) / 2
    variance = jnp.clip(prior.variance * (wanted / prior.variance) ** FASTER, SMALLEST, LARGEST)
    away = centres + moved - clients.at
    excess = jnp.einsum("ki,kij,kj->k", away, clients.curvature, away)
    excess = excess + jnp.einsum("kij,kij->k", covariance, clients.curvature)
    excess = (clients.rows * excess).sum() / jnp.maximum(clients.rows.sum(), 1)
    residual = jnp.maximum(places.square - excess, 0.1 * places.square)
    return replace(prior, variance=variance, residual=(prior.residual + residual) / 2), before


def _with_mean(about: Array, said: Array, places: _Places, prior: Prior) -> Prior:
    """The mean, and how its constant goes with a client's size as far as that is sure, by least squares."""
    size = prior.mean.size
    across = (places.sizes[:, None] * about[:, :, 0]).sum(axis=0)
    corner = (jnp.square(places.sizes) * about[:, 0, 0]).sum()
    matrix = jnp.block([[about.sum(axis=0), across[:, None]], [across[None, :], corner[None, None]]])
    loose = 1 / (100 * jnp.maximum(prior.variance[:1], 1e-3))
    held = jnp.concatenate(
        [jnp.full(1, 1e-6, jnp.float32), jnp.ones(size - 1, jnp.float32) / prior.slope_variance, loose]
    )
    matrix = matrix + jnp.diag(held)
    wanted = jnp.concatenate([said.sum(axis=0), (places.sizes * said[:, 0]).sum()[None]])
    wanted = wanted.at[0].add(held[0] * places.constant)
    scale = 1 / jnp.sqrt(jnp.maximum(jnp.diagonal(matrix), 1e-12))
    inverse = scale[:, None] * solve_positive(matrix * scale[:, None] * scale[None, :], jnp.diag(scale))
    solved = inverse @ wanted
    mean, by_size, unsure = solved[:size], solved[size], jnp.maximum(inverse[size, size], 1e-12)
    sure = jnp.maximum(0, 1 - 3 * unsure / jnp.maximum(by_size**2, 1e-12))
    mean = mean + inverse[:size, size] / unsure * (sure - 1) * by_size
    wide = (jnp.square(mean) + jnp.diagonal(inverse)[:size])[1:].sum() / max(size - 1, 1)
    slopes = prior.slope_variance * (wide / prior.slope_variance) ** FASTER_MEAN
    slopes = jnp.clip(slopes, SMALLEST, LARGEST)
    return replace(prior, mean=mean, by_size=sure * by_size, slope_variance=slopes)
