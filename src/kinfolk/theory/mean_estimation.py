"""Mean estimation: the smallest problem in which strength, privacy and heterogeneity can be worked out exactly.

Client k has n examples from N(w_k, sigma^2), and w_k ~ N(centre, tau^2). It releases the mean of its examples with
noise; that estimate has variance `v` around w_k. Mean regularisation with strength s returns `(estimate_k + s * mean of
estimates) / (1 + s)`. Liu, Hu, Wu and Smith (2022), section 6: lemma 6.1 to theorem 6.8, all of which hold with two
corrections.

* They are printed as conditional on all clients' examples. Given those, the privacy noise says nothing about a client's
  true mean, and the posterior would be that without noise (`Problem.posterior` with noise 0); what is meant is given
  the *released* estimates. Of averaging (proposition 6.6) and at other strengths than the best (lemma 6.7, theorem 6.8)
  errors are averages over estimates too: given them the error is `Problem.error_given`, which at other estimates is
  another number. Training alone (proposition 6.5) is printed as given the client's own examples; then it is v, as said.
* The unknown centre counts as drawn from a flat prior. Then the best strength also gives the best estimate of all;
  where something is known about the centre, there is a better one.

Its noise on the sum of examples cut to c is half of what its own definition of privacy needs (`printed_noise`).

>>> world = Problem(clients=20, examples=200, sigma=0.4, tau=0.08, noise=14.567)
>>> round(world.best_strength, 2), round(world.best_error, 5)
(0.95, 0.00327)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk import limits
from kinfolk.roots import root
from kinfolk.theory.ranges import CHANCE, COUNT, FINITE, NOT_NEGATIVE, POSITIVE, STRENGTH, require, require_each

Values = np.ndarray | Sequence[float]
"""One number for each client."""


@dataclass(frozen=True)
class Problem:
    """Clients that are alike: as many examples, the same spread, the same privacy."""

    clients: int
    """K."""
    examples: int
    """n, of each client."""
    sigma: float
    """Standard deviation of a client's examples."""
    tau: float
    """Standard deviation of the clients' true means."""
    noise: float = 0.0
    """Standard deviation of the privacy noise on the *sum* of a client's examples (the paper's sigma_DP)."""

    def __post_init__(self) -> None:
        limits.settle(self)

    @property
    def variance(self) -> float:
        """v, of a client's own estimate around its true mean: sampling and privacy (equation 5)."""
        return self.sigma**2 / self.examples + self.noise**2 / self.examples**2

    @property
    def best_strength(self) -> float:
        """s* = v / tau^2 (theorem 6.3): infinite where clients do not differ, which is federated averaging."""
        return self.variance / self.tau**2 if self.tau else math.inf

    @property
    def best_error(self) -> float:
        """Mean squared error of a client's estimate at the best strength (corollary 6.4)."""
        v, between = self.variance, self.tau**2
        return v * (v + self.clients * between) / (self.clients * (v + between)) if v else 0.0

    def error(self, strength: float) -> float:
        """Mean squared error at a `strength`; 0 is training alone, infinity is federated averaging (lemma 6.7)."""
        require(STRENGTH, strength=strength)
        share, v = 1 - 1 / self.clients, self.variance
        if math.isinf(strength):
            return share * self.tau**2 + v / self.clients
        return share * (v + strength**2 * self.tau**2) / (1 + strength) ** 2 + v / self.clients

    def error_given(self, estimates: Values, strength: float) -> np.ndarray:
        """Each client's expected squared error at a strength *given* the released estimates: `error` is its mean.

        The posterior's variance, and how far the regularised estimate is from the posterior's mean.

        `estimates`: one for each client, along the last axis. `strength`: s.
        """
        require(STRENGTH, strength=strength)
        middle, variance = self.posterior(estimates)
        return variance + (regularised(estimates, strength) - middle) ** 2

    @property
    def gain_over_local(self) -> float:
        """How much lower the best error is than that of training alone, given its own examples (proposition 6.5)."""
        v = self.variance
        return (1 - 1 / self.clients) * v**2 / (v + self.tau**2) if v else 0.0

    @property
    def gain_over_averaging(self) -> float:
        """How much lower the best error is than that of federated averaging, on average (proposition 6.6)."""
        between = self.tau**2
        return (1 - 1 / self.clients) * between**2 / (self.variance + between) if between else 0.0

    def cost_of_privacy(self, strength: float) -> float:
        """The part of the error at a `strength` that privacy noise adds (theorem 6.8): it falls with the strength."""
        require(STRENGTH, strength=strength)
        own = self.noise**2 / self.examples**2
        kept = 0.0 if math.isinf(strength) else (1 - 1 / self.clients) / (1 + strength) ** 2
        return own * (kept + 1 / self.clients)

    def posterior(self, estimates: Values) -> tuple[np.ndarray, float]:
        """Where the clients' true means lie, given all estimates: means and variance of normal laws (lemma 6.2).

        The centre counts as unknown (a flat prior). The means are the estimates regularised with the best strength
        (theorem 6.3), the variance is the best error (corollary 6.4).

        `estimates`: one for each client, along the last axis.
        """
        require_each(FINITE, estimates=estimates)
        estimates = np.asarray(estimates, float)
        if estimates.shape[-1] != self.clients:
            raise ValueError(f"estimates has {estimates.shape[-1]} clients along its last axis, not {self.clients}")
        if not self.variance or self.clients == 1:
            return estimates, self.variance
        others = (estimates.sum(axis=-1, keepdims=True) - estimates) / (self.clients - 1)
        own, theirs = 1 / self.variance, (self.clients - 1) / (self.clients * self.tau**2 + self.variance)
        return (own * estimates + theirs * others) / (own + theirs), 1 / (own + theirs)


def printed_noise(clip: float, epsilon: float, delta: float) -> float:
    """The paper's sigma_DP, `c sqrt(2 log(1.25/delta)) / epsilon`, on the sum of a client's examples cut to c.

    Enough where an example is left out, or replaced by 0. The paper's neighbours replace one by another, which moves
    the sum by up to 2c: by this formula that needs twice as much. Proved for an epsilon of at most 1; refused above.

    `clip`: c. `epsilon`, `delta`: what is promised for one example.
    """
    require(POSITIVE, clip=clip)
    require(limits.above(0, 1, "it is proved up to 1"), epsilon=epsilon)
    require(CHANCE, delta=delta)
    return clip * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def own_share(strength: float, clients: int) -> float:
    """The weight of a client's own estimate in its regularised one; the others share the rest equally (lemma 6.1)."""
    require(STRENGTH, strength=strength)
    require(COUNT, clients=clients)
    return (1 + (clients - 1) / (1 + strength)) / clients


def regularised(estimates: Values, strengths: Values | float, weights: Values | None = None) -> np.ndarray:
    """Each estimate pulled to the weighted mean of all: `(estimate_k + s_k mean) / (1 + s_k)`. Clients: last axis."""
    require_each(FINITE, estimates=estimates)
    require_each(STRENGTH, strengths=strengths)
    require_each(NOT_NEGATIVE, weights=1.0 if weights is None else weights)
    estimates = np.asarray(estimates, float)
    weights = np.ones(estimates.shape[-1]) if weights is None else np.asarray(weights, float)
    all_weights = weights.sum(axis=-1, keepdims=True)
    require_each(POSITIVE, all_weights=all_weights)
    mean = (estimates * weights).sum(axis=-1, keepdims=True) / all_weights
    keep = 1 / (1 + np.asarray(strengths))
    return mean + keep * (estimates - mean)


# Clients that are not alike: client k's estimate has its own variance v_k, which is public.


def silo_strengths(variances: Values, between: float) -> np.ndarray:
    """s_k = v_k / tau^2: a noisy client leans on the others, a precise one on itself. `between` is tau^2."""
    require_each(NOT_NEGATIVE, variances=variances)
    require(NOT_NEGATIVE, between=between)
    return np.asarray(variances) / between if between else np.full(np.shape(variances), np.inf)


def precision_weights(variances: Values, between: float) -> np.ndarray:
    """Weights `1 / (tau^2 + v_k)` of the mean, divided by their sum."""
    weights = 1 / _total(variances, between)
    return weights / weights.sum()


def shrunk(estimates: Values, variances: Values, between: float) -> np.ndarray:
    """The best linear estimate given tau^2: silo-specific strengths, precision-weighted mean."""
    return regularised(estimates, silo_strengths(variances, between), precision_weights(variances, between))


def shrunk_error(variances: Values, between: float) -> np.ndarray:
    """Each client's mean squared error under `shrunk` with the true tau^2.

    Shrinking towards the true centre leaves `v tau^2 / (v + tau^2)`; that the centre is estimated, with variance
    `1 / sum 1/(tau^2 + v_j)`, adds its share.
    """
    v, total = np.asarray(variances, float), _total(variances, between)
    return v * between / total + (v / total) ** 2 / (1 / total).sum()


def der_simonian_laird(estimates: Values, variances: Values) -> float:
    """tau^2 by matching one moment (DerSimonian and Laird): closed form, good while tau is not large."""
    estimates, variances = _several(estimates, variances)
    precision = 1 / variances
    mean = (precision * estimates).sum() / precision.sum()
    spread = (precision * (estimates - mean) ** 2).sum()
    scale = precision.sum() - (precision**2).sum() / precision.sum()
    return float(max(0.0, (spread - (len(estimates) - 1)) / scale))


def paule_mandel(estimates: Values, variances: Values) -> float:
    """tau^2 such that the precision-weighted spread is what it should be, K - 1: better when tau is large."""
    estimates, variances = _several(estimates, variances)

    def excess(between: float) -> float:
        weights = 1 / (between + variances)
        mean = (weights * estimates).sum() / weights.sum()
        return float((weights * (estimates - mean) ** 2).sum()) - (len(estimates) - 1)

    if excess(0.0) <= 0:
        return 0.0
    high = float(np.var(estimates) * 2 + variances.max())
    while excess(high) > 0:
        high *= 2
    return root(excess, 0.0, high)


def _total(variances: Values, between: float) -> np.ndarray:
    """v_k + tau^2, of an estimate around the centre."""
    require_each(NOT_NEGATIVE, variances=variances)
    require(NOT_NEGATIVE, between=between)
    total = np.asarray(variances, float) + between
    if not total.all():
        raise ValueError(f"between={between} and a variance of 0: such an estimate is the centre; leave out the others")
    return total


def _several(estimates: Values, variances: Values) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and variances of clients that can be compared."""
    require_each(FINITE, estimates=estimates)
    require_each(POSITIVE, variances=variances)
    estimates, variances = np.asarray(estimates, float), np.asarray(variances, float)
    if estimates.ndim != 1 or estimates.shape != variances.shape or len(estimates) < 2:
        raise ValueError(
            f"estimates of shape {estimates.shape} and variances of shape {variances.shape}: "
            "give one of each for every client, and two clients or more"
        )
    return estimates, variances
