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
    """One round's local gradient steps from `params`, each after a pull `towards` another model.

    The pull is data-free and implicit (a proximal step): `w <- c + (w - c) / (1 + step_size * strength)`, which is
    stable for every strength; with an infinite one every step starts from the centre c. Step size and strength may be
    schedules over rounds.
    """
    step_size, strength = at(step_size, gate.round), at(strength, gate.round)

    def step(carry: tuple[Params, DataGate], number: Array) -> tuple[tuple[Params, DataGate], None]:
        params, gate = carry
        active = number < gate.steps
        pulled = params
        if towards is not None:
            kept = 1 / (1 + step_size * strength)
            pulled = jax.tree.map(lambda w, centre: centre + kept * (w - centre), params, towards)
        gradient, gate = gate.gradient(pulled, active)
        moved = trees.subtract(pulled, trees.scale(step_size, gradient))
        return (trees.choose(active, moved, params), gate), None

    (params, gate), _ = jax.lax.scan(step, (params, gate), jnp.arange(gate.most_steps, dtype=jnp.int32))
    return params, gate
