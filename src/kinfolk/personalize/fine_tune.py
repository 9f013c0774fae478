"""Fine-tuning after training, with the four objectives of Hu, Wu and Smith (2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.closed_form import mean_over
from kinfolk.privacy.gates import DataGate
from kinfolk.types import Model, Params, Rows, Tree, Value

OBJECTIVES = ("vanilla", "mean", "symmetric_kl", "ewc")
STARTS = ("personal", "shared")


@trees.register
@dataclass(frozen=True)
class FineTuneAfterwards:
    """Gradient steps on all of the client's examples, held near the shared model w in one of four ways.

    `vanilla`: not at all. `mean`: `strength/2 |v - w|^2`. `symmetric_kl`: `strength/2` times the Kullback-Leibler
    divergences, both ways, between the two models' predicted probabilities. `ewc`: like `mean`, each weight by its
    Fisher information on the client's examples (elastic weight consolidation).
    """

    strength: Value = 0.1
    step_size: Value = 0.1
    steps: int = field(default=50, metadata={"static": True})
    objective: str = field(default="vanilla", metadata={"static": True})
    start: str = field(default="personal", metadata={"static": True})

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective={self.objective!r} is not one of {OBJECTIVES}")
        if self.start not in STARTS:
            raise ValueError(f"start={self.start!r} is not one of {STARTS}")

    def __call__(self, common: Params, model: Params, gate: DataGate) -> Params:
        return self.fit(gate.model, gate.examples(), common, model if self.start == "personal" else common)

    def fit(self, model: Model, rows: Rows, common: Params, start: Params) -> Params:
        """Gradient steps from `start` on these rows, held near `common`."""
        if self.objective == "symmetric_kl" and model.outcome not in ("binary", "classes"):
            raise ValueError("objective='symmetric_kl' compares probabilities: it needs a classification model")
        hold = _hold(self.objective, model, rows, common)

        def objective(params: Params) -> Array:
            losses = jax.vmap(lambda x, y: model.loss(params, x, y))(rows.x, rows.y)
            return mean_over(rows, losses) + self.strength / 2 * hold(params)

        def step(_: int, params: Params) -> Params:
            return trees.subtract(params, trees.scale(self.step_size, jax.grad(objective)(params)))

        return jax.lax.fori_loop(0, self.steps, step, start)


def _hold(objective: str, model: Model, rows: Rows, common: Params) -> Callable[[Params], Array]:
    """What keeps the weights near the shared ones, to be multiplied by half the strength."""
    if objective == "vanilla":
        return lambda params: jnp.float32(0)
    if objective == "mean":
        return lambda params: trees.squared_norm(trees.subtract(params, common))
    if objective == "ewc":
        slopes = jax.vmap(lambda x, y: jax.grad(model.loss)(common, x, y))(rows.x, rows.y)
        fisher = jax.tree.map(
            lambda leaf: jax.vmap(lambda column: mean_over(rows, column), in_axes=1)(
                jnp.square(leaf).reshape(leaf.shape[0], -1)
            ).reshape(leaf.shape[1:]),
            slopes,
        )

        def weighted(params: Params) -> Array:
            away = jax.tree.map(lambda f, a, b: (f * jnp.square(a - b)).sum(), fisher, params, common)
            parts: list[Array] = jax.tree.leaves(away)
            return sum(parts, jnp.float32(0))

        return weighted

    def divergences(params: Params) -> Array:
        def of_example(x: Tree) -> Array:
            ours, theirs = (log_probabilities(model, p, x) for p in (params, common))
            # KL(a|b) + KL(b|a) = sum of (p_a - p_b)(log p_a - log p_b)
            return ((jnp.exp(ours) - jnp.exp(theirs)) * (ours - theirs)).sum()

        return mean_over(rows, jax.vmap(of_example)(rows.x))

    return divergences


def log_probabilities(model: Model, params: Params, x: Tree) -> Array:
    """The logarithms of the predicted probabilities of all classes."""
    logits = model.predict(params, x)
    if model.outcome == "binary":
        logits = jnp.stack([jnp.float32(0), logits])
    return jax.nn.log_softmax(logits)
