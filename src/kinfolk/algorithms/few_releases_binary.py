"""Few releases for yes or no: personal logistic regression at example level, with nothing to choose.

Every client makes fourteen releases, each a bounded vector summed over its rows: a first look at where features lie,
their spread, and twelve gradients at its current model. Everything else is computed by the server, from what was
released: draws that stand in for a client's rows, what clients have in common, which is everybody's prior, and with it
everybody's model (`binary_posterior.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms import binary_posterior
from kinfolk.algorithms.binary_posterior import Evidence, Prior
from kinfolk.algorithms.few_records import Own
from kinfolk.algorithms.linear_posterior import pooling
from kinfolk.algorithms.schedules import factors_of_parts
from kinfolk.closed_form import eliminate
from kinfolk.models import Dense
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.privacy.statistics import FeatureLook, FeatureSpread, LogisticGradient, OneOf
from kinfolk.types import Model, Params, Value

LOOK, SPREAD = 0.03, 0.05
"""Parts of the budget; gradients have the rest."""
LOOK_SHARES = (0.7, 0.3)
"""Of the first look: features, and their squared length."""
DRAWS = 128
"""That stand in for a client's rows."""


@trees.register
@dataclass(frozen=True)
class Shown:
    """All that a client has released, and public numbers: what it sends."""

    rows: Array
    """Its number of examples; 0 before its first round."""
    look: Array
    look_noise: Array
    squares: Array
    """Mean squares of its features about the centre."""
    mean: Array
    """Of its features, from the centre."""
    spread_noise: Array
    """Relative, on each of these."""
    sums: Array
    """Of its released gradients."""
    pushes: Array
    """As `Evidence` has them, for all gradients together."""
    variance: Array
    """Of the noise on the sums."""
    taken: Array
    """How many gradients there were."""
    at: Array


@trees.register
@dataclass(frozen=True)
class Common:
    """What is published about all clients."""

    normal: Array
    """Draws with mean 0 and features of variance 1, independent ones where there are enough draws for that."""
    centre: Array
    """Of features."""
    total: Array
    """Variance of all features together."""
    variance: Array
    """Of each feature."""
    between: Array
    """The part of it that is between clients."""
    prior: Prior
    weights: Array
    """Everybody's model, of all that was released; 0 before the first gradient."""


@trees.register
@dataclass(frozen=True)
class FewReleasesBinary:
    """Fourteen rounds of one release each; later ones do nothing. For logistic models of two classes.

    Features lie between -1 and 1, as a schema scales them. Rows beyond their bounds are cut.
    """

    clip: Value = 0.425
    """Of a gradient, in units of a row's usual length, which is found: at weights of 0 it would be half of that."""
    gradients: int = field(default=12, metadata={"static": True})
    """How many gradients are taken."""

    @property
    def rounds(self) -> int:
        """How many rounds make releases."""
        return self.gradients + 2

    def noise_factors(self, rounds: int) -> list[float]:
        """What noise is multiplied by in each round, so that each has its part of the budget.

        `rounds`: of the run.
        """
        each = (1 - LOOK - SPREAD) / self.gradients
        return factors_of_parts([LOOK, SPREAD, *[each] * self.gradients], rounds)

    def init(self, params: Params, clients: int) -> Common:
        layer = params[0]["weights"] if isinstance(params, tuple) else params["weights"]
        features = layer.shape[0]
        zeros, third = jnp.zeros(features, jnp.float32), jnp.full(features, 1 / 3, jnp.float32)
        prior = binary_posterior.first_prior(features + 1)
        weights = jnp.zeros((clients, features + 1), jnp.float32)
        return Common(_normal(features), zeros, jnp.float32(features / 3), third, zeros, prior, weights)

    def init_client(self, shared: Common, slot: Array) -> Own[Shown]:
        features = shared.centre.size
        zero, zeros = jnp.float32(0), jnp.zeros(features, jnp.float32)
        one_more, pushes = jnp.zeros(features + 1, jnp.float32), jnp.zeros((DRAWS, 2), jnp.float32)
        shown = Shown(
            rows=zero,
            look=one_more,
            look_noise=zero,
            squares=zeros,
            mean=zeros,
            spread_noise=zero,
            sums=one_more,
            pushes=pushes,
            variance=zero,
            taken=zero,
            at=one_more,
        )
        return Own(shown, slot)

    def client(self, shared: Common, personal: Own[Shown], gate: DataGate) -> tuple[Shown, Own[Shown], DataGate]:
        _require_logistic(gate.model)
        shown, part = replace(personal.shown, rows=gate.size), self._part(gate.round)
        weights, clip = shared.weights[personal.slot], self._clip(shared)
        look = FeatureLook(_radius(shared), jnp.stack([jnp.float32(share) for share in LOOK_SHARES]))
        spread = FeatureSpread(shared.centre, *_bounds(shared))
        queries = (look, spread, LogisticGradient(weights, clip))
        found, gate = gate.statistic(OneOf(jnp.minimum(part, 2), queries), part < len(queries))
        noise = gate.relative_noise
        after = (
            lambda: replace(shown, look=found[: shown.look.size], look_noise=noise),
            lambda: _with_spread(shared, shown, found, noise),
            lambda: _with_gradient(shared, shown, queries[2], found, noise),
            lambda: shown,
        )
        shown = jax.lax.switch(part, after)
        return shown, replace(personal, shown=shown), gate

    def _clip(self, shared: Common) -> Array:
        length = jnp.minimum(shared.total + shared.centre @ shared.centre, shared.centre.size)
        return jnp.asarray(self.clip, jnp.float32) * jnp.sqrt(1 + length)

    def _part(self, number: Array) -> Array:
        """What a round is for: the first look, the spread, a gradient, or nothing."""
        return jnp.where(number < self.rounds, jnp.minimum(number, 2), 3)

    def server(self, shared: Common, inbox: Inbox) -> tuple[Common, Inbox]:
        clients: Shown = inbox.stack()
        if len(clients.taken) != len(shared.weights):
            raise ValueError("few_releases_binary hears of every client in every round: leave the cohort out")

        def gradient(shared: Common) -> Common:
            evidence = jax.vmap(_evidence, in_axes=(None, 0))(shared, clients)
            prior, found = binary_posterior.fitted(evidence, shared.prior)
            weights = jnp.where(clients.taken[:, None] > 0, found, shared.weights)  # who is absent keeps its model
            return replace(shared, prior=prior, weights=weights)

        parts = [lambda shared: _looked(shared, clients), lambda shared: _spread(shared, clients), gradient]
        return jax.lax.switch(self._part(inbox.round), [*parts, lambda shared: shared], shared), inbox

    def model(self, shared: Common, personal: Own[Shown]) -> Params:
        newcomer = binary_posterior.centre_of(shared.prior, jnp.float32(0))
        theta = jnp.where(personal.shown.taken > 0, shared.weights[personal.slot], newcomer)
        return ({"weights": theta[1:, None], "bias": theta[:1]},)


def _require_logistic(model: Model) -> None:
    if len(model.layers) != 1 or not isinstance(model.layers[0], Dense) or model.outcome != "binary":
        raise ValueError("few_releases_binary is for logistic models of two classes, or use another method")


def _normal(features: int) -> Array:
    """The same for everybody. More features than half of the draws cannot be independent in them."""
    half = jax.random.normal(jax.random.key(5, impl="threefry2x32"), (DRAWS // 2, features), jnp.float32)
    both = jnp.concatenate([half, -half])
    if features > DRAWS // 2:
        return both / jnp.sqrt(jnp.square(both).mean(axis=0, keepdims=True))
    root = jnp.linalg.cholesky(both.T @ both / DRAWS)
    return both @ eliminate(root, jnp.eye(features, dtype=jnp.float32))[0].T


def _radius(shared: Common) -> Array:
    """Features are cut to this length at the first look."""
    return jnp.sqrt(jnp.float32(shared.centre.size / 2))


def _bounds(shared: Common) -> tuple[Array, Array]:
    """Of features about their centre, and of the vector of their squares."""
    return jnp.sqrt(1.5 * shared.total), 2 * shared.total / jnp.sqrt(jnp.float32(shared.centre.size))


def _draws(shared: Common, shown: Shown) -> Array:
    """Rows that stand in for a client's: with its own mean as far as that is known, and the common spread."""
    noise = jnp.square(jnp.sqrt(jnp.float32(2)) * _bounds(shared)[0] * shown.spread_noise)
    kept = shared.between / (shared.between + noise + 1e-12)
    inside = jnp.maximum(shared.variance - shared.between * kept, 0.05 * shared.variance)
    middle = jnp.clip(shared.centre + kept * shown.mean, -1, 1)
    x = jnp.clip(middle[None, :] + shared.normal * jnp.sqrt(inside)[None, :], -1, 1)
    return jnp.concatenate([jnp.ones((DRAWS, 1), jnp.float32), x], axis=1)


def _evidence(shared: Common, shown: Shown) -> Evidence:
    count = jnp.maximum(shown.taken, 1)
    rows = jnp.where(shown.taken > 0, shown.rows, 0)
    sums, pushes, variance = shown.sums / count, shown.pushes / count, shown.variance / jnp.square(count)
    return Evidence(_draws(shared, shown), sums, pushes, variance, rows, shown.at)


def _with_spread(shared: Common, shown: Shown, found: Array, noise: Array) -> Shown:
    """Squares and means of features, from what was released."""
    size, root = shown.mean.size, jnp.sqrt(jnp.float32(2))
    radius, bound = _bounds(shared)
    squares, mean = root * bound * found[:size], root * radius * found[size : 2 * size]
    return replace(shown, squares=squares, mean=mean, spread_noise=noise)


def _with_gradient(shared: Common, shown: Shown, asked: LogisticGradient, found: Array, noise: Array) -> Shown:
    """A gradient added to the others, with what rows of either answer would have added to it."""
    pushed = binary_posterior.pushes(_draws(shared, shown), asked.weights, asked.clip)
    return replace(
        shown,
        sums=shown.sums + asked.clip * found[: asked.weights.size],
        pushes=shown.pushes + pushed,
        variance=shown.variance + jnp.square(asked.clip * noise),
        taken=shown.taken + 1,
        at=asked.weights,
    )


def _looked(shared: Common, clients: Shown) -> Common:
    """From all first looks: where features lie; the centre is shrunk to 0 by its noise."""
    size, radius = shared.centre.size, _radius(shared)
    weights = pooling(clients.rows, clients.look_noise * clients.rows)
    noise = jnp.sqrt(jnp.square(weights * clients.look_noise).sum())
    found, scales = weights @ clients.look, [radius * LOOK_SHARES[0] ** -0.5, radius**2 * LOOK_SHARES[1] ** -0.5]
    centre = jnp.clip(scales[0] * found[:size], -1, 1)
    unsure = size * jnp.square(scales[0] * noise)
    centre = centre * jnp.maximum(0, 1 - unsure / jnp.maximum(centre @ centre, 1e-9))
    length = radius**2 + scales[1] * found[size]
    total = jnp.clip(length - centre @ centre, size / 60 + scales[1] * noise, size / 2)
    return replace(shared, centre=centre, total=total, variance=jnp.full(size, 1 / size, jnp.float32) * total)


def _spread(shared: Common, clients: Shown) -> Common:
    """Variances of features as far as they are seen to differ, and the parts of them that are between clients."""
    size, usual, root = shared.centre.size, shared.total / shared.centre.size, jnp.sqrt(jnp.float32(2))
    radius, bound = _bounds(shared)
    weights = pooling(clients.rows, clients.spread_noise * clients.rows)
    found, noise = weights @ clients.squares, jnp.square(weights * root * bound * clients.spread_noise).sum()
    found = found * usual / jnp.maximum(found.mean(), 0.3 * usual)
    differ = jnp.maximum(jnp.square(found - usual).mean() - noise, 0)
    variance = jnp.clip(usual + differ / (differ + noise + 1e-12) * (found - usual), 0.05 * usual, 1)
    there = (clients.rows > 0).astype(jnp.float32)
    apart = jnp.square(clients.mean) - jnp.square(root * radius * clients.spread_noise)[:, None]
    between = jnp.maximum((there @ apart) / jnp.maximum(there.sum(), 1), 0)
    between = jnp.minimum((between + between.sum() / size) / 2, 0.9 * variance)
    return replace(shared, variance=variance, between=between)
