"""Self-selection: every client decides on its own data, for free, how much of the shared model to use.

It fits candidates: models held near the shared one, and near nothing at all, each more or less strongly. Their
leave-one-out losses (exact for linear regression, one Newton step otherwise, five folds for deep models) decide. Deep
classifiers are judged by their errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.afterwards.fine_tune import FineTuneAfterwards
from kinfolk.models import LOSSES, Dense, error
from kinfolk.privacy.gates import DataGate, Rows
from kinfolk.solve import newton, outputs_without
from kinfolk.types import Model, Params, Tree, Value

RULES = ("aggregate", "cautious", "alone")
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FOLDS = 5


@trees.register
@dataclass(frozen=True)
class SelfSelect:
    """`aggregate` averages all candidates by their leave-one-out losses: best on average. `cautious` stays alone unless
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
        nothing = functions.init(jax.random.key(0))
        strengths = jnp.array(self.strengths, jnp.float32)
        alone, alone_losses = self._candidates(functions, rows, nothing, strengths)
        best = jnp.argmin(alone_losses.sum(axis=1))
        local, local_losses = trees.row(alone, best), alone_losses[best]
        if self.rule == "alone":
            return local
        held, held_losses = self._candidates(functions, rows, common, strengths)
        plain = jax.vmap(lambda x, y: _score(functions, common, x, y))(rows.x, rows.y)
        held = jax.tree.map(lambda many, one: jnp.concatenate([many, one[None]]), held, common)
        if is_linear(functions):
            held = jax.vmap(lambda one: _within(local, one, self.reach))(held)
        held_losses = jnp.concatenate([held_losses, jnp.where(rows.mask, plain, 0)[None]])
        if self.rule == "cautious":
            winner = jnp.argmin(held_losses.sum(axis=1))
            gain = _gain(rows, local_losses - held_losses[winner], self.margin)
            return trees.choose(gain > 0, trees.row(held, winner), local)
        models = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), alone, held)
        return _average(functions, rows, models, jnp.concatenate([alone_losses, held_losses]))

    def _candidates(self, model: Model, rows: Rows, centre: Params, strengths: Array) -> tuple[Params, Array]:
        """A model held near `centre` for each strength, and its losses on rows that it did not see."""
        if is_linear(model):
            steps = 1 if model.outcome == "number" else 6

            def one(strength: Array) -> tuple[Params, Array]:
                fitted = newton(model, rows, centre, strength, steps)
                outputs = outputs_without(model, rows, fitted, strength)
                return fitted, _losses(model, rows, outputs)

        else:
            tune = FineTuneAfterwards(1.0, self.step_size, self.steps, "mean", "shared")
            fold = jnp.arange(rows.mask.shape[0], dtype=jnp.int32) % FOLDS

            def fit(strength: Array, mask: Array) -> Params:
                return replace(tune, strength=strength).fit(model, replace(rows, mask=mask), centre, centre)

            def one(strength: Array) -> tuple[Params, Array]:
                def without(number: Array) -> Array:
                    params = fit(strength, rows.mask & (fold != number))
                    losses = jax.vmap(lambda x, y: _score(model, params, x, y))(rows.x, rows.y)
                    return jnp.where(rows.mask & (fold == number), losses, 0)

                losses = jax.lax.map(without, jnp.arange(FOLDS, dtype=jnp.int32)).sum(axis=0)
                return fit(strength, rows.mask), losses

        return jax.lax.map(one, strengths)


def is_linear(model: Model) -> bool:
    """Whether the model's output is linear in its weights."""
    return len(model.layers) == 1 and isinstance(model.layers[0], Dense)


def _score(model: Model, params: Params, x: Tree, y: Array) -> Array:
    """What a candidate is judged by: its loss; for deep classifiers its error, and the loss between equals.

    A deep model that learned from a few rows is sure of itself also where it is wrong: by its loss it would lose
    against a model that knows nothing.
    """
    loss = model.loss(params, x, y)
    if is_linear(model) or model.outcome == "number":
        return loss
    return error(model, model.predict(params, x), y) + 1e-3 * loss


def _losses(model: Model, rows: Rows, outputs: Array) -> Array:
    """Losses of given outputs, 0 for padding."""
    scalar = model.outcome != "classes"
    each = jax.vmap(lambda out, y: LOSSES[model.outcome](out[0] if scalar else out, y))(outputs, rows.y)
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


def _average(model: Model, rows: Rows, models: Params, losses: Array) -> Params:
    """All candidates, weighted by exp(-n loss / temperature); deep models are not averaged: the best one wins.

    The temperature is that of the theory of aggregation: four times the error variance for squared errors (as the best
    candidate estimates it), 2 for logarithmic losses.
    """
    totals = losses.sum(axis=1)
    if not is_linear(model):
        return trees.row(models, jnp.argmin(totals))
    count = jnp.maximum(rows.mask.sum(), 1).astype(jnp.float32)
    temperature = 4 * jnp.maximum(totals.min() / count, 1e-12) if model.outcome == "number" else jnp.float32(2)
    weights = jax.nn.softmax(-totals / temperature)
    return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), models)
