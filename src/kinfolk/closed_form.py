"""Closed-form fits: what a client can do alone with its own examples, at once instead of by many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.outcomes import loss_at
from kinfolk.types import Rows, Tree

if TYPE_CHECKING:
    from kinfolk.types import Model, Params, Value

SMALL = 128
"""Up to this many unknowns elimination is quicker than iterations."""
ITERATIONS = 60


def mean_over(rows: Rows, values: Array) -> Array:
    """The mean over a client's real rows."""
    return jnp.where(rows.mask, values, 0).sum() / jnp.maximum(rows.mask.sum(), 1).astype(jnp.float32)


def slope(model: Model, rows: Rows, params: Params) -> Params:
    """The gradient of the mean loss over all of a client's rows."""

    def loss(params: Params) -> Array:
        return mean_over(rows, jax.vmap(lambda x, y: model.loss(params, x, y))(rows.x, rows.y))

    return jax.grad(loss)(params)


def newton(model: Model, rows: Rows, centre: Params, precision: Value, steps: int = 1) -> Params:
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
        return flat - solve_positive(curvature + prior, gradient)

    return unflatten(step(0, start) if steps == 1 else jax.lax.fori_loop(0, steps, step, start))


def bounded_newton(model: Model, rows: Rows, centre: Params, precision: Value, steps: int = 40) -> Params:
    """As `newton`, for one layer of classes that has too many weights for a matrix of all of them.

    The curvature of the logarithmic loss in the outputs is at most 1/2, so that one matrix of features bounds that of
    every class (Boehning, 1992). Accelerated steps with its inverse go down to the same optimum.
    """
    flat = rows.x.reshape(*rows.mask.shape, -1).astype(jnp.float32)
    x = jnp.where(rows.mask[:, None], jnp.concatenate([flat, jnp.ones((len(flat), 1), jnp.float32)], axis=1), 0)
    size = x.shape[1]
    identity = jnp.eye(size, dtype=jnp.float32)
    inverse, _ = eliminate(x.T @ x / (2 * _count(rows)) + precision * identity, identity)
    (layer,) = centre
    start = jnp.concatenate([layer["weights"], layer["bias"][None]])
    labels = jnp.where(rows.mask[:, None], jax.nn.one_hot(rows.y, start.shape[1]), 0)

    def step(number: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        before, ahead = state
        chances = jnp.where(rows.mask[:, None], jax.nn.softmax(x @ ahead), 0)
        slope = x.T @ (chances - labels) / _count(rows) + precision * (ahead - start)
        after = ahead - inverse @ slope
        speed = number.astype(jnp.float32) / (number.astype(jnp.float32) + 3)
        return after, after + speed * (after - before)

    found, _ = jax.lax.fori_loop(0, steps, step, (start, start))
    return ({"weights": found[:-1], "bias": found[-1]},)


def fitted_and_left_out(
    model: Model, rows: Rows, centre: Params, precision: Value, steps: int = 1
) -> tuple[Params, Array]:
    """`newton` for a linear model, and for every row the output as if it had been fitted without that row.

    That is one step from the full fit: exact for linear regression. `precision` is a number, or one per weight.
    """
    start, unflatten = trees.flatten(centre)
    prior = jnp.diag(jnp.broadcast_to(jnp.asarray(precision, jnp.float32), start.shape))
    count, slopes = _count(rows), _output_slopes(model, rows, centre)
    every = slopes.reshape(-1, start.size).T
    few = every.shape[1] < start.size
    columns = every if few else jnp.eye(start.size, dtype=jnp.float32)

    def bends(flat: Array) -> tuple[Array, Array, Array]:
        outputs = jnp.einsum("nop,p->no", slopes, flat)
        first, second = jax.vmap(lambda out, y: loss_slopes(model, out, y))(outputs, rows.y)
        real = rows.mask.astype(jnp.float32)[:, None]
        return outputs, real * first, real[..., None] * second

    def step(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        flat = state[0]
        _outputs, first, second = bends(flat)
        gradient = jnp.einsum("no,nop->p", first, slopes) / count + prior @ (flat - start)
        curvature = jnp.einsum("nop,noq,nqr->pr", slopes, second, slopes) / count
        solved = solve_positive(curvature + prior, jnp.concatenate([gradient[:, None], columns], axis=1))
        return flat - solved[:, 0], solved[:, 1:]

    flat, solved = jax.lax.fori_loop(0, steps, step, (start, jnp.zeros_like(columns)))
    outputs, first, second = bends(flat)
    solved = solved if few else solved @ every
    reach = jnp.einsum("nop,pnq->noq", slopes, solved.reshape(start.size, *first.shape)) / count

    def moved(reach: Array, first: Array, second: Array, output: Array) -> Array:
        away = eliminate(jnp.eye(len(first), dtype=reach.dtype) - second @ reach, first[:, None])[0]
        return output + reach @ away[:, 0]

    return unflatten(flat), jax.vmap(moved)(reach, first, second, outputs)


def evidence(model: Model, rows: Rows, fitted: Params, centre: Params, precision: Value) -> Array:
    """How likely a linear regression's targets are, as a logarithm up to a constant, if weights scatter around `centre`
    with this precision (relative to that of the mean loss): Gaussian noise, its variance at the most likely value.

    `fitted` minimises the mean loss plus half of `precision` (a number, or one per weight) times the squared distance
    to `centre`.
    """
    _, second, slopes, curvature = _bends(model, rows, fitted)
    count, away = _count(rows), trees.flatten(trees.subtract(fitted, centre))[0]
    precision = jnp.broadcast_to(jnp.asarray(precision, jnp.float32), away.shape)
    losses = jax.vmap(lambda x, y: model.loss(fitted, x, y))(rows.x, rows.y)
    missed = jnp.where(rows.mask, losses, 0).sum() + count / 2 * (precision * jnp.square(away)).sum()
    if len(losses) < len(curvature) and len(curvature) > SMALL:  # the same determinant, from the smaller matrix
        bent = jnp.sqrt(second[:, 0]) * slopes[:, 0] / jnp.sqrt(precision)[None]
        scaled = bent @ bent.T / count
    else:
        scaled = curvature / jnp.sqrt(jnp.outer(precision, precision))
    spread = jnp.eye(len(scaled), dtype=scaled.dtype) + scaled
    _, volume = eliminate(spread, jnp.zeros((len(spread), 0), spread.dtype))
    return -count / 2 * jnp.log(jnp.maximum(missed, 1e-20)) - volume


def solve_positive(matrix: Array, right: Array) -> Array:
    """The solution for a symmetric positive definite matrix, for one or several right sides.

    Small ones by elimination, large ones by conjugate gradients: jax 0.10's own solvers can wait for ever
    for each other when several of them run side by side in a program on two cores.
    """
    columns = right if right.ndim == 2 else right[:, None]
    found = eliminate(matrix, columns)[0] if len(matrix) <= SMALL else _conjugate_gradients(matrix, columns)
    return found if right.ndim == 2 else found[:, 0]


def eliminate(matrix: Array, right: Array) -> tuple[Array, Array]:
    """The solution for several right sides, and half the logarithm of the determinant: elimination without pivots."""
    if len(matrix) == 1:
        return right / matrix, jnp.log(jnp.abs(matrix[0, 0])) / 2

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        joined, volume = state
        pivot = joined[k, k]
        row = joined[k] / pivot
        joined = (joined - jnp.outer(joined[:, k], row)).at[k].set(row)
        return joined, volume + jnp.log(jnp.abs(pivot)) / 2

    start = (jnp.concatenate([matrix, right], axis=1), jnp.zeros((), matrix.dtype))
    joined, volume = jax.lax.fori_loop(0, len(matrix), step, start)
    return joined[:, len(matrix) :], volume


def _conjugate_gradients(matrix: Array, right: Array) -> Array:
    """All right sides at once, scaled by the diagonal."""
    diagonal = jnp.maximum(jnp.diagonal(matrix), 1e-12)[:, None]

    def step(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        x, residual, direction, size = state
        image = matrix @ direction
        length = size / jnp.maximum((direction * image).sum(axis=0, keepdims=True), 1e-30)
        x, residual = x + length * direction, residual - length * image
        scaled = residual / diagonal
        new = (residual * scaled).sum(axis=0, keepdims=True)
        return x, residual, scaled + new / jnp.maximum(size, 1e-30) * direction, new

    scaled = right / diagonal
    start = (jnp.zeros_like(right), right, scaled, (right * scaled).sum(axis=0, keepdims=True))
    return jax.lax.fori_loop(0, ITERATIONS, step, start)[0]


def _count(rows: Rows) -> Array:
    return jnp.maximum(rows.mask.sum(), 1).astype(jnp.float32)


def _bends(model: Model, rows: Rows, params: Params) -> tuple[Array, Array, Array, Array]:
    """Of every row: first and second derivative of the loss in the output, and the output's slopes in the weights;
    0 for padding. And the mean curvature of the loss in the weights.
    """

    def of_example(x: Tree, y: Array, real: Array) -> tuple[Array, Array]:
        first, second = loss_slopes(model, jnp.ravel(model.predict(params, x)), y)
        weight = real.astype(jnp.float32)
        return weight * first, weight * second

    first, second = jax.vmap(of_example)(rows.x, rows.y, rows.mask)
    slopes = _output_slopes(model, rows, params)
    bent = jnp.einsum("noq,nqp->nop", second, slopes)
    return first, second, slopes, jnp.einsum("nop,noq->pq", slopes, bent) / _count(rows)


def _output_slopes(model: Model, rows: Rows, params: Params) -> Array:
    """The slopes of every row's output in the weights: (rows, outputs, weights), 0 for padding."""
    flat, unflatten = trees.flatten(params)

    def of_example(x: Tree, real: Array) -> Array:
        slopes = jax.jacrev(lambda flat: jnp.ravel(model.predict(unflatten(flat), x)))(flat)
        return real.astype(jnp.float32) * slopes

    return jax.vmap(of_example)(rows.x, rows.mask)


def loss_slopes(model: Model, out: Array, y: Array) -> tuple[Array, Array]:
    """First and second derivative of one example's loss in the model's output."""

    def loss(out: Array) -> Array:
        return loss_at(model.outcome, out, y)

    return jax.grad(loss)(out), jax.hessian(loss)(out)


def _as_matrix(precision: Array, size: int) -> Array:
    if precision.ndim == 2:
        return precision
    return jnp.diag(jnp.broadcast_to(precision, (size,)))
