"""Regularisation by a public relation between clients: clusters, a graph, a hierarchy.

Every client is pulled towards its own mixture of the others. One row of ones is mean regularisation, one row per
cluster is clustered multi-task learning, an adjacency matrix is graph-regularised multi-task learning, with negative
weights where clients are each other's opposite.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.pull import Pull, check_pull
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Tree, Value


@trees.register
@dataclass(frozen=True)
class RelationRegularized:
    """`relation` (groups x clients) says who counts how much in which group's mean; it must be public. A negative
    weight says that a client is the opposite of its group: it counts turned round, and is pulled to the group's model
    turned round. An experiment may give `groups` instead, each client's group by name (`relations.py`).

    A client is pulled towards the mean of the groups it belongs to. Without a relation all clients are one group. A
    release publishes all groups' sums at once; a group's expected size is divided out afterwards, so a small group is
    noisier than a large one.

    With `pull = "step"` it minimises, for any number of local steps, the sum over clients k of
    `A_k (loss_k(w_k) + strength/2 |w_k - c_k|^2)` over all w_k and all groups' models, c_k the mean of the models of
    k's groups weighted by k's column of the relation, A_k that column's sum without signs; with `pull = "round"` only
    where a round's steps are few and small (`algorithms/pull.py`).
    """

    strength: Value = 1.0
    step_size: Value = 0.1
    relation: Value = None
    pull: str = field(default="round", metadata={"static": True})
    """Pulled in every local `step`, or once a `round`, before its steps."""

    def __post_init__(self) -> None:
        check_pull(self.pull)

    @property
    def _pull(self) -> Pull:
        return Pull(self.pull, self.strength, self.step_size)

    def init(self, params: Params, clients: int) -> Params:
        """One model per group, all the same."""
        groups = 1 if self.relation is None else jnp.shape(self.relation)[0]
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (groups, *leaf.shape)), params)

    def init_client(self, shared: Params, slot: Array) -> tuple[Tree, Array]:
        return self._pull.begin(trees.row(shared, 0)), slot

    def centre(self, shared: Params, slot: Array) -> Params:
        """The mean of the groups that a client belongs to, weighted as it is in them."""
        if self.relation is None:
            return trees.row(shared, 0)
        mine = jnp.asarray(self.relation, jnp.float32)[:, slot]
        mine = mine / jnp.maximum(jnp.abs(mine).sum(), 1e-6)
        return jax.tree.map(lambda leaf: jnp.tensordot(mine, leaf, axes=1), shared)

    def client(
        self, shared: Params, personal: tuple[Tree, Array], gate: DataGate
    ) -> tuple[Params, tuple[Tree, Array], DataGate]:
        own, slot = personal
        centre = self.centre(shared, slot)
        model, own, gate = self._pull.descend(own, centre, gate)
        return trees.subtract(model, centre), (own, slot), gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        relation = self.relation
        if relation is None:
            relation = jnp.ones((1, inbox.clients), jnp.float32)
        moves, inbox = inbox.mix(jnp.asarray(relation, jnp.float32))
        return trees.add(shared, moves), inbox

    def model(self, shared: Params, personal: tuple[Tree, Array]) -> Params:
        own, slot = personal
        return self._pull.model(own, self.centre(shared, slot))
