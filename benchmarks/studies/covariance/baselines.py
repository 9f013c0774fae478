"""What covariance sharing is compared with: least squares for all clients at once, `x` (clients, rows, features).

Nothing here goes through the gates. The private ones are example-level methods, as Liang et al. describe and run them:
with noise on what a fit returns, scaled to the largest slope of the loss on the data, an estimate that they call too
small, which is in these methods' favour. The texts of Gupta et al. and of Pathak et al. themselves were not read: our
DP-MTRL and DP-AGGR are not theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk.types import Value


def ridge_alone(x: Array, y: Array, ridge: Value) -> Array:
    """Single-task l2: every client alone."""
    size = x.shape[2]

    def one(x: Array, y: Array) -> Array:
        return jnp.linalg.solve(x.T @ x + ridge * jnp.eye(size, dtype=x.dtype), x.T @ y)

    return jax.vmap(one)(x, y)


def lasso_alone(x: Array, y: Array, strength: Value, rounds: int = 400) -> Array:
    """Single-task l1: every client alone, by accelerated proximal gradient."""

    def shrunk(models: Array, amount: Array) -> Array:
        return jnp.sign(models) * jnp.maximum(jnp.abs(models) - amount, 0)

    return proximal(x, y, shrunk, strength, rounds)


def trace_norm(x: Array, y: Array, strength: Value, rounds: int = 400) -> Array:
    """Non-private multi-task learning with a trace-norm penalty on all models together."""

    def shrunk(models: Array, amount: Array) -> Array:
        left, values, right = jnp.linalg.svd(models, full_matrices=False)
        return (left * jnp.maximum(values - amount, 0)[None, :]) @ right

    return proximal(x, y, shrunk, strength, rounds)


def group_lasso(x: Array, y: Array, strength: Value, rounds: int = 400) -> Array:
    """Non-private multi-task learning with an l2,1 penalty: features are used by all clients or by none."""

    def shrunk(models: Array, amount: Array) -> Array:
        norms = jnp.linalg.norm(models, axis=0, keepdims=True)
        return models * jnp.maximum(0, 1 - amount / jnp.maximum(norms, 1e-20))

    return proximal(x, y, shrunk, strength, rounds)


def proximal(x: Array, y: Array, shrunk: Callable[[Array, Array], Array], strength: Value, rounds: int) -> Array:
    """Accelerated proximal gradient for the sum over clients of squared error / 2 plus a penalty."""
    smooth = jax.vmap(lambda x: jnp.linalg.norm(x, ord=2))(x).max() ** 2
    step = 1 / smooth

    def turn(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        point, before, momentum = carry
        gradient = jnp.einsum("mnd,mn->md", x, jnp.einsum("mnd,md->mn", x, point) - y)
        after = shrunk(point - step * gradient, step * strength)
        following = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        return (after + (momentum - 1) / following * (after - before), after, following), None

    zero = jnp.zeros((x.shape[0], x.shape[2]), jnp.float32)
    (_, models, _), _ = jax.lax.scan(turn, (zero, zero, jnp.float32(1)), length=rounds)
    return models


def relationship(
    key: Array, x: Array, y: Array, strength: Value, ridge: Value, noise: Value = 0.0, rounds: int = 3
) -> Array:
    """Task-relationship learning (MTRL), or DP-MTRL with `noise`, a multiplier of what one example can change.

    Alternates the exact least-squares fit of all models under the penalty `strength tr(W Omega^-1 W^T) + ridge |W|^2`,
    noise on the models, and Omega = (W W^T)^(1/2) / trace, W (clients, features). Noise is added to every model in
    every alternation. The first one has Omega = 1 and is ridge regression.
    """
    clients, size = x.shape[0], x.shape[2]
    grams, sides = jnp.einsum("mnd,mne->mde", x, x), jnp.einsum("mnd,mn->md", x, y)

    def fit(precision: Array) -> Array:
        """Conjugate gradients on all models; `precision` is the inverse of Omega."""

        def apply(models: Array) -> Array:
            return jnp.einsum("mde,me->md", grams, models) + strength * precision @ models + ridge * models

        scale = (jnp.trace(grams, axis1=1, axis2=2) / size + ridge + strength * jnp.diag(precision))[:, None]
        return jax.scipy.sparse.linalg.cg(apply, sides, tol=1e-6, maxiter=200, M=lambda models: models / scale)[0]

    def turn(state: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
        precision, smallest = state
        models = fit(precision)
        changed = output_sensitivity(slopes(x, y, models), ridge + strength * smallest)
        models = models + noise * changed[:, None] * jax.random.normal(key, models.shape)
        left, values, _ = jnp.linalg.svd(models, full_matrices=False)
        share = values / jnp.maximum(values.sum(), 1e-12) + 1e-3 / clients
        rest = clients / 1e-3
        precision = rest * (jnp.eye(clients) - left @ left.T) + (left / share[None, :]) @ left.T
        mean = jnp.trace(precision) / clients
        return (precision / mean, 1 / (share.max() * mean)), models

    start = jnp.eye(clients, dtype=jnp.float32), jnp.float32(1)
    _, found = jax.lax.scan(turn, start, jax.random.split(key, rounds))
    return found[-1]


def averaged(key: Array, x: Array, y: Array, ridge: Value, noise: Value = 0.0) -> Array:
    """DP-AGGR: the mean of models that were trained alone, for all; `noise` multiplies what an example can change.

    That is what it changes of one model, divided by the number of clients.
    """
    models = ridge_alone(x, y, ridge)
    changed = output_sensitivity(slopes(x, y, models).max(), ridge) / x.shape[0]
    mean = models.mean(axis=0)
    return jnp.broadcast_to(mean + noise * changed * jax.random.normal(key, mean.shape), models.shape)


def slopes(x: Array, y: Array, models: Array) -> Array:
    """The largest slope of the squared error / 2 in any of a client's rows, which have norm 1: its largest residual."""
    return jnp.abs(jnp.einsum("mnd,md->mn", x, models) - y).max(axis=1)


def output_sensitivity(slope: Value, convexity: Value) -> Array:
    """How far replacing one example moves a fit: twice its slope over the penalty's strong convexity.

    The penalty stands beside a *summed* loss (beside a mean loss over n rows it would be n times smaller).
    """
    return 2 * jnp.asarray(slope) / convexity
