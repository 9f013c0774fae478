"""Sums of outer products of the clients' models: what covariance sharing releases.

A client's message is a matrix W (features x outputs), or a vector. It is clipped to norm K *before* the product, so
that W W^T has Frobenius norm at most K^2, and its diagonal norm at most K^2 both in L2 and in L1.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk.privacy.clipping import Sum, clip_one, to_grid
from kinfolk.types import Tree


def second_moments() -> Sum:
    """The sum of weight * W W^T over units (W, weight, ...). The norm of a matrix is its Frobenius norm.

    In full float32: accelerators would round the clipped models otherwise, and products could be longer than K^2.
    """
    return _sum(lambda models: jnp.einsum("mdo,meo->de", models, models, precision="highest"), within_l1=False)


def squares() -> Sum:
    """The sum of the diagonals of weight * W W^T: squared models, one value per feature."""
    return _sum(lambda models: jnp.square(models).sum(axis=(0, 2)), within_l1=True)


def _sum(total: Callable[[Array], Array], within_l1: bool) -> Sum:
    def kept(units: Tree, weights: Array, clip: Array) -> Array:
        models, factors = _weighted(units), weights
        return jax.vmap(clip_one, in_axes=(0, 0, None))(models, factors, clip)

    def on_grid(_: Tree, units: Tree, weights: Array, clip: Array) -> Array:
        """One client after another: each contribution is rounded before it is added, and memory stays small."""

        def add(before: Array, model: Array) -> tuple[Array, None]:
            return before + to_grid(total(model[None]), jnp.square(clip)), None

        models = kept(units, weights, clip)
        empty = jnp.zeros(jax.eval_shape(total, models).shape, jnp.int32)
        return jax.lax.scan(add, empty, models)[0]

    return Sum(
        "moments",
        lambda _, units, weights: total(
            jnp.where(weights[:, None, None] > 0, weights[:, None, None] * _weighted(units), 0)
        ),
        lambda _, units, weights, clip: total(kept(units, weights, clip)),
        on_grid,
        degree=2,
        within_l1=within_l1,
    )


def _weighted(units: Tree) -> Array:
    """Every client's model times the root of its public weight."""
    models, weights = units[0], units[1]
    models = models.reshape(*models.shape[:2], -1).astype(jnp.float32)
    return jnp.sqrt(weights)[:, None, None] * models


def symmetric(matrix: Array) -> Array:
    """The symmetric part. Independent noise of deviation s on all entries leaves s/sqrt(2) off the diagonal."""
    return (matrix + matrix.T) / 2
