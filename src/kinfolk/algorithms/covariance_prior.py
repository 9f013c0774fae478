"""From a noisy second moment of the clients' models to a Gaussian prior for the next model.

What is public here: the noise, the number of features d and the number of models. A spectrum is believed where it
stands out of what noise alone (privacy noise and the sampling error of the models) would show, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.types import Value

Shapes = tuple[tuple[float, float], ...]
"""Of candidate priors: the share of the bulk that is kept, and the mean variance, relative to a client's own prior."""
SHAPES: Shapes = ((1.0, 1.0), (0.1, 1.0), (0.01, 1.0), (0.0, 1.0), (0.0, 0.1))
ONLY_SHARED: Shapes = ((1.0, 1.0), (0.0, 1.0), (0.0, 0.1))
"""For models that have nothing outside of what they share: all of the bulk, if nothing is known, or none."""
RANKS = (1, 2, 4, 8, 16)
"""Candidates that keep this many of the strongest directions, whatever the noise's edge says."""
TRACY_WIDOM = 3.27
"""99.9 % quantile of the Tracy-Widom law: what the largest eigenvalue of pure noise exceeds in a run of a thousand."""


@trees.register
@dataclass(frozen=True)
class Prior:
    """Several views of a release, each `basis diag(spikes) basis^T + bulk I`, up to a scale that every client finds.

    The first view keeps what stands out of the noise, the others the strongest 1, 2, 4, ... directions: the weaker ones
    may be noise, or the estimation error of the models, which each client sees by how well they explain its own rows.
    """

    basis: Array
    """Columns are orthonormal."""
    spikes: Array
    """(views, columns): zero where nothing is kept."""
    bulk: Array
    """(views,)"""
    shapes: Shapes = field(default=SHAPES, metadata={"static": True})

    @property
    def informative(self) -> Array:
        """Whether there is anything at all to try."""
        return (self.spikes > 0).any()


def isotropic(features: int) -> Prior:
    """The prior of somebody who trains alone."""
    return Prior(jnp.eye(features, dtype=jnp.float32), jnp.zeros((1, features), jnp.float32), jnp.ones(1, jnp.float32))


def low_rank_prior(moment: Array, deviation: Value, models: Value) -> Prior:
    """The prior behind a noisy sum of `models` outer products.

    `deviation`: of the noise on the diagonal; off it there is 1/sqrt(2) of that. Beside directions that the clients
    share, the moment has a bulk: privacy noise (a semicircle of variance d deviation^2 / 2) around a multiple of the
    identity, spread by the finite number of models (variance bulk^2 d / models). A direction stands out if it lies
    beyond the edge of the two together; eigenvalues are shrunk by what noise added to them (spiked Wigner model).
    """
    size = moment.shape[0]
    values, vectors = jnp.linalg.eigh(moment)
    values, vectors = values[::-1], vectors[:, ::-1]
    left = jnp.arange(size, 0, -1, dtype=jnp.float32)
    bulk = jnp.maximum(jnp.cumsum(values[::-1])[::-1] / left, 0)  # of the eigenvalues from here on
    sampling = jnp.square(bulk) * size / models
    variance = left * jnp.square(deviation) / 2 + sampling
    margin = 1 + TRACY_WIDOM * size ** (-2 / 3) / 2
    beyond = (values - bulk > 2 * margin * jnp.sqrt(variance) + bulk * size / models) & (left > 1)
    count = jnp.argmin(beyond)  # the first that does not stand out; the last never does
    counts = jnp.stack([count, *_ranks(size)])
    # What stands out has left the semicircle; the strongest few may be the semicircle's own.
    blurred = (size * jnp.square(deviation) / 2 + sampling[counts]).at[0].set(variance[count])
    excess = jnp.square(values[None, :] - bulk[counts][:, None]) - 4 * blurred[:, None]
    kept = jnp.arange(size)[None, :] < counts[:, None]
    return Prior(vectors, jnp.where(kept, jnp.sqrt(jnp.maximum(excess, 0)), 0), bulk[counts])


def group_sparse_prior(squares: Array, deviation: Value, models: Value, laplace: bool = False) -> Prior:
    """The prior behind a noisy sum of `models` squared models, one value per feature.

    A feature stands out if it exceeds the median by more than the largest of d pure noises is expected to, plus the
    same for the sampling error of the models. `deviation` is the scale b of Laplace noise where `laplace` says so.
    """
    size = squares.shape[0]
    bulk = jnp.maximum(jnp.median(squares), 0)
    largest = jnp.sqrt(2 * jnp.log(jnp.float32(size)))
    noise = deviation * (jnp.log(jnp.maximum(size / 2, 1.0)) if laplace else largest)
    sampling = bulk * jnp.sqrt(2 / jnp.asarray(models, jnp.float32)) * largest
    excess = jnp.maximum(squares - bulk, 0)
    place = jnp.argsort(jnp.argsort(-squares))
    kept = jnp.stack([excess > noise + sampling, *(place < rank for rank in _ranks(size))])
    return Prior(jnp.eye(size, dtype=jnp.float32), jnp.where(kept, excess[None, :], 0), jnp.full(len(kept), bulk))


def _ranks(size: int) -> list[Array]:
    return [jnp.asarray(rank) for rank in RANKS if rank < size]


def spectra(prior: Prior) -> tuple[Array, Array]:
    """Candidate priors `bulk_j I + basis diag(spikes_j) basis^T`: `(bulk_j, spikes_j)`.

    The first is the isotropic one of variance 1, for a client that is better off alone; then all shapes of each view.
    A view that keeps nothing is isotropic.
    """
    size, (floor, variance) = prior.basis.shape[0], jnp.asarray(prior.shapes, jnp.float32).T[:, None, :]
    floors = floor * prior.bulk[:, None]
    known = (prior.spikes > 0).any(axis=1)[:, None]
    scale = variance * size / jnp.where(known, prior.spikes.sum(axis=1)[:, None] + size * floors, 1)
    bulks = jnp.where(known, scale * floors, 1).ravel()
    spikes = (scale[:, :, None] * prior.spikes[:, None, :]).reshape(-1, prior.spikes.shape[1])
    none = jnp.zeros((1, prior.spikes.shape[1]), jnp.float32)
    return jnp.concatenate([jnp.ones(1, jnp.float32), bulks]), jnp.concatenate([none, spikes])


def log_chances(prior: Prior) -> Array:
    """Of the candidates, before data: training alone, what stands out, and the strongest few are equally likely."""
    first = len(prior.shapes)
    rest = first * (prior.bulk.shape[0] - 1)
    groups = [1, *[first] * first, *[rest] * rest]
    return -jnp.log(jnp.asarray(groups, jnp.float32))
