"""Few releases for models of classes: every client's bounded sums with the noise that its budget buys, simulated.

A first look (where features lie, how long they are), their spread, and gradients at the client's current model: each
is a vector of every row within a public bound, so leaving a row out moves a sum by at most the bound, and the noise of
a release with a share a of the budget is bound / (mu sqrt(a)). Shares add up to 1. All else is computed from these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.studies.few_releases import class_posterior
from benchmarks.studies.few_releases.class_posterior import Shown, misses
from kinfolk.data.federation import Federation

LOOKED = (0.7, 0.3)
"""Of the first look: features, and their squared length."""
DRAWS = 128
"""That stand in for a client's rows."""


@dataclass(frozen=True)
class Variant:
    """How the budget is spent, and what is estimated."""

    gradients: int
    look: float
    spread: float
    """Shares of the budget; gradients have what is left."""
    left: float = 0.0
    """A share that is not spent here (a guard's)."""
    products: bool = False
    """Whether all products of features are released, or their squares only."""
    clip: float = 0.85
    """Of a gradient, in units of its usual length at the start."""
    with_size: tuple[bool, bool] = (True, True)
    """Whether constants and slopes may go with a client's size."""


FOUR = Variant(4, look=0.05, spread=0.15, left=0.03, products=True, clip=1.0, with_size=(True, False))
"""The shares of the pseudo-code that this began with: four gradients, and all second moments."""
TWELVE = Variant(12, look=0.03, spread=0.05)
"""Three times as many gradients, and squares of features only."""


@dataclass(frozen=True)
class Rows:
    """Clients' rows, filled up to the same number."""

    x: np.ndarray
    y: np.ndarray
    there: np.ndarray
    sizes: np.ndarray

    def total(self, contributions: np.ndarray) -> np.ndarray:
        """Every client's sum of its rows' vectors."""
        return np.einsum("ki,kia->ka", self.there, contributions)


@dataclass(frozen=True)
class Budget:
    """Noise on a sum of vectors within length 1 at each client's whole budget."""

    noise: np.ndarray
    generator: np.random.Generator

    def deviation(self, bound: float, share: float) -> np.ndarray:
        """Of the noise on each number of a sum of vectors within the bound."""
        return bound * self.noise / math.sqrt(share)

    def release(self, sums: np.ndarray, bound: float, share: float) -> np.ndarray:
        """The sums with noise."""
        return sums + self.deviation(bound, share)[:, None] * self.generator.normal(size=sums.shape)


@dataclass(frozen=True)
class Place:
    """Where features lie, over all clients."""

    centre: np.ndarray
    variance: float
    """Of all features together."""


def rows_of(data: Federation) -> Rows:
    """The training rows."""
    x, sizes = np.asarray(data.train.x, float), np.asarray(data.train.sizes, float)
    there = (np.arange(x.shape[1]) < sizes[:, None]).astype(float)
    return Rows(
        np.nan_to_num(x) * there[:, :, None], np.asarray(data.train.y).astype(int) * there.astype(int), there, sizes
    )


def fitted(data: Federation, noise: np.ndarray, variant: Variant, generator: np.random.Generator) -> np.ndarray:
    """Weights of every client: (client, 1 and features, output), outputs as the library's models have them.

    `noise`: on a sum of vectors within length 1, at each client's whole budget.
    """
    rows, budget, outputs = rows_of(data), Budget(noise, generator), max(1, data.classes if data.classes > 2 else 1)
    place = _looked(rows, budget, variant)
    draws = _draws(rows, budget, variant, place)
    clients, features = rows.x.shape[0], rows.x.shape[2]
    x = np.concatenate([np.ones((*rows.x.shape[:2], 1)), rows.x], axis=2)
    share = (1 - variant.look - variant.spread - variant.left) / variant.gradients
    usual = 0.5 if outputs == 1 else 0.8 * math.sqrt(1 - 1 / outputs)
    clip = variant.clip * usual * math.sqrt(1 + min(place.variance + place.centre @ place.centre, features))
    weights, prior = np.zeros((clients, features + 1, outputs)), class_posterior.first_prior(features, outputs)
    sums, pushes = np.zeros((clients, (features + 1) * outputs)), 0
    for number in range(variant.gradients):
        each = np.take_along_axis(misses(x, weights, clip), rows.y[:, :, None, None], axis=2)[:, :, 0]
        gradient = np.einsum("ki,kia,kic->kac", rows.there, x, each, optimize=True).reshape(clients, -1)
        sums = sums + budget.release(gradient, clip, share) / rows.sizes[:, None]
        pushes = pushes + misses(draws, weights, clip)
        taken = number + 1
        variance = np.square(budget.deviation(clip, share) / rows.sizes) / taken
        shown = Shown(rows.sizes, draws, sums / taken, pushes / taken, variance)
        weights = class_posterior.settled(shown, prior, weights, variant.with_size)
    return weights


def _within(vectors: np.ndarray, bound: float) -> np.ndarray:
    return vectors * np.minimum(1, bound / np.maximum(np.linalg.norm(vectors, axis=2, keepdims=True), 1e-9))


def _looked(rows: Rows, budget: Budget, variant: Variant) -> Place:
    """From the first look; the centre is shrunk to 0 by its noise."""
    features, every = rows.x.shape[2], rows.sizes.sum()
    radius, shares = math.sqrt(features / 2), [variant.look * part for part in LOOKED]
    centre = budget.release(rows.total(_within(rows.x, radius)), radius, shares[0]).sum(axis=0) / every
    unsure = np.square(budget.deviation(radius, shares[0])).sum() / every**2
    centre = np.clip(centre, -1, 1)
    centre = centre * max(0.0, 1 - features * unsure / max(centre @ centre, 1e-9))
    length = np.minimum(np.square(rows.x).sum(axis=2, keepdims=True), 2 * radius**2) - radius**2
    released = radius**2 + budget.release(rows.total(length), radius**2, shares[1]).sum() / every
    noise = math.sqrt(np.square(budget.deviation(radius**2, shares[1])).sum()) / every
    return Place(centre, float(np.clip(released - centre @ centre, features / 60 + noise, features / 2)))


def _draws(rows: Rows, budget: Budget, variant: Variant, place: Place) -> np.ndarray:
    """Normal draws with each client's mean and the common spread, cut to -1..1, with a 1 in front."""
    apart = rows.x - place.centre
    radius = math.sqrt(1.5 * place.variance)
    apart = _within(apart, radius)
    covariance = (_from_products if variant.products else _from_squares)(rows, apart, budget, variant, place)
    bound = math.sqrt(2) * radius
    mean = budget.release(rows.total(apart), bound, variant.spread) / rows.sizes[:, None]
    noise = np.square(budget.deviation(bound, variant.spread) / rows.sizes)[:, None]
    own = np.diag(covariance)
    between = np.maximum((np.square(mean) - noise).mean(axis=0), 0)
    between = np.minimum((between + between.mean()) / 2, 0.9 * own)
    kept = between / (between + noise + 1e-12)
    inside = np.sqrt(np.maximum(1 - between / own + between * (1 - kept) / own, 0.05))
    turned = _normal(own.size) @ np.linalg.cholesky(covariance + 1e-9 * np.eye(own.size)).T
    middle = np.clip(place.centre + kept * mean, -1, 1)
    x = np.clip(middle[:, None, :] + turned[None] * inside[:, None, :], -1, 1)
    return np.concatenate([np.ones((*x.shape[:2], 1)), x], axis=2)


def _normal(features: int) -> np.ndarray:
    """The same for everybody: with mean 0, and independent features of variance 1, exactly."""
    half = np.random.default_rng(5).normal(size=(DRAWS // 2, features))
    both = np.concatenate([half, -half])
    return both @ np.linalg.inv(np.linalg.cholesky(both.T @ both / DRAWS)).T


def _from_squares(rows: Rows, apart: np.ndarray, budget: Budget, variant: Variant, place: Place) -> np.ndarray:
    """Variances of features, as far as they are seen to differ; released with their means, in half of the share."""
    features, every, usual = apart.shape[2], rows.sizes.sum(), place.variance / apart.shape[2]
    bound = 2 * place.variance / math.sqrt(features)
    squares = rows.total(_within(np.square(apart), bound))
    bound = math.sqrt(2) * bound
    found = budget.release(squares, bound, variant.spread).sum(axis=0) / every
    noise = np.square(budget.deviation(bound, variant.spread)).sum() / every**2
    found = found * usual / max(found.mean(), 0.3 * usual)
    differ = max(np.square(found - usual).mean() - noise, 0.0)
    found = usual + differ / (differ + noise) * (found - usual)
    return np.diag(np.clip(found, 0.05 * usual, 1))


def _from_products(rows: Rows, apart: np.ndarray, budget: Budget, variant: Variant, place: Place) -> np.ndarray:
    """The covariance, freed from the noise of its eigenvalues; released with the means, in half of the share."""
    features, every = apart.shape[2], rows.sizes.sum()
    bound = math.sqrt(2) * 1.5 * place.variance
    products = np.einsum("ki,kia,kib->kab", rows.there, apart, apart, optimize=True).reshape(len(apart), -1)
    found = budget.release(products, bound, variant.spread).sum(axis=0).reshape(features, features) / every
    values, vectors = np.linalg.eigh((found + found.T) / 2)
    edge = math.sqrt(2 * features * np.square(budget.deviation(bound, variant.spread)).sum()) / every
    seen = values > 1.02 * edge
    freed = np.where(seen, (values + np.sqrt(np.maximum(values**2 - edge**2, 0))) / 2, 0)
    rest = max((place.variance - freed.sum()) / max((~seen).sum(), 1), 0.02 * place.variance / features)
    return (vectors * np.where(seen, np.maximum(freed, rest), rest)) @ vectors.T
