"""Few releases instead of many gradients: personal linear regression at example level, with nothing to choose.

Every client makes seven releases, each a bounded vector summed over its rows: a first look (where features lie, and a
soft histogram of the target over all of its declared range), second moments, four gradients at its current model, and
the errors of three candidates. Everything else is computed from what was released: directions and curvatures
(`feature_shape.py`), the range in which targets lie (`target_range.py`), and what clients have in common, which is
everybody's prior (`linear_posterior.py`). There is no step size, no strength and no number of rounds to find.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms import feature_shape, linear_posterior, target_range
from kinfolk.algorithms.feature_shape import Moments, Shape
from kinfolk.algorithms.linear_posterior import Evidence, Prior
from kinfolk.algorithms.schedules import factors_of_parts
from kinfolk.algorithms.target_range import Habit, Whereabouts
from kinfolk.models import Dense
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.privacy.statistics import FirstLook, Line, Losses, OneOf, Residuals, RowMoments
from kinfolk.types import Model, Params, Value

LOOK, MOMENTS, GUARD = 0.085, 0.15, 0.03
"""Parts of the budget; gradients have the rest."""
LOOK_SHARES = (0.75, 0.2, 0.05)
"""Of the first look: the target's histogram, features, their squared length."""
SQUARE_SHARE = 0.04
"""Of a gradient: the square of what the model misses."""
CAUTION = 4.24
"""Standard errors by which another candidate must be better than the personal model, to be taken instead."""
SMALLEST_CLIP, LARGEST_CLIP = 1.25, 4.0
"""Of a gradient's slopes, in units of their expected length; the less noise, the larger."""
LEAST_NOISE = 1e-9
"""Added to the noise of losses, where there is none: above 0, it says that they were released."""


@trees.register
@dataclass(frozen=True)
class Shown:
    """All that a client has released, and public numbers: its personal state, and what it sends."""

    rows: Array
    """Its number of examples; 0 before its first round."""
    look: Array
    look_noise: Array
    moments: Moments
    evidence: Evidence
    start: Whereabouts
    """Where its targets lie, in units; from its histogram and everybody's."""
    error: Array
    """Variance of an entry of its curvature."""
    losses: Array
    """Mean square that its own model, the common one and a constant miss."""
    losses_noise: Array


@trees.register
@dataclass(frozen=True)
class Common:
    """What is published about all clients."""

    habit: Habit
    unit: Array
    """Targets are counted in it: about as far as one client's scatter."""
    centre: Array
    """Of features."""
    radius: Array
    """Features farther from the centre are cut to it when moments are taken."""
    shape: Shape
    prior: Prior
    losses: Array
    """Of all clients, as `Shown` has a client's."""
    losses_noise: Array


@trees.register
@dataclass(frozen=True)
class Current:
    """A client's model on the way."""

    weights: Array
    spread: Array
    """The trace of their covariance."""
    missed: Array
    """How far they are expected to be off, as a standard deviation, in units."""


@trees.register
@dataclass(frozen=True)
class FewReleases:
    """Seven rounds of one release each; later ones do nothing. For linear models of numbers.

    Features lie between -1 and 1, as a schema scales them. Rows or targets beyond their bounds are cut.
    """

    target_bound: Value = 1.0
    """Targets lie within this distance of 0. A wide bound costs little: where they really lie is found."""
    gradients: int = field(default=4, metadata={"static": True})
    """How many gradients are taken."""

    @property
    def rounds(self) -> int:
        """How many rounds make releases."""
        return self.gradients + 3

    def noise_factors(self, rounds: int) -> list[float]:
        """What noise is multiplied by in each round, so that each has its part of the budget.

        `rounds`: of the run.
        """
        each = (1 - LOOK - MOMENTS - GUARD) / self.gradients
        return factors_of_parts([LOOK, MOMENTS, *[each] * self.gradients, GUARD], rounds)

    def init(self, params: Params, clients: int) -> Common:
        layer = params[0]["weights"] if isinstance(params, tuple) else params["weights"]
        features = layer.shape[0]
        one, zero = jnp.float32(1), jnp.float32(0)
        shape, prior = feature_shape.no_shape(features), linear_posterior.first_prior(features + 1)
        centre = jnp.zeros(features, jnp.float32)
        habit = target_range.nothing_known()
        losses = jnp.zeros(3, jnp.float32)
        return Common(habit, one, centre, one, shape, prior=prior, losses=losses, losses_noise=zero)

    def init_client(self, shared: Common, slot: Array) -> Shown:
        features = shared.centre.size
        zero, zeros = jnp.float32(0), jnp.zeros(features, jnp.float32)
        moments = Moments(jnp.zeros((features, features), jnp.float32), zeros, zero, zero)
        look = jnp.zeros(target_range.NODES + features + 1, jnp.float32)
        evidence = linear_posterior.no_evidence(features + 1)
        return Shown(
            rows=zero,
            look=look,
            look_noise=zero,
            moments=moments,
            evidence=evidence,
            start=Whereabouts(zero, zero, zero),
            error=zero,
            losses=jnp.zeros(3, jnp.float32),
            losses_noise=zero,
        )

    def client(self, shared: Common, personal: Shown, gate: DataGate) -> tuple[Shown, Shown, DataGate]:
        _require_linear(gate.model)
        shown, part = replace(personal, rows=gate.size), self._part(gate.round)
        shown = jax.lax.cond(gate.round == 2, lambda: self._started(shared, shown), lambda: shown)
        own = self._current(shared, shown)
        asked = self._residuals(shared, own, gate.relative_noise)
        losses = Losses(self._line(shared, _candidates(shared, shown, own.weights)), jnp.square(3 * own.missed))
        bound = jnp.asarray(self.target_bound, jnp.float32)
        look = FirstLook(_radius(shown), bound, _numbers(LOOK_SHARES), target_range.NODES)
        queries = (look, RowMoments(shared.centre, shared.radius), asked, losses)
        query = OneOf(jnp.minimum(part, len(queries) - 1), queries)
        found, gate = gate.statistic(query, part < len(queries))
        noise = gate.relative_noise
        after = (
            lambda: replace(shown, look=found[: shown.look.size], look_noise=noise),
            lambda: replace(shown, moments=_moments(shared, found, noise)),
            lambda: _with_gradient(shown, own, asked, found, noise),
            lambda: _with_losses(shown, losses.cap, found, noise),
            lambda: shown,
        )
        shown = jax.lax.switch(part, after)
        return shown, shown, gate

    def _part(self, number: Array) -> Array:
        """What a round is for: the first look, moments, a gradient, the guard, or nothing."""
        part = jnp.where(number < 2, number, jnp.where(number < 2 + self.gradients, 2, 3))
        return jnp.where(number < self.rounds, part, 4)

    def _line(self, shared: Common, weights: Array) -> Line:
        bound = jnp.asarray(self.target_bound, jnp.float32)
        return Line(shared.centre, shared.shape.turn, weights, bound, shared.unit)

    def _started(self, shared: Common, shown: Shown) -> Shown:
        """What a client has to know before its first gradient: its curvature, and where its targets lie."""
        curvature, error = feature_shape.curvature(shown.moments, shared.shape)
        found = target_range.whereabouts(*_histogram(shown), shown.rows, shared.habit)
        scale = jnp.asarray(self.target_bound, jnp.float32) / shared.unit
        start = Whereabouts(scale * found.centre, scale**2 * found.error, scale**2 * found.variance)
        return replace(shown, evidence=replace(shown.evidence, curvature=curvature), start=start, error=error)

    def _current(self, shared: Common, shown: Shown) -> Current:
        """What a client's model is now. Before its first gradient: a constant, from the histogram."""
        weights, covariance = linear_posterior.posterior(shown.evidence, shared.prior)
        inside = shared.prior.residual + (covariance * shown.evidence.curvature).sum()
        started = shown.evidence.rows > 0
        missed = jnp.sqrt(jnp.where(started, inside, shown.start.variance + shown.start.error))
        return Current(
            jnp.where(started, weights, jnp.zeros_like(weights).at[0].set(shown.start.centre)),
            jnp.where(started, jnp.trace(covariance), shared.prior.variance.sum()),
            jnp.clip(missed, 1e-2, self._widest(shared)),
        )

    def _widest(self, shared: Common) -> Array:
        """The most that a model in the targets' range can miss, in units."""
        return 2 * jnp.asarray(self.target_bound, jnp.float32) / shared.unit

    def _residuals(self, shared: Common, own: Current, noise: Array) -> Residuals:
        """A gradient at the current weights, with clips that follow what they are expected to miss."""
        effective = shared.shape.effective
        wide = jnp.clip(jnp.sqrt(1 / (25 * noise + 1e-6)), SMALLEST_CLIP, LARGEST_CLIP)
        clips = jnp.stack([jnp.minimum(2 * own.missed, self._widest(shared)), wide * own.missed * jnp.sqrt(effective)])
        alone, rest = 1 / (1 + jnp.sqrt(effective)), 1 - SQUARE_SHARE
        shares = jnp.stack([rest * alone, rest * (1 - alone), jnp.float32(SQUARE_SHARE)])
        return Residuals(self._line(shared, own.weights), clips, jnp.square(3 * own.missed), shares)

    def server(self, shared: Common, inbox: Inbox) -> tuple[Common, Inbox]:
        clients: Shown = inbox.stack()

        def looked(shared: Common) -> Common:
            return _looked(shared, clients, jnp.asarray(self.target_bound, jnp.float32))

        def moments(shared: Common) -> Common:
            weights = linear_posterior.pooling(clients.rows, clients.moments.noise * clients.rows)
            return replace(shared, shape=feature_shape.pooled_shape(clients.moments, weights))

        def gradient(shared: Common) -> Common:
            return replace(shared, prior=linear_posterior.fitted(clients.evidence, shared.prior))

        def guarded(shared: Common) -> Common:
            weights = linear_posterior.pooling(clients.rows, clients.losses_noise * clients.rows)
            noise = jnp.sqrt(jnp.square(weights * clients.losses_noise).sum())
            return replace(shared, losses=weights @ clients.losses, losses_noise=noise)

        parts = [looked, moments, gradient, guarded, lambda shared: shared]
        return jax.lax.switch(self._part(inbox.round), parts, shared), inbox

    def model(self, shared: Common, personal: Shown) -> Params:
        known = personal.evidence.rows > 0
        candidates = _candidates(shared, personal, self._current(shared, personal).weights)
        everybody = _best(shared.losses, shared.losses_noise)
        own = jnp.where(everybody == 0, _best(personal.losses, personal.losses_noise), everybody)
        guarded = (shared.losses_noise > 0) & (personal.losses_noise > 0)
        theta = candidates[jnp.where(known, jnp.where(guarded, own, 0), 1)]
        weights = shared.unit * (shared.shape.turn @ theta[1:])
        return ({"weights": weights[:, None], "bias": (shared.unit * theta[0] - shared.centre @ weights)[None]},)


def _require_linear(model: Model) -> None:
    if len(model.layers) != 1 or not isinstance(model.layers[0], Dense) or model.outcome != "number":
        raise ValueError("few_releases is for linear models of numbers: use model='linear', or another method")


def _numbers(values: tuple[float, ...]) -> Array:
    """Public constants, written into the program one by one: an array would count as data."""
    return jnp.stack([jnp.float32(value) for value in values])


def _radius(shown: Shown) -> Array:
    """The root of the squared length of features that are spread evenly between -1 and 1."""
    return jnp.sqrt(jnp.float32(shown.moments.mean.shape[-1] / 3))


def _candidates(shared: Common, shown: Shown, own: Array) -> Array:
    """A client's own weights, those of the common model, and a constant of its own."""
    constant = jnp.zeros_like(own).at[0].set(shown.start.centre)
    return jnp.stack([own, linear_posterior.centre_of(shared.prior, shown.rows), constant])


def _histogram(shown: Shown) -> tuple[Array, Array]:
    """A client's soft histogram and the noise on each bar."""
    scale = LOOK_SHARES[0] ** -0.5
    return scale * shown.look[..., : target_range.NODES], scale * shown.look_noise


def _moments(shared: Common, found: Array, noise: Array) -> Moments:
    """Second moments of features about the published centre, from what was released."""
    features, unit = shared.centre.size, jnp.sqrt(jnp.float32(2)) * shared.radius
    products = unit * shared.radius * found[: features**2].reshape(features, features)
    mean = unit * found[features**2 : features**2 + features]
    return Moments((products + products.T) / 2, mean, unit * shared.radius * noise, unit * noise)


def _with_gradient(shown: Shown, own: Current, asked: Residuals, found: Array, noise: Array) -> Shown:
    """A gradient added to the others; with the curvature it says where the client's own weights are.

    An inexact curvature matters the more, the farther the weights are from their estimate.
    """
    before, scales = shown.evidence, asked.clips / jnp.sqrt(asked.shares[:2])
    places = jnp.minimum(jnp.arange(own.weights.size, dtype=jnp.int32), 1)
    slope, deviation = found[: own.weights.size] * scales[places], noise * scales[places]
    inexact = places.astype(jnp.float32) * shown.error * own.spread
    weight = 1 / (jnp.square(deviation) + inexact + 1e-9)
    total = jnp.where(before.rows > 0, 1 / before.noise, 0) + weight
    share = weight / total
    target = (1 - share) * before.target + share * (slope + before.curvature @ own.weights)
    half = asked.cap / 2
    square = half * (found[own.weights.size] / jnp.sqrt(asked.shares[2]) + 1)
    evidence = Evidence(
        before.curvature,
        target,
        1 / total,
        shown.rows,
        own.weights,
        square,
        half * noise / jnp.sqrt(asked.shares[2]),
    )
    return replace(shown, evidence=evidence)


def _with_losses(shown: Shown, cap: Array, found: Array, noise: Array) -> Shown:
    """The errors of the candidates."""
    count = shown.losses.size
    root = jnp.sqrt(jnp.float32(count))
    return replace(
        shown, losses=cap / 2 * (root * found[:count] + 1), losses_noise=cap / 2 * root * noise + LEAST_NOISE
    )


def _looked(shared: Common, clients: Shown, bound: Array) -> Common:
    """From all first looks: the range of targets, and where features lie."""
    features, radius = shared.centre.size, _radius(clients)
    histograms, noise = _histogram(clients)
    habit = target_range.habit(histograms, noise, clients.rows)
    found = jax.vmap(target_range.whereabouts, in_axes=(0, 0, 0, None))(histograms, noise, clients.rows, habit)
    weights = linear_posterior.pooling(clients.rows, clients.look_noise * clients.rows)
    unit = bound * jnp.sqrt(weights @ found.variance)
    rest, noise = weights @ clients.look[:, target_range.NODES :], jnp.sqrt((weights**2) @ clients.look_noise**2)
    scales = [radius * LOOK_SHARES[1] ** -0.5, radius**2 * LOOK_SHARES[2] ** -0.5]
    centre = jnp.clip(scales[0] * rest[:features], -1, 1)
    length, length_noise = radius**2 + scales[1] * rest[features], scales[1] * noise
    unsure = features * jnp.square(scales[0] * noise)
    variance = length - centre @ centre + unsure + length_noise
    variance = jnp.clip(variance, 0.02 * radius**2 + length_noise, radius**2 + unsure)
    spread = jnp.clip(jnp.square(habit.spread * bound / unit), 0.05, 1e3)
    prior = replace(
        shared.prior,
        mean=shared.prior.mean.at[0].set(habit.centre * bound / unit),
        variance=shared.prior.variance.at[0].set(spread),
    )
    return replace(
        shared, habit=habit, unit=jnp.maximum(unit, 1e-6), centre=centre, radius=jnp.sqrt(1.5 * variance), prior=prior
    )


def _best(losses: Array, noise: Array) -> Array:
    """The candidate with the least loss; the first, unless another is better by more than noise explains."""
    return jnp.argmin(losses.at[1:].add(CAUTION * noise))
