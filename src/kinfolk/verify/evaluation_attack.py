"""An attack on an evaluation: everything that it releases of a unit with several rows, at its whole budget."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from kinfolk import models
from kinfolk.accounting import composition
from kinfolk.privacy.clipping import Sum
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.mechanisms import LaplaceSum
from kinfolk.privacy.release import new_meter
from kinfolk.privacy.tables import Board, Unit, counts
from kinfolk.verify.attack import Problem

DELTA = 1e-6
UNITS, ROWS = 4, 3


def board() -> Board:
    """Four bins of the score of a model with one feature, which is the score."""
    params = ({"weights": jnp.ones((1, 1), jnp.float32), "bias": jnp.zeros(1, jnp.float32)},)
    return Board(jnp.asarray([-1, 0, 1], jnp.float32), params, None, models.logistic(1), 0)


def canary() -> Unit:
    """Units of three rows each; all of the first one's, the canary's, are in one cell where nobody else is."""
    x = jnp.zeros((UNITS, ROWS, 1), jnp.float32).at[0].set(5)
    y = jnp.zeros((UNITS, ROWS), jnp.int32).at[0].set(1)
    return Unit(x, y, jnp.zeros((UNITS, ROWS), jnp.int32), jnp.ones((UNITS, ROWS), bool))


def private_evaluation(epsilon: float = 1.0, what: Sum | None = None) -> Problem:
    """One evaluation.

    `epsilon`: what it claims to cost. `what`: another sum than the real one, to be caught.
    """
    mechanism, total = LaplaceSum(jnp.float32(1), jnp.float32(1 / epsilon)), what or counts()
    units, public = canary(), board()

    def observe(key: Array, present: Array, noise: Array) -> Array:
        changed = replace(mechanism, noise_multiplier=noise * mechanism.noise_multiplier)
        mask = jnp.ones(UNITS, bool).at[0].set(present > 0)
        return changed(EVALUATION, new_meter(key, (EVALUATION,)), total, public, units, mask)[0]

    claim = composition.epsilon([(cost, 1) for cost in mechanism.costs()], DELTA)
    return Problem("private_evaluation", "example", "published", claim, DELTA, observe)
