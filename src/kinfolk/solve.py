"""Closed-form fits: what a client can do alone with its own examples, at once instead of by many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.models import LOSSES

if TYPE_CHECKING:
    from kinfolk.types import Model, Params, Value


def newton(model: Model, rows: Any, centre: Params, precision: Value, steps: int = 1) -> Params:
    """Newton steps from `centre` on the mean loss plus `precision / 2` times the squared distance to `centre`.

    The curvature is that of the loss in the model's output, carried to the weights (Gauss-Newton): exact for linear
    models, so that one step solves a ridge regression. `precision` is a number, one per weight, or a matrix; it must
    be positive where the examples leave a direction open.
    """
    start, unflatten = trees.flatten(centre)
    prior = _as_matrix(jnp.asarray(precision, jnp.float32), start.size)

    def step(_: int, flat: Array) -> Array:
        first, __, slopes, curvature = _bends(model, rows, unflatten(flat))
        gradient = jnp.einsum("no,nop->p", first, slopes) / _count(rows) + prior @ (flat - start)
        return flat - jnp.linalg.solve(curvature + prior, gradient)

    return unflatten(jax.lax.fori_loop(0, steps, step, start))


def outputs_without(model: Model, rows: Any, fitted: Params, precision: Value) -> Array:
    """For every row, the model's output as if it had been fitted without that row: one step from the full fit.

    `fitted` minimises the mean loss plus a quadratic of this precision. Exact for linear regression.
    """
    first, second, slopes, curvature = _bends(model, rows, fitted)
    prior = _as_matrix(jnp.asarray(precision, jnp.float32), slopes.shape[-1])
    solved = jnp.linalg.solve(curvature + prior, slopes.reshape(-1, slopes.shape[-1]).T).T.reshape(slopes.shape)
    reach = jnp.einsum("nop,nqp->noq", slopes, solved) / _count(rows)
    outputs = jax.vmap(lambda x: jnp.ravel(model.predict(fitted, x)))(rows.x)

    def moved(reach: Array, first: Array, second: Array, output: Array) -> Array:
        return output + reach @ jnp.linalg.solve(jnp.eye(len(first), dtype=reach.dtype) - second @ reach, first)

    return jax.vmap(moved)(reach, first, second, outputs)


def _count(rows: Any) -> Array:
    return jnp.maximum(rows.mask.sum(), 1).astype(jnp.float32)


def _bends(model: Model, rows: Any, params: Params) -> tuple[Array, Array, Array, Array]:
    """Of every row: first and second derivative of the loss in the output, and the output's slopes in the weights;
    0 for padding. And the mean curvature of the loss in the weights.
    """
    flat, unflatten = trees.flatten(params)

    def output(flat: Array, x: Any) -> Array:
        return jnp.ravel(model.predict(unflatten(flat), x))

    def of_example(x: Any, y: Array, real: Array) -> tuple[Array, Array, Array]:
        first, second = loss_slopes(model, output(flat, x), y)
        weight = real.astype(jnp.float32)
        return weight * first, weight * second, weight * jax.jacrev(output)(flat, x)

    first, second, slopes = jax.vmap(of_example)(rows.x, rows.y, rows.mask)
    bent = jnp.einsum("noq,nqp->nop", second, slopes)
    return first, second, slopes, jnp.einsum("nop,noq->pq", slopes, bent) / _count(rows)


def loss_slopes(model: Model, out: Array, y: Array) -> tuple[Array, Array]:
    """First and second derivative of one example's loss in the model's output."""

    def loss(out: Array) -> Array:
        return LOSSES[model.outcome](out if model.outcome == "classes" else out[0], y)

    return jax.grad(loss)(out), jax.hessian(loss)(out)


def _as_matrix(precision: Array, size: int) -> Array:
    if precision.ndim == 2:
        return precision
    return jnp.diag(jnp.broadcast_to(precision, (size,)))
