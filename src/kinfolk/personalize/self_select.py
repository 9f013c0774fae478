"""Self-selection: every client decides on its own data, for free, how much of the shared model to use.

It fits candidates: models held near the shared one, and near nothing at all, each more or less strongly. They are
judged by what they say about rows that were left out (exact for linear regression, one Newton step otherwise; five
folds for deep models and for linear ones of many classes and features). Linear models are averaged: classifiers by
their left-out losses and by that of the average itself, regressions by their evidence, which says more when rows are
few. Of deep models one is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.closed_form import SMALL, bounded_newton, evidence, fitted_and_left_out
from kinfolk.models import Dense, error
from kinfolk.outcomes import loss_at
from kinfolk.personalize.fine_tune import FineTuneAfterwards
from kinfolk.privacy.gates import DataGate
from kinfolk.types import Model, Params, Rows, Tree, Value

RULES = ("aggregate", "cautious", "alone")
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FOLDS = 5
FREE = 1e-5
"""The strength with which a number's intercept is held near 0 where it is free: a target's mean may be far from 0."""
MIXINGS = 20
"""Steps towards the best average of classifiers."""


class Candidate(NamedTuple):
    """A model that a client may take; several have an axis in front."""

    model: Params
    outputs: Tree
    """Of a linear model, for every row: what a fit without it says."""
    losses: Array
    """Of every row, by a fit without it; 0 for padding."""
    evidence: Array
    """Of a linear regression, as a logarithm; else 0."""


class Held(NamedTuple):
    """What a candidate is held near, and how; several have an axis in front."""

    centre: Params
    strength: Array
    free: Array
    """Whether the intercept is left free."""


@trees.register
@dataclass(frozen=True)
class SelfSelect:
    """`aggregate` averages all candidates by their merits: best on average. `cautious` stays alone unless
    a shared candidate wins by `margin` standard errors: fewest clients harmed. `alone` ignores the shared model.

    "Never worse than alone" cannot be promised: a client's own rows say nothing about directions that they do not span,
    so candidates of linear models may be at most `reach` times as far from the best model fitted alone as that is from
    zero.
    """

    reach: Value = 2.0
    margin: Value = 2.0
    step_size: Value = 0.1
    """For models that are not linear, like `steps`."""
    rule: str = field(default="aggregate", metadata={"static": True})
    strengths: tuple[float, ...] = field(default=STRENGTHS, metadata={"static": True})
    steps: int = field(default=30, metadata={"static": True})

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule={self.rule!r} is not one of {RULES}")
        if not self.strengths:
            raise ValueError("strengths must hold at least one number")
        object.__setattr__(self, "strengths", tuple(self.strengths))

    def __call__(self, common: Params, model: Params, gate: DataGate) -> Params:
        return self.choose(gate.model, gate.examples(), common)

    def choose(self, functions: Model, rows: Rows, common: Params) -> Params:
        """The model that a client with these rows ends up with."""
        return self.beside_alone(functions, rows, common)[0]

    def beside_alone(self, functions: Model, rows: Rows, common: Params) -> tuple[Params, Params]:
        """The model that a client with these rows ends up with, and the best one that it could have fitted alone."""
        nothing = functions.init(jax.random.key(0))
        alone = [(nothing, False), (nothing, True)] if _regression(functions) else [(nothing, False)]
        shared = [] if self.rule == "alone" else [(common, False)]
        every = self._candidates(functions, rows, self._held(alone + shared))
        own = trees.row(every, slice(0, len(alone) * len(self.strengths)))
        best = trees.row(own, jnp.argmin(own.losses.sum(axis=1)))
        if self.rule == "alone":
            return best.model, best.model
        as_it_is = jax.tree.map(lambda leaf: leaf[None], _unchanged(functions, rows, common))
        held = trees.concatenate([trees.row(every, slice(len(own.losses), None)), as_it_is])
        if is_linear(functions):
            held = held._replace(model=jax.vmap(lambda one: _within(best.model, one, self.reach))(held.model))
        if self.rule == "cautious":
            winner = trees.row(held, jnp.argmin(held.losses.sum(axis=1)))
            gain = _gain(rows, best.losses - winner.losses, self.margin)
            return trees.choose(gain > 0, winner.model, best.model), best.model
        return _together(functions, rows, trees.concatenate([own, held])), best.model

    def _held(self, places: list[tuple[Params, bool]]) -> Held:
        """Every place at every strength."""
        count = len(self.strengths)
        centres = [centre for centre, _ in places for _ in range(count)]
        free = jnp.array([free for _, free in places for _ in range(count)])
        return Held(_stacked(centres), jnp.array(self.strengths * len(places), jnp.float32), free)

    def _candidates(self, model: Model, rows: Rows, held: Held) -> Candidate:
        """The models held near these, each with what fits without single rows, or folds of them, say."""
        if is_linear(model) and not _wide(model, trees.row(held.centre, 0)):

            def one(held: Held) -> Candidate:
                precision = _precision(held)
                steps = 1 if model.outcome == "number" else 6
                fitted, outputs = fitted_and_left_out(model, rows, held.centre, precision, steps)
                known = evidence(model, rows, fitted, held.centre, precision) if _regression(model) else jnp.float32(0)
                return Candidate(fitted, outputs, _losses(model, rows, outputs), known)

        else:
            tune = FineTuneAfterwards(1.0, self.step_size, self.steps, "mean", "shared")
            fold = jnp.arange(rows.mask.shape[0], dtype=jnp.int32) % FOLDS

            def fit(held: Held, mask: Array) -> Params:
                own = replace(rows, mask=mask)
                if is_linear(model):
                    return bounded_newton(model, own, held.centre, held.strength)
                return replace(tune, strength=held.strength).fit(model, own, held.centre, held.centre)

            def one(held: Held) -> Candidate:
                def without(number: Array) -> Array:
                    params = fit(held, rows.mask & (fold != number))
                    return _outputs(model, rows, params) if is_linear(model) else _scores(model, rows, params)

                said = jax.lax.map(without, jnp.arange(FOLDS, dtype=jnp.int32))[fold, jnp.arange(len(fold))]
                fitted, known = fit(held, rows.mask), jnp.float32(0)
                if is_linear(model):
                    return Candidate(fitted, said, _losses(model, rows, said), known)
                return Candidate(fitted, (), jnp.where(rows.mask, said, 0), known)

        return jax.lax.map(one, held)


@trees.register
@dataclass(frozen=True)
class BesideAlone:
    """Self-selection that also shows what clients would have alone: both from one program, and one set of candidates.

    As what clients do afterwards it returns a pair of models.
    """

    chosen: SelfSelect

    def __call__(self, common: Params, model: Params, gate: DataGate) -> tuple[Params, Params]:
        return self.chosen.beside_alone(gate.model, gate.examples(), common)


def is_linear(model: Model) -> bool:
    """Whether the model's output is linear in its weights."""
    return len(model.layers) == 1 and isinstance(model.layers[0], Dense)


def _regression(model: Model) -> bool:
    """Whether it is a linear regression, whose evidence is known."""
    return is_linear(model) and model.outcome == "number"


def _wide(model: Model, params: Params) -> bool:
    """Whether a linear model of classes has more weights than a matrix of all of them should have rows."""
    return model.outcome == "classes" and trees.size(params) > SMALL


def _stacked(models: list[Params]) -> Params:
    """Models as one, with an axis in front."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)


def _precision(held: Held) -> Array:
    """How strongly each weight of a linear model is held."""
    (layer,) = held.centre
    bias = jnp.where(held.free, FREE, held.strength)
    every = {"weights": jnp.full_like(layer["weights"], held.strength), "bias": jnp.full_like(layer["bias"], bias)}
    return trees.flatten((every,))[0]


def _unchanged(model: Model, rows: Rows, common: Params) -> Candidate:
    """The shared model itself."""
    if not is_linear(model):
        return Candidate(common, (), jnp.where(rows.mask, _scores(model, rows, common), 0), jnp.float32(0))
    outputs = _outputs(model, rows, common)
    losses = _losses(model, rows, outputs)
    known = -rows.mask.sum() / 2 * jnp.log(jnp.maximum(losses.sum(), 1e-20)) if _regression(model) else jnp.float32(0)
    return Candidate(common, outputs, losses, known)


def _together(model: Model, rows: Rows, every: Candidate) -> Params:
    """What candidates make together: an average of linear models; else the best one, as an average means nothing."""
    if not is_linear(model):
        return trees.row(every.model, jnp.argmin(every.losses.sum(axis=1)))
    shares = jax.nn.softmax(every.evidence) if _regression(model) else _shares(model, rows, every)
    return jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, axes=1), every.model)


def _shares(model: Model, rows: Rows, every: Candidate) -> Array:
    """Each candidate's share in the average with the least sum of three: the average's left-out loss, the mean of the
    candidates' own, and the divergence from equal shares (Q-aggregation: Dai, Rigollet and Zhang, 2012).

    Weights by candidates' own losses alone stay too near to equal ones, and look away from how candidates differ.
    """
    own = every.losses.sum(axis=1)
    slope = jax.grad(lambda shares: _losses(model, rows, jnp.tensordot(shares, every.outputs, axes=1)).sum())

    def step(number: Array, logarithms: Array) -> Array:
        part = 2 / (number.astype(jnp.float32) + 4)
        wanted = -own - slope(jnp.exp(logarithms))
        return jax.nn.log_softmax((1 - part) * logarithms + part * wanted)

    return jnp.exp(jax.lax.fori_loop(0, MIXINGS, step, jax.nn.log_softmax(-2 * own)))


def _outputs(model: Model, rows: Rows, params: Params) -> Array:
    """The model's outputs."""
    return jax.vmap(lambda x: jnp.ravel(model.predict(params, x)))(rows.x)


def _scores(model: Model, rows: Rows, params: Params) -> Array:
    """What a deep model is judged by on each row: its loss; a classifier its error, and the loss between equals.

    One that learned from a few rows is sure of itself also where it is wrong: by its loss it would lose
    against a model that knows nothing.
    """

    def score(x: Tree, y: Array) -> Array:
        loss = model.loss(params, x, y)
        if model.outcome == "number":
            return loss
        return error(model, model.predict(params, x), y) + 1e-3 * loss

    return jax.vmap(score)(rows.x, rows.y)


def _losses(model: Model, rows: Rows, outputs: Array) -> Array:
    """Losses of given outputs, 0 for padding."""
    each = jax.vmap(lambda out, y: loss_at(model.outcome, out, y))(outputs, rows.y)
    return jnp.where(rows.mask, each, 0)


def _gain(rows: Rows, differences: Array, margin: Value) -> Array:
    """The mean of per-row differences, less `margin` standard errors."""
    count = jnp.maximum(rows.mask.sum(), 2).astype(jnp.float32)
    mean = jnp.where(rows.mask, differences, 0).sum() / count
    spread = jnp.where(rows.mask, jnp.square(differences - mean), 0).sum() / (count - 1)
    return mean - margin * jnp.sqrt(spread / count)


def _within(local: Params, candidate: Params, reach: Value) -> Params:
    """The candidate, moved towards the model fitted alone if it is too far from it."""
    away = trees.subtract(candidate, local)
    allowed = reach * jnp.sqrt(trees.squared_norm(local))
    factor = jnp.minimum(1, allowed / jnp.maximum(jnp.sqrt(trees.squared_norm(away)), 1e-30))
    return trees.add(local, trees.scale(factor, away))
