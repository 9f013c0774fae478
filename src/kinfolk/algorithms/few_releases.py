"""Few releases instead of many gradients: personal linear regression at example level, with nothing to choose.

Every client makes seven releases, each a bounded vector summed over its rows: a first look (where features lie, and a
soft histogram of the target over all of its declared range), second moments, four gradients at its current model, and
the errors of three candidates. Everything else is computed from what was released, nearly all of it by the server:
directions and curvatures (`feature_shape.py`), the range in which targets lie (`target_range.py`), and what clients
have in common, which is everybody's prior, and with it everybody's model (`linear_posterior.py`). There is no step
size, no strength and no number of rounds to find.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms import feature_shape, linear_posterior, target_range
from kinfolk.algorithms.feature_shape import Moments
from kinfolk.algorithms.few_records import Common, Current, Own, Shown
from kinfolk.algorithms.linear_posterior import Evidence, Fitted
from kinfolk.algorithms.schedules import factors_of_parts
from kinfolk.algorithms.target_range import Whereabouts
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
LEAST_MISSED = 1e-2
"""Of a model, in units: clips are never smaller."""
LEAST_NOISE = 1e-9
"""Added to the noise of losses, where there is none: above 0, it says that they were released."""


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
        habit, nowhere = target_range.nothing_known(), jnp.zeros(clients, jnp.float32)
        start, weights = Whereabouts(nowhere, nowhere, nowhere), jnp.zeros((clients, features + 1), jnp.float32)
        current = Current(weights, nowhere, jnp.ones(clients, jnp.float32))
        losses = jnp.zeros(3, jnp.float32)
        return Common(
            habit=habit,
            unit=one,
            centre=centre,
            radius=one,
            shape=shape,
            prior=prior,
            start=start,
            current=current,
            losses=losses,
            losses_noise=zero,
        )

    def init_client(self, shared: Common, slot: Array) -> Own[Shown]:
        features = shared.centre.size
        zero, zeros = jnp.float32(0), jnp.zeros(features, jnp.float32)
        moments = Moments(jnp.zeros((features, features), jnp.float32), zeros, zero, zero)
        look = jnp.zeros(target_range.NODES + features + 1, jnp.float32)
        evidence = linear_posterior.no_evidence(features + 1)
        shown = Shown(
            rows=zero,
            look=look,
            look_noise=zero,
            moments=moments,
            evidence=evidence,
            error=zero,
            losses=jnp.zeros(3, jnp.float32),
            losses_noise=zero,
        )
        return Own(shown, slot)

    def client(self, shared: Common, personal: Own[Shown], gate: DataGate) -> tuple[Shown, Own[Shown], DataGate]:
        _require_linear(gate.model)
        shown, part = replace(personal.shown, rows=gate.size), self._part(gate.round)
        shown = jax.lax.cond(gate.round == 2, lambda: _with_curvature(shared, shown), lambda: shown)
        own = trees.row(shared.current, personal.slot)
        asked = self._residuals(shared, own, gate.relative_noise)
        candidates = _candidates(shared, replace(personal, shown=shown))
        losses = Losses(self._line(shared, candidates), jnp.square(3 * own.missed))
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
        return shown, replace(personal, shown=shown), gate

    def _part(self, number: Array) -> Array:
        """What a round is for: the first look, moments, a gradient, the guard, or nothing."""
        part = jnp.where(number < 2, number, jnp.where(number < 2 + self.gradients, 2, 3))
        return jnp.where(number < self.rounds, part, 4)

    def _line(self, shared: Common, weights: Array) -> Line:
        bound = jnp.asarray(self.target_bound, jnp.float32)
        return Line(shared.centre, shared.shape.turn, weights, bound, shared.unit)

    def _constants(self, shared: Common) -> Current:
        """Everybody's model before the first gradient."""
        start, nothing = shared.start, jnp.zeros_like(shared.current.weights)
        missed = jnp.clip(jnp.sqrt(start.variance + start.error), LEAST_MISSED, self._widest(shared))
        spread = jnp.zeros_like(start.centre) + shared.prior.variance.sum()
        return Current(nothing.at[:, 0].set(start.centre), spread, missed)

    def _found(self, shared: Common, evidence: Evidence, found: Fitted) -> Current:
        """Everybody's model after a gradient; who has shown none keeps the one before."""
        inside = found.prior.residual + (found.covariance * evidence.curvature).sum(axis=(1, 2))
        missed = jnp.clip(jnp.sqrt(inside), LEAST_MISSED, self._widest(shared))
        now = Current(found.weights, jnp.trace(found.covariance, axis1=1, axis2=2), missed)
        return trees.choose_rows(evidence.rows > 0, now, shared.current)

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
        if len(clients.rows) != len(shared.current.spread):
            raise ValueError("few_releases hears of every client in every round: leave the cohort out")

        def looked(shared: Common) -> Common:
            shared = _looked(shared, clients, jnp.asarray(self.target_bound, jnp.float32))
            return replace(shared, current=self._constants(shared))

        def moments(shared: Common) -> Common:
            weights = linear_posterior.pooling(clients.rows, clients.moments.noise * clients.rows)
            return replace(shared, shape=feature_shape.pooled_shape(clients.moments, weights))

        def gradient(shared: Common) -> Common:
            found = linear_posterior.fitted(clients.evidence, shared.prior)
            return replace(shared, prior=found.prior, current=self._found(shared, clients.evidence, found))

        def guarded(shared: Common) -> Common:
            weights = linear_posterior.pooling(clients.rows, clients.losses_noise * clients.rows)
            noise = jnp.sqrt(jnp.square(weights * clients.losses_noise).sum())
            return replace(shared, losses=weights @ clients.losses, losses_noise=noise)

        parts = [looked, moments, gradient, guarded, lambda shared: shared]
        return jax.lax.switch(self._part(inbox.round), parts, shared), inbox

    def model(self, shared: Common, personal: Own[Shown]) -> Params:
        shown = personal.shown
        known = shown.evidence.rows > 0
        candidates = _candidates(shared, personal)
        everybody = _best(shared.losses, shared.losses_noise)
        own = jnp.where(everybody == 0, _best(shown.losses, shown.losses_noise), everybody)
        guarded = (shared.losses_noise > 0) & (shown.losses_noise > 0)
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


def _candidates(shared: Common, personal: Own[Shown]) -> Array:
    """A client's own weights, those of the common model, and a constant of its own."""
    own = shared.current.weights[personal.slot]
    constant = jnp.zeros_like(own).at[0].set(shared.start.centre[personal.slot])
    return jnp.stack([own, linear_posterior.centre_of(shared.prior, personal.shown.rows), constant])


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


def _with_curvature(shared: Common, shown: Shown) -> Shown:
    """What a client has to know before its first gradient."""
    curvature, error = feature_shape.curvature(shown.moments, shared.shape)
    return replace(shown, evidence=replace(shown.evidence, curvature=curvature), error=error)


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
    unit = jnp.maximum(unit, 1e-6)
    scale = bound / unit
    start = Whereabouts(scale * found.centre, scale**2 * found.error, scale**2 * found.variance)
    radius = jnp.sqrt(1.5 * variance)
    return replace(shared, habit=habit, unit=unit, centre=centre, radius=radius, prior=prior, start=start)


def _best(losses: Array, noise: Array) -> Array:
    """The candidate with the least loss; the first, unless another is better by more than noise explains."""
    return jnp.argmin(losses.at[1:].add(CAUTION * noise))
