"""Self-selection: every client decides on its own data, for free, how much of the shared model to use.

It fits candidates: models held near the shared one, and near nothing at all, each more or less strongly. They are
judged by leave-one-out losses (exact for linear regression, one Newton step otherwise; five folds for deep models and
for linear ones of many classes and features).
Linear regressions are averaged by their evidence instead, which says more when rows are few. Deep classifiers are
judged by their errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.closed_form import SMALL, bounded_newton, evidence, newton, outputs_without
from kinfolk.models import Dense, error
from kinfolk.outcomes import loss_at
from kinfolk.personalize.fine_tune import FineTuneAfterwards
from kinfolk.privacy.gates import DataGate
from kinfolk.types import Model, Params, Rows, Tree, Value

RULES = ("aggregate", "cautious", "alone")
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FOLDS = 5
FIXED = 1e9
"""The strength of the shared model itself as a candidate."""


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
        count, only_alone = len(self.strengths), self.rule == "alone"
        centres = (nothing,) * count + (() if only_alone else (common,) * count)
        strengths = jnp.array(self.strengths * (1 if only_alone else 2), jnp.float32)
        every = self._candidates(functions, rows, _stacked(centres), strengths)
        alone, alone_losses, alone_merits = trees.row(every, slice(0, count))
        best = jnp.argmin(alone_losses.sum(axis=1))
        local, local_losses = trees.row(alone, best), alone_losses[best]
        if only_alone:
            return local, local
        held, held_losses, held_merits = trees.row(every, slice(count, None))
        plain = jnp.where(rows.mask, jax.vmap(lambda x, y: _score(functions, common, x, y))(rows.x, rows.y), 0)
        held = jax.tree.map(lambda many, one: jnp.concatenate([many, one[None]]), held, common)
        if is_linear(functions):
            held = jax.vmap(lambda one: _within(local, one, self.reach))(held)
        held_losses = jnp.concatenate([held_losses, plain[None]])
        if self.rule == "cautious":
            winner = jnp.argmin(held_losses.sum(axis=1))
            gain = _gain(rows, local_losses - held_losses[winner], self.margin)
            return trees.choose(gain > 0, trees.row(held, winner), local), local
        models = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), alone, held)
        fixed = _merit(functions, rows, common, plain, common, jnp.float32(FIXED))
        merits = jnp.concatenate([alone_merits, held_merits, fixed[None]])
        if is_linear(functions):
            return jax.tree.map(lambda leaf: jnp.tensordot(jax.nn.softmax(merits), leaf, axes=1), models), local
        return trees.row(models, jnp.argmax(merits)), local  # weights of deep models mean nothing on average

    def _candidates(self, model: Model, rows: Rows, centres: Params, strengths: Array) -> tuple[Params, Array, Array]:
        """For each centre and strength a model held near it, its losses on rows that it did not see, and its merit."""
        if is_linear(model) and not _wide(model, trees.row(centres, 0)):
            steps = 1 if model.outcome == "number" else 6

            def one(held: tuple[Params, Array]) -> tuple[Params, Array, Array]:
                centre, strength = held
                fitted = newton(model, rows, centre, strength, steps)
                losses = _losses(model, rows, outputs_without(model, rows, fitted, strength))
                return fitted, losses, _merit(model, rows, fitted, losses, centre, strength)

        else:
            tune = FineTuneAfterwards(1.0, self.step_size, self.steps, "mean", "shared")
            fold = jnp.arange(rows.mask.shape[0], dtype=jnp.int32) % FOLDS

            def fit(centre: Params, strength: Array, mask: Array) -> Params:
                own = replace(rows, mask=mask)
                if is_linear(model):
                    return bounded_newton(model, own, centre, strength)
                return replace(tune, strength=strength).fit(model, own, centre, centre)

            def one(held: tuple[Params, Array]) -> tuple[Params, Array, Array]:
                def without(number: Array) -> Array:
                    params = fit(*held, rows.mask & (fold != number))
                    losses = jax.vmap(lambda x, y: _score(model, params, x, y))(rows.x, rows.y)
                    return jnp.where(rows.mask & (fold == number), losses, 0)

                losses = jax.lax.map(without, jnp.arange(FOLDS, dtype=jnp.int32)).sum(axis=0)
                return fit(*held, rows.mask), losses, -losses.sum() / (2 if is_linear(model) else 1)

        return jax.lax.map(one, (centres, strengths))


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


def _stacked(models: tuple[Params, ...]) -> Params:
    """Models as one, with an axis in front."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)


def _wide(model: Model, params: Params) -> bool:
    """Whether a linear model of classes has more weights than a matrix of all of them should have rows."""
    return model.outcome == "classes" and trees.size(params) > SMALL


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


def _merit(model: Model, rows: Rows, fitted: Params, losses: Array, centre: Params, strength: Array) -> Array:
    """The logarithm of a candidate's weight in an average.

    A linear regression's evidence; else its left-out logarithmic losses over 2, the temperature that the theory of
    aggregation asks for.
    """
    if is_linear(model) and model.outcome == "number":
        return evidence(model, rows, fitted, centre, strength)
    return -losses.sum() / 2
