"""One-shot empirical Bayes on all clients at once, for repeated experiments and for very many clients.

It computes what `algorithms/empirical_bayes.py` computes through the gates (a test compares them). Private runs belong
behind the gates: nothing here keeps an account.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.algorithms.covariance_prior import ONLY_SHARED, Prior, group_sparse_prior, low_rank_prior
from kinfolk.algorithms.linear_gaussian import alone, solve
from kinfolk.privacy.moments import symmetric
from kinfolk.types import Value

Rows = tuple[Array, Array, Array]
"""Features (clients, rows, features), targets (clients, rows) and mask (clients, rows)."""
TOGETHER = 32


def one_shot(
    key: Array,
    rows: Rows,
    ridge: Value,
    noise_multiplier: Value,
    pattern: str = "low_rank",
    *,
    laplace: bool = False,
    logistic: bool = False,
    only_shared: bool = False,
) -> tuple[Array, Array]:
    """Every client's model (clients, features), alone and with the shared prior. The clip norm is 1."""
    first = models_alone(rows, ridge, logistic)
    prior = prior_from(key, moment_of(first, pattern), noise_multiplier, first.shape[0], pattern, laplace)
    prior = replace(prior, shapes=ONLY_SHARED) if only_shared else prior
    return first, models_with(rows, prior, ridge, logistic)


@partial(jax.jit, static_argnums=2)
def models_alone(rows: Rows, ridge: Value, logistic: bool = False) -> Array:
    """Every client's single-task model."""
    return _each(lambda x, y, mask: alone(x, y[:, None], mask, ridge, logistic).model[:, 0], rows)


@partial(jax.jit, static_argnums=3)
def models_with(rows: Rows, prior: Prior, ridge: Value, logistic: bool = False) -> Array:
    """Every client's model under a shared prior, self-check included."""
    return _each(lambda x, y, mask: solve(x, y[:, None], mask, prior, ridge, logistic).model[:, 0], rows)


def _each(fit: Callable[[Array, Array, Array], Array], rows: Rows) -> Array:
    """A few clients at a time, so that all their candidates stay in the processor's cache: a third of the time."""
    return jax.lax.map(lambda own: fit(*own), rows, batch_size=TOGETHER)


@partial(jax.jit, static_argnums=1)
def moment_of(models: Array, pattern: str = "low_rank") -> Array:
    """The exact second moment of the models' directions, or its diagonal."""
    unit = models / jnp.maximum(jnp.linalg.norm(models, axis=1, keepdims=True), 1e-20)
    return unit.T @ unit if pattern == "low_rank" else jnp.square(unit).sum(axis=0)


@partial(jax.jit, static_argnums=(4, 5))
def prior_from(
    key: Array, moment: Array, noise_multiplier: Value, clients: Value, pattern: str = "low_rank", laplace: bool = False
) -> Prior:
    """The prior that a noisy release of the moment shows."""
    size = moment.shape[0]
    if pattern == "low_rank":
        noise = symmetric(noise_multiplier * jax.random.normal(key, (size, size)))
        return low_rank_prior(moment + noise, noise_multiplier, clients)
    draw = jax.random.laplace if laplace else jax.random.normal
    noise = noise_multiplier * draw(key, (size,), jnp.float32)
    return group_sparse_prior(moment + noise, noise_multiplier, clients, laplace)


def in_chunks(
    key: Array, chunks: int, rows_of: Callable[[int], Rows], ridge: float, noise_multiplier: float
) -> list[np.ndarray]:
    """Models of very many clients: two passes over chunks of them, so that memory is one chunk's and d x d.

    Between the passes the released prior is cut to the directions that are kept, which is public and saves most work.
    """
    moment, clients = jnp.zeros((), jnp.float32), 0
    for number in range(chunks):
        models = models_alone(rows_of(number), ridge)
        moment, clients = moment + moment_of(models), clients + models.shape[0]
    prior = prior_from(key, moment, noise_multiplier, clients)
    count = max(1, int((prior.spikes > 0).sum(axis=1).max()))
    prior = replace(prior, basis=prior.basis[:, :count], spikes=prior.spikes[:, :count])
    return [np.asarray(models_with(rows_of(number), prior, ridge)) for number in range(chunks)]
