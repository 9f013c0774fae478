"""Local steps, shared by every algorithm that takes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.schedules import at
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
    """
    step_size, strength = at(step_size, gate.round), at(strength, gate.round)
    kept = 1 / (1 + step_size * strength)

    def pulled(params: Params, kept: Value) -> Params:
        if towards is None:
            return params
        return jax.tree.map(lambda w, centre: centre + kept * (w - centre), params, towards)

    def step(carry: tuple[Params, DataGate], number: Array) -> tuple[tuple[Params, DataGate], None]:
        carried, gate = carry
        params = trees.shaped(carried, first)
        active = number < gate.steps
        start = pulled(params, kept) if held else params
        gradient, gate = gate.gradient(start, active)
        moved = trees.subtract(form(start), trees.scale(step_size, form(gradient)))
        return (trees.choose(active, moved, carried) if held else moved, gate), None  # an inactive gradient is 0

    if not held:
        params = pulled(params, kept ** gate.steps.astype(jnp.float32))
    first, numbers = params, jnp.arange(gate.most_steps, dtype=jnp.int32)
    form = trees.vectors if trees.in_turns(params) else lambda tree: tree
    (carried, gate), _ = jax.lax.scan(step, (form(first), gate), numbers)
    return trees.shaped(carried, first), gate
