"""Two ways to release the second moment of the clients' models, `sum of w w^T`: one that is private, one that is not.

`wishart_as_published` is here to be attacked and compared with, and for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import trees
from kinfolk.privacy import clipping
from kinfolk.privacy.mechanisms import Cost, GaussianSum
from kinfolk.privacy.release import Meter, PrivacyError
from kinfolk.types import Value

SECOND_MOMENT = "second_moment"


@trees.register
@dataclass(frozen=True)
class SymmetricGaussian:
    """The sum of `w w^T` over models of norm at most `clip`, plus symmetric Gaussian noise.

    Written as a vector with the entries off the diagonal times sqrt(2), `w w^T` has norm |w|^2, and clipping that
    vector to clip^2 is clipping w to `clip`. So this is a Gaussian sum of such vectors, with its grid and its cost; in
    the matrix the noise is `noise_multiplier * clip^2` on the diagonal and 1/sqrt(2) of that off it.
    """

    clip: Value
    noise_multiplier: Value

    def __call__(self, kind: str, meter: Meter, models: Array, mask: Array) -> tuple[Array, Meter]:
        """The noisy sum over the rows of `models`, and the meter with one more use."""
        summed, meter = self._sum()(kind, meter, clipping.rows(lambda _, w: outer_vector(w)), (), models, mask)
        return matrix_of(summed, models.shape[1]), meter

    def _sum(self) -> GaussianSum:
        return GaussianSum(jnp.square(jnp.asarray(self.clip, jnp.float32)), self.noise_multiplier)

    def costs(self) -> list[Cost]:
        return [Cost("gaussian", float(np.asarray(self.noise_multiplier)))]


def outer_vector(w: Array) -> Array:
    """The upper triangle of `w w^T` as a vector whose norm is |w|^2."""
    rows, columns = np.triu_indices(w.shape[0])
    factor = jnp.where(rows == columns, jnp.float32(1), jnp.sqrt(jnp.float32(2)))
    return factor * w[rows] * w[columns]


def matrix_of(vector: Array, size: int) -> Array:
    """The symmetric matrix that `outer_vector` took apart."""
    rows, columns = np.triu_indices(size)
    entries = vector / jnp.where(rows == columns, jnp.float32(1), jnp.sqrt(jnp.float32(2)))
    upper = jnp.zeros((size, size), vector.dtype).at[rows, columns].set(entries)
    return upper + upper.T - jnp.diag(jnp.diag(upper))


@trees.register
@dataclass(frozen=True)
class WishartAsPublished:
    """NOT PRIVATE, for comparison only: the sum of `w w^T` plus Wishart noise, as a paper proposed it.

    The noise is positive semi-definite, so outputs near the boundary are impossible once a client has joined: with
    probability `1 - exp(-epsilon)` the output without a client cannot have come from the data with it, and no finite
    epsilon holds. It is not a release, so the flow check refuses it, and it has no cost, so no ledger can be charged.
    """

    clip: Value
    epsilon: Value

    def __call__(self, key: Array, models: Array, mask: Array) -> Array:
        """The noisy sum over the rows of `models`. The scale is `clip^2 / (2 epsilon)`, by the paper's definition."""
        size = models.shape[1]
        clip = jnp.asarray(self.clip, jnp.float32)
        kept = jax.vmap(clipping.clip_one, in_axes=(0, 0, None))(models, mask.astype(jnp.float32), clip)
        factor = clip / jnp.sqrt(2 * jnp.asarray(self.epsilon, jnp.float32))
        normal = factor * jax.random.normal(key, (size + 1, size), jnp.float32)
        return kept.T @ kept + normal.T @ normal

    def costs(self) -> list[Cost]:
        raise PrivacyError("wishart_as_published is not private: there is nothing a ledger could be charged")
