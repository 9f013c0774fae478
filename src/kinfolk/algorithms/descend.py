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
) -> tuple[Params, DataGate]:
    """One round's local gradient steps from `params`, each followed by a pull `towards` another model.

    The pull is data-free and implicit (a proximal step): `w <- c + (u - c) / (1 + step_size * strength)`, which is
    stable for every strength and equals the centre c when the strength is infinite. Step size and strength may be
    schedules over rounds.
    """
    step_size, strength = at(step_size, gate.round), at(strength, gate.round)

    def step(carry: tuple[Params, DataGate], number: Array) -> tuple[tuple[Params, DataGate], None]:
        params, gate = carry
        active = number < gate.steps
        gradient, gate = gate.gradient(params, active)
        moved = trees.subtract(params, trees.scale(step_size, gradient))
        if towards is not None:
            kept = 1 / (1 + step_size * strength)
            moved = jax.tree.map(lambda u, centre: centre + kept * (u - centre), moved, towards)
        return (trees.choose(active, moved, params), gate), None

    (params, gate), _ = jax.lax.scan(step, (params, gate), jnp.arange(gate.most_steps, dtype=jnp.int32))
    return params, gate
