"""The proximal operators of multi-task penalties, computed from the second moment of all models alone.

>>> import jax.numpy as jnp
>>> w = jnp.array([[3.0], [0.1]])
>>> shrink_features(w, jnp.array([9.0, 0.01]), 1.0).ravel().round(3).tolist()
[2.0, 0.0]
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from kinfolk.types import Value


def shrink(model: Array, moment: Array, amount: Value, deviation: Value = 0.0) -> Array:
    """One client's part of the trace norm's proximal operator: singular values of all models, less `amount`.

    Singular values are roots of the moment's eigenvalues. `deviation`, of the noise on the moment's diagonal, moves
    the eigenvalues up by the edge of such noise, so that what is noise shrinks little; one at or below 0 means 0.
    """
    values, vectors = jnp.linalg.eigh(moment)
    edge = deviation * jnp.sqrt(jnp.float32(2 * moment.shape[0]))
    return vectors @ (_factor(values + edge, amount)[:, None] * (vectors.T @ model))


def shrink_features(model: Array, squares: Array, amount: Value, deviation: Value = 0.0) -> Array:
    """One client's part of the l2,1 norm's proximal operator: row norms of all models, less `amount`."""
    edge = deviation * jnp.sqrt(2 * jnp.log(jnp.float32(squares.shape[0])))
    return _factor(squares + edge, amount)[:, None] * model


def shrink_whole(model: Array, amount: Value) -> Array:
    """The proximal operator of one model's norm: shorter by `amount`, and nothing where it was no longer than that."""
    norm = jnp.linalg.norm(model)
    return jnp.where(norm > amount, 1 - amount / jnp.maximum(norm, 1e-20), 0) * model


def momentum(number: Value, condition: Value) -> Array:
    """How far to go on in round `number` = 1, 2, ...: `(t - 1) / (t + 2)`, or a constant if strongly convex.

    `condition`: strong convexity over smoothness; 0 is convex only.
    """
    root, number = jnp.sqrt(jnp.asarray(condition, jnp.float32)), jnp.asarray(number, jnp.float32)
    return jnp.where(root > 0, (1 - root) / (1 + root), (number - 1) / (number + 2))


def _factor(values: Array, amount: Value) -> Array:
    roots = jnp.sqrt(jnp.maximum(values, 1e-20))
    return jnp.where(values > 0, jnp.maximum(0, 1 - amount / roots), 0)
