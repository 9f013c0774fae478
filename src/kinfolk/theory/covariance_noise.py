"""Privacy of covariance sharing: theorem 1, corollary 1, lemma 1 and proposition 3 of Liang et al.

A round releases `W W^T` (features x features) or `W^T W` (tasks x tasks) of all clients' models, columns of W cut to
norm K, plus Wishart noise: as many degrees of freedom as its size and one more, a scale of `sensitivity / (2
epsilon_t)`.

* **Lemma 1** (clients that learn alone): holds, with nothing to compute: what others return does not depend on me.
* **Theorem 1** and **corollary 1** (each release is epsilon_t-private with delta 0, all together by
  `published_epsilon`): wrong. Noise that is positive semi-definite never takes away what a client adds, so some outputs
  are impossible with the client that are possible without (`published_delta`: at epsilon 0.1 a share of 0.095). For
  `W^T W` (`tasks_change`) it is more, and grows with the clients: 0.21 with 8 of one direction, 0.76 with 320. The
  scale is wrong too: algorithms 2 and 3 print the sensitivity 2K, while line 3 of algorithm 1 defines it by squared
  norms, K^2.
* **Equation 7**, the composition itself, holds for releases that are epsilon_t-private (`published_epsilon`).
* **Proposition 3** (n examples, the textbook conversion): holds; `group_delta` is a little smaller.

>>> round(published_delta(0.1), 4)
0.0952
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kinfolk.limits import whole
from kinfolk.theory.ranges import (
    CHANCE,
    CHANCE_OR_NEVER,
    CHANCE_OR_SURE,
    COUNT,
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    require,
    require_each,
)


def gaussian_spectral_norm(features: int, deviation: float) -> float:
    """About the largest eigenvalue of symmetric Gaussian noise, `deviation` on the diagonal, 1/sqrt(2) of it off it.

    `features`: d, the matrix's size.
    """
    require(COUNT, features=features)
    require(NOT_NEGATIVE, deviation=deviation)
    return deviation * math.sqrt(2 * features)


def wishart_spectral_norm(features: int, scale: float) -> float:
    """About the largest eigenvalue of Wishart noise: `features` + 1 degrees of freedom, `scale` times the identity.

    All of its eigenvalues are positive: unlike Gaussian noise it also adds about (features + 1) scale everywhere.
    """
    require(COUNT, features=features)
    require(NOT_NEGATIVE, scale=scale)
    return scale * (math.sqrt(features + 1) + math.sqrt(features)) ** 2


def published_scale(clip: float, epsilon: float) -> float:
    """The scale of the published noise at one release's `epsilon`, `clip` being K, by the paper's own definition."""
    require(POSITIVE, clip=clip, epsilon=epsilon)
    return clip**2 / (2 * epsilon)


def published_delta(epsilons: float | Sequence[float], printed_clip: float | None = None) -> float:
    """The probability that the published releases show an output that is impossible if one client is there.

    The published claim is delta 0 for each release. Over rounds the exponents add up.

    With E = scale * G^T G the noise, without the client of model w (norm K), the output is impossible with it exactly
    if `E - w w^T` has a negative eigenvalue, that is if w^T E^-1 w > 1. For features + 1 degrees of freedom
    K^2 / w^T E^-1 w is scale times a chi-square variable with 2 degrees of freedom, hence the exponential.

    `epsilons`: of each release. `printed_clip`: the clip norm K where the noise has the scale that the paper prints,
    2K, instead of its definition's.
    """
    require_each(NOT_NEGATIVE, epsilons=epsilons)
    total = float(np.sum(epsilons))
    if printed_clip is None:
        return -math.expm1(-total)
    require(POSITIVE, printed_clip=printed_clip)
    return -math.expm1(-printed_clip * total / 2)


def published_epsilon(epsilons: np.ndarray | Sequence[float], delta: float) -> float:
    """Equation 7: releases that are each epsilon_t-private are together (this, delta)-private; the least of three.

    `epsilons`: of each release. `delta`: what is promised; 0 is possible, and leaves their sum.
    """
    require_each(NOT_NEGATIVE, epsilons=epsilons)
    require(CHANCE_OR_NEVER, delta=delta)
    e = np.asarray(epsilons, float)
    plain, squares = e.sum(), np.square(e).sum()
    if not delta:
        return float(plain)
    drift = float((e * np.tanh(e / 2)).sum())  # (exp e - 1) / (exp e + 1)
    first = drift + math.sqrt(2 * math.log(1 / delta) * squares)
    second = drift + math.sqrt(2 * math.log(math.e + math.sqrt(squares) / delta) * squares)
    return min(float(plain), first, second)


def group_delta(size: int, epsilon: float, delta: float) -> float:
    """Proposition 3: protecting one of n examples with (epsilon, delta) protects all with (n epsilon, this), at most 1.

    Exactly `delta (e^(n epsilon) - 1) / (e^epsilon - 1)`; the paper has the larger `n e^(n epsilon) delta`.

    `size`: n, of the largest client. `epsilon`, `delta`: of one example.
    """
    require(COUNT, size=size)
    require(NOT_NEGATIVE, epsilon=epsilon)
    require(CHANCE_OR_SURE, delta=delta)
    if not epsilon or not delta:
        return min(1.0, size * delta)
    ratio = math.log(-math.expm1(-size * epsilon)) - math.log(-math.expm1(-epsilon))
    return math.exp(min(0.0, math.log(delta) + (size - 1) * epsilon + ratio))


def tasks_change(models: np.ndarray, client: int) -> np.ndarray:
    """How `W^T W` differs with a client and with zeros in its place: a row and a column, eigenvalues of both signs.

    `models`: one row for each client. `client`: which one.
    """
    require_each(FINITE, models=models)
    models = np.asarray(models, float)
    require(whole(0, len(models) - 1, "it is the number of a row of models"), client=client)
    without = models.copy()
    without[client] = 0
    return models @ models.T - without @ without.T


def tasks_sensitivity(clients: int, clip: float) -> float:
    """Of `W^T W` in Frobenius norm under zero-out, `K^2 sqrt(2 m - 1)`, where all models may lie in one direction.

    That of `W W^T` is K^2 whatever m is, and both have the same eigenvalues, at most m K^2 together. Gaussian noise
    with multiplier z then has a spectral norm of about 2 z m K^2 here, and sqrt(2 d) z K^2 there: the tasks' matrix is
    drowned for every z above 1/2, however many clients there are.

    `clients`: m. `clip`: K.
    """
    require(COUNT, clients=clients)
    require(POSITIVE, clip=clip)
    return clip**2 * math.sqrt(2 * clients - 1)


def subspace_error(features: int, clients: int, rank: int, noise_multiplier: float) -> float:
    """What share of a shared direction the sound release misses, clients' directions being spread evenly over `rank`.

    The released spike is about clients / rank (in squared clip norms), the noise's semicircle has the deviation
    noise_multiplier * sqrt(features / 2), and the missed share of a spike theta is (deviation / theta)^2, at most 1.
    So it falls as d r^2 z^2 / m^2, with z about sqrt(log(1/delta)) / epsilon: twice the clients are worth twice the
    epsilon.

    `features`: d. `clients`: m. `noise_multiplier`: z.
    """
    require(COUNT, features=features, clients=clients, rank=rank)
    require(NOT_NEGATIVE, noise_multiplier=noise_multiplier)
    ratio = noise_multiplier * math.sqrt(features / 2) * rank / clients
    return min(1.0, ratio**2)


def smallest_epsilon(features: int, clients: int, rank: int, delta: float) -> float:
    """About the epsilon from which a low-rank release shows anything: where the spike leaves the noise's semicircle.

    `features`: d. `clients`: m. `rank`: r. `delta`: what is promised.
    """
    require(COUNT, features=features, clients=clients, rank=rank)
    require(CHANCE, delta=delta)
    return math.sqrt(2 * math.log(1.25 / delta)) * math.sqrt(features / 2) * rank / clients
