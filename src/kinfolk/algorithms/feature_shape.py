"""The shape of features from noisy second moments: what all clients share, and what one client's own looks like.

Directions are found on the pool, where noise is small; features are turned so that directions are independent and of
similar length (a fourth root of the pooled moment on each side). A client's own moment differs from the pooled one by
as much as clients are seen to differ beyond noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees

RIDGE = 0.1
"""Added to the pooled moment before its root is taken, in units of its mean eigenvalue."""
SMALLEST = 1e-3
"""Eigenvalue of a client's moment."""


@trees.register
@dataclass(frozen=True)
class Moments:
    """One client's features about a public centre, cut to a radius; or those of all clients, along a leading axis."""

    products: Array
    """Mean of u u'."""
    mean: Array
    """Mean of u."""
    noise: Array
    """Standard deviation on the diagonal of the products; off it, 1/sqrt(2) of that."""
    mean_noise: Array


@trees.register
@dataclass(frozen=True)
class Shape:
    """What all clients' features have in common; public."""

    turn: Array
    """From centred features to turned ones: columns are directions."""
    lengths: Array
    """What directions were divided by, squared."""
    variance: Array
    """Of every turned feature over all clients."""
    between: Array
    """The part of it that is between clients."""
    differing: Array
    """Mean square by which entries of clients' own moments differ from what their means say."""
    left: Array
    """Variance that the pooled moment's own noise leaves on an entry."""

    @property
    def effective(self) -> Array:
        """The squared length that a row of turned features is expected to have."""
        return self.variance.sum()


def no_shape(features: int) -> Shape:
    """Before anything was released."""
    ones = jnp.ones(features, jnp.float32)
    zero = jnp.float32(0)
    return Shape(jnp.eye(features, dtype=jnp.float32), ones, ones, jnp.zeros_like(ones), zero, zero)


def pooled_shape(all_clients: Moments, weights: Array) -> Shape:
    """From all clients' noisy moments.

    `weights`: what the mean over clients is taken with; they add up to 1.
    """
    size = all_clients.mean.shape[-1]
    moment = jnp.einsum("k,kij->ij", weights, all_clients.products, precision="highest")
    noise = jnp.sqrt((jnp.square(weights * all_clients.noise)).sum())
    values, vectors = jnp.linalg.eigh(moment)
    edge = noise * jnp.sqrt(jnp.float32(2 * size))  # largest eigenvalue of the noise alone
    seen = values > 1.02 * edge
    freed = jnp.where(seen, (values + jnp.sqrt(jnp.maximum(values**2 - edge**2, 0))) / 2, 0)
    total = jnp.maximum(jnp.trace(moment), 1e-6)
    rest = (total - freed.sum()) / jnp.maximum((~seen).astype(jnp.float32).sum(), 1)
    rest = jnp.maximum(jnp.maximum(rest, edge / 4), 1e-4 * total)
    spectrum = jnp.where(seen, jnp.maximum(freed, rest), rest)
    lengths = jnp.sqrt(spectrum + RIDGE * spectrum.mean())
    turn, variance = vectors / jnp.sqrt(lengths)[None, :], spectrum / lengths
    own, own_noise = jax.vmap(_turned_mean, in_axes=(0, None))(all_clients, turn)
    there = (weights > 0).astype(jnp.float32)
    count = jnp.maximum(there.sum(), 1)
    between = jnp.einsum("k,ki->i", there, jnp.square(own) - own_noise) / count
    shape = Shape(turn, lengths, variance, jnp.clip(between, 0, variance), jnp.float32(0), jnp.float32(0))
    away = jax.vmap(lambda one: _apart(one, shape)[0])(all_clients)
    noisy = jax.vmap(lambda one: _entry_noise(one, shape))(all_clients)
    differing = (there * (jnp.square(away).mean(axis=(1, 2)) - noisy)).sum() / count
    left = jnp.square(noise * jnp.mean(1 / lengths)) / 2
    return Shape(turn, lengths, variance, shape.between, jnp.maximum(differing, 0), left)


def _turned_mean(own: Moments, turn: Array) -> tuple[Array, Array]:
    """A client's mean of turned features, and the variance of its noise."""
    return own.mean @ turn, jnp.square(own.mean_noise) * jnp.square(turn).sum(axis=0)


def _entry_noise(own: Moments, shape: Shape) -> Array:
    """Mean variance of the noise on an entry of a client's turned moment."""
    inverse = 1 / shape.lengths
    both = jnp.square(inverse.sum()) + jnp.square(inverse).sum()
    return jnp.square(own.noise) * both / (2 * inverse.size**2)


def _apart(own: Moments, shape: Shape) -> tuple[Array, Array, Array]:
    """A client's turned moment minus what its mean says; that; and the mean, shrunk."""
    found, noise = _turned_mean(own, shape.turn)
    kept = shape.between / (shape.between + noise + 1e-12)
    mean = kept * found
    said = jnp.diag(shape.variance - shape.between + shape.between * (1 - kept)) + jnp.outer(mean, mean)
    turned = shape.turn.T @ own.products @ shape.turn
    return turned - said, said, mean


def curvature(own: Moments, shape: Shape) -> tuple[Array, Array]:
    """A client's second moment of (1, turned features), and the variance of an entry's remaining error."""
    away, said, mean = _apart(own, shape)
    noise = _entry_noise(own, shape)
    kept = shape.differing / (shape.differing + noise + 1e-12)
    error = shape.differing * (1 - kept) + shape.left
    inside = said + kept * away
    row = jnp.concatenate([jnp.ones(1, jnp.float32), mean])
    whole = jnp.concatenate([row[None], jnp.concatenate([mean[:, None], inside], axis=1)])
    values, vectors = jnp.linalg.eigh((whole + whole.T) / 2)
    least = jnp.maximum(jnp.sqrt(error * mean.size), SMALLEST)
    return (vectors * jnp.maximum(values, least)[None, :]) @ vectors.T, error
