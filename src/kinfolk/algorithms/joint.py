"""Plain differential privacy for all personal models at once: what joint privacy spares us.

Every client's model is published with noise, in one release for all of them together. A client's own noise is as large
as that on everybody's mean, and nothing averages it out (figure 1 of Hu, Wu and Smith, 2021). For comparison only.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Shared, Value


@trees.register
@dataclass(frozen=True)
class Joint:
    """Mean-regularised training in which the server publishes every client's noisy model and clients keep nothing."""

    strength: Value = 1.0
    step_size: Value = 0.1

    def init(self, params: Params, clients: int) -> Shared:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), params)

    def init_client(self, shared: Shared, slot: Array) -> Array:
        return slot

    def client(self, shared: Shared, personal: Array, gate: DataGate) -> tuple[Params, Array, DataGate]:
        own = trees.row(shared, personal)
        centre = jax.tree.map(lambda leaf: leaf.mean(axis=0), shared)
        trained, gate = descend(own, gate, self.step_size, towards=centre, strength=self.strength)
        return trees.subtract(trained, own), personal, gate

    def server(self, shared: Shared, inbox: Inbox) -> tuple[Shared, Inbox]:
        moves, inbox = inbox.mix(jnp.eye(inbox.clients, dtype=jnp.float32))
        return trees.add(shared, moves), inbox

    def model(self, shared: Shared, personal: Array) -> Params:
        return trees.row(shared, personal)
