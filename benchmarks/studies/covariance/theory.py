"""What theory says about sharing a covariance: how large the noises are, and what the published one really promises.

>>> round(published_delta(0.1), 4)
0.0952
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def gaussian_spectral_norm(features: int, deviation: float) -> float:
    """About the largest eigenvalue of symmetric Gaussian noise, `deviation` on the diagonal, 1/sqrt(2) of it off it."""
    return deviation * math.sqrt(2 * features)


def wishart_spectral_norm(features: int, scale: float) -> float:
    """About the largest eigenvalue of Wishart noise: features + 1 degrees of freedom, `scale` times the identity.

    All of its eigenvalues are positive: unlike Gaussian noise it also adds about (features + 1) scale everywhere.
    """
    return scale * (math.sqrt(features + 1) + math.sqrt(features)) ** 2


def published_scale(clip: float, epsilon: float) -> float:
    """The scale of the published noise, by the paper's own definition."""
    return clip**2 / (2 * epsilon)


def published_delta(epsilons: float | Sequence[float], printed_clip: float | None = None) -> float:
    """The probability that the published releases show an output that is impossible if one client is there.

    The published claim is delta 0 for each release. `printed_clip`: the clip norm K where the noise has the scale that
    the paper prints, 2K, instead of its definition's. Over rounds the exponents add up.

    With W = scale * G^T G the noise, without the client of model w (norm K), the output is impossible with it exactly
    if `W - w w^T` has a negative eigenvalue, that is if w^T W^-1 w > 1. For features + 1 degrees of freedom
    K^2 / w^T W^-1 w is scale times a chi-square variable with 2 degrees of freedom, hence the exponential.
    """
    total = float(np.sum(epsilons))
    return -math.expm1(-total if printed_clip is None else -printed_clip * total / 2)


def subspace_error(features: int, clients: int, rank: int, noise_multiplier: float) -> float:
    """What share of a shared direction the release misses, clients' directions being spread evenly over `rank`.

    The released spike is about clients / rank (in squared clip norms), the noise's semicircle has the deviation
    noise_multiplier * sqrt(features / 2), and the missed share of a spike theta is (deviation / theta)^2, at most 1.
    So it falls as d r^2 z^2 / m^2, with z about sqrt(log(1/delta)) / epsilon: twice the clients are worth twice the
    epsilon.
    """
    ratio = noise_multiplier * math.sqrt(features / 2) * rank / clients
    return min(1.0, ratio**2)


def smallest_epsilon(features: int, clients: int, rank: int, delta: float) -> float:
    """About the epsilon from which a low-rank release shows anything: where the spike leaves the noise's semicircle."""
    return math.sqrt(2 * math.log(1.25 / delta)) * math.sqrt(features / 2) * rank / clients


def iterative_rates(features: int, clients: int, epsilon: float, accelerated: bool = False) -> dict[str, float]:
    """How the iterative method's excess error scales, up to constants and logarithms, by a rough argument of our own.

    The paper's text was not at hand, so its bounds are not repeated here. A noisy proximal step is off by the noise's
    spectral norm (low-rank: about d K^2 / epsilon) or one of its entries (group-sparse: K^2 / epsilon), per sqrt(m) of
    all models' norm; this is balanced against the optimisation error after T rounds, 1/T or (accelerated) 1/T^2, with
    epsilon / sqrt(T) for each round.
    """
    power = 2 if accelerated else 1

    def balanced(entry: float) -> float:
        noise = entry / (math.sqrt(clients) * epsilon)
        return noise ** (2 * power / (2 * power + 1))

    return {"low_rank": balanced(features), "group_sparse": balanced(1.0)}
