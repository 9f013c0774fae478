"""Regularisation by a public relation between clients: clusters, a graph, a hierarchy.

Every client is pulled towards its own mixture of the others. One row of ones is mean regularisation, one row per
cluster is clustered multi-task learning, an adjacency matrix is graph-regularised multi-task learning.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value


@trees.register
@dataclass(frozen=True)
class RelationRegularized:
    """`relation` (groups x clients, weights of 0 or more) says who counts how much in which group's mean; it must be
    public. An experiment may give `groups` instead, each client's group by name (`relations.py`).

    A client is pulled towards the mean of the groups it belongs to. Without a relation all clients are one group. A
    release publishes all groups' sums at once; a group's expected size is divided out afterwards, so a small group is
    noisier than a large one.
    """

    strength: Value = 1.0
    step_size: Value = 0.1
    relation: Value = None

    def init(self, params: Params, clients: int) -> Params:
        """One model per group, all the same."""
        groups = 1 if self.relation is None else jnp.shape(self.relation)[0]
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (groups, *leaf.shape)), params)

    def init_client(self, shared: Params, slot: Array) -> tuple[Params, Array]:
        return trees.row(shared, 0), slot

    def centre(self, shared: Params, slot: Array) -> Params:
        """The mean of the groups that a client belongs to, weighted as it is in them."""
        if self.relation is None:
            return trees.row(shared, 0)
        mine = jnp.asarray(self.relation, jnp.float32)[:, slot]
        mine = mine / jnp.maximum(mine.sum(), 1e-6)
        return jax.tree.map(lambda leaf: jnp.tensordot(mine, leaf, axes=1), shared)

    def client(self, shared: Params, personal: tuple[Params, Array], gate: DataGate) -> tuple[Params, Params, DataGate]:
        model, slot = personal
        centre = self.centre(shared, slot)
        model, gate = descend(model, gate, self.step_size, towards=centre, strength=self.strength)
        return trees.subtract(model, centre), (model, slot), gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        relation = self.relation
        if relation is None:
            relation = jnp.ones((1, inbox.clients), jnp.float32)
        moves, inbox = inbox.mix(jnp.asarray(relation, jnp.float32))
        return trees.add(shared, moves), inbox

    def model(self, shared: Params, personal: tuple[Params, Array]) -> Params:
        return personal[0]
