"""From a noisy second moment of the clients' models to a Gaussian prior for the next model.

What is public here: the noise, the number of features d and the number of models. A spectrum is believed where it
stands out of what noise alone (privacy noise and the sampling error of the models) would show, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.types import Value

FLOORS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0)
"""How much of the bulk a candidate prior keeps: from all of it down to the spikes alone."""
TRACY_WIDOM = 3.27
"""99.9 % quantile of the Tracy-Widom law: what the largest eigenvalue of pure noise exceeds in a run of a thousand."""


@trees.register
@dataclass(frozen=True)
class Prior:
    """`basis diag(spikes) basis^T + bulk I`, up to its scale, which every client finds from its own data."""

    basis: Array
    """Columns are orthonormal."""
    spikes: Array
    """Zero where nothing stands out of the noise."""
    bulk: Array

    @property
    def informative(self) -> Array:
        """Whether anything at all stands out."""
        return (self.spikes > 0).any()


def isotropic(features: int) -> Prior:
    """The prior of somebody who trains alone."""
    return Prior(jnp.eye(features, dtype=jnp.float32), jnp.zeros(features, jnp.float32), jnp.float32(1))


def low_rank_prior(moment: Array, deviation: Value, models: Value) -> Prior:
    """The prior behind a noisy sum of `models` outer products.

    `deviation`: of the noise on the diagonal; off it there is 1/sqrt(2) of that. Beside directions that the clients
    share, the moment has a bulk: privacy noise (a semicircle of variance d deviation^2 / 2) around a multiple of the
    identity, spread by the finite number of models (variance bulk^2 d / models). A direction counts if it lies beyond
    the edge of the two together; its eigenvalue is shrunk by what noise added to it (spiked Wigner model).
    """
    size = moment.shape[0]
    values, vectors = jnp.linalg.eigh(moment)
    values, vectors = values[::-1], vectors[:, ::-1]
    left = jnp.arange(size, 0, -1, dtype=jnp.float32)
    bulk = jnp.maximum(jnp.cumsum(values[::-1])[::-1] / left, 0)  # of the eigenvalues from here on
    variance = left * jnp.square(deviation) / 2 + jnp.square(bulk) * size / models
    margin = 1 + TRACY_WIDOM * size ** (-2 / 3) / 2
    beyond = (values - bulk > 2 * margin * jnp.sqrt(variance) + bulk * size / models) & (left > 1)
    count = jnp.argmin(beyond)  # the first that does not stand out; the last never does
    excess = jnp.square(values - bulk[count]) - 4 * variance[count]
    spikes = jnp.where(jnp.arange(size) < count, jnp.sqrt(jnp.maximum(excess, 0)), 0)
    return Prior(vectors, spikes, bulk[count])


def group_sparse_prior(squares: Array, deviation: Value, models: Value, laplace: bool = False) -> Prior:
    """The prior behind a noisy sum of `models` squared models, one value per feature.

    A feature counts if it exceeds the median by more than the largest of d pure noises is expected to, plus the same
    for the sampling error of the models. `deviation` is the scale b of Laplace noise where `laplace` says so.
    """
    size = squares.shape[0]
    bulk = jnp.maximum(jnp.median(squares), 0)
    largest = jnp.sqrt(2 * jnp.log(jnp.float32(size)))
    noise = deviation * (jnp.log(jnp.maximum(size / 2, 1.0)) if laplace else largest)
    sampling = bulk * jnp.sqrt(2 / jnp.asarray(models, jnp.float32)) * largest
    excess = squares - bulk
    spikes = jnp.where(excess > noise + sampling, excess, 0)
    return Prior(jnp.eye(size, dtype=jnp.float32), spikes, bulk)


def spectra(prior: Prior) -> tuple[Array, Array]:
    """Candidate priors `bulk_j I + basis diag(spikes_j) basis^T`, each of mean variance 1: `(bulk_j, spikes_j)`.

    The first is the isotropic one, for a client that is better off alone; the others keep ever less of the bulk.
    """
    size = prior.basis.shape[0]
    floors = jnp.asarray(FLOORS, jnp.float32) * prior.bulk
    trace = prior.spikes.sum() + size * floors
    scale = jnp.where(trace > 0, size / jnp.where(trace > 0, trace, 1), 0)
    known = prior.informative
    bulks = jnp.where(known, scale * floors, 1)
    spikes = jnp.where(known, scale, 0)[:, None] * prior.spikes[None, :]
    none = jnp.zeros((1, prior.spikes.shape[0]), jnp.float32)
    return jnp.concatenate([jnp.ones(1, jnp.float32), bulks]), jnp.concatenate([none, spikes])
