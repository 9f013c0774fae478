"""Local steps, shared by every algorithm that takes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.schedules import at
from kinfolk.batching import elementwise, repeat
from kinfolk.privacy.gates import DataGate
from kinfolk.types import Params, Value


def descend(
    params: Params,
    gate: DataGate,
    step_size: Value,
    towards: Params | None = None,
    strength: Value = 0.0,
    held: bool = False,
) -> tuple[Params, DataGate]:
    """One round's local gradient steps from `params`, after a pull `towards` another model.

    The pull is data-free and implicit (a proximal step): `w <- c + (w - c) / (1 + step_size * strength)`, once for each
    step to come, which is stable for every strength; with an infinite one the steps start from the centre c, as in
    federated averaging. With `held`, it comes before every single step instead, and holds the steps themselves back.
    Step size and strength may be schedules over rounds.

    `gate`: the client's data gate. `step_size`: of a gradient step. `strength`: of the pull.
    """
    step_size, strength = at(step_size, gate.round), at(strength, gate.round)
    kept = 1 / (1 + step_size * strength)

    def pulled(params: Params, kept: Value) -> Params:
        if towards is None:
            return params
        return jax.tree.map(lambda w, centre: centre + kept * (w - centre), params, towards)

    def step(number: Array, params: Params, gate: DataGate) -> tuple[Params, DataGate]:
        active = number < gate.steps  # an inactive gradient is 0
        start = pulled(params, kept) if held else params
        gradient, gate = gate.gradient(start, active)
        moved = elementwise(lambda w, g: w - step_size * g, start, gradient)
        return (trees.choose(active, moved, params) if held else moved), gate

    if not held:
        params = pulled(params, kept ** gate.steps.astype(jnp.float32))
    return repeat(step, gate.most_steps, params, gate)
