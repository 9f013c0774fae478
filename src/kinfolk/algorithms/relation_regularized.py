"""Regularisation by a public relation between clients: groups, or a graph.

One group is mean regularisation, several are clustered multi-task learning; weights between clients are
graph-regularised multi-task learning, with negative ones where clients are each other's opposite.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.pull import Pull, check_pull
from kinfolk.algorithms.schedules import scaled
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Tree, Value


@trees.register
@dataclass(frozen=True)
class RelationRegularized:
    """Every client is pulled towards its groups' models, or its neighbours'; who is related must be public.

    `relation` (groups x clients) says who counts how much in which group's mean. A negative weight says that a client
    is the opposite of its group: it counts turned round, and is pulled to the group's model turned round. A client is
    pulled towards the mean of the groups it belongs to. `graph` (clients x clients, symmetric, nothing on the diagonal)
    says instead how much two clients have to do with each other; each is pulled towards the mean of its neighbours.
    Without either all clients are one group. An experiment may name `groups`, and clients in `graph` (`relations.py`).

    A release publishes all groups' sums, or all neighbourhoods', at once; the expected size is divided out afterwards,
    so a small one is noisier than a large one.

    With groups and `pull = "step"` it minimises, for any number of local steps, the sum over clients k of
    `A_k (loss_k(w_k) + strength/2 |w_k - c_k|^2)` over all w_k and all groups' models, c_k the mean of the models of
    k's groups weighted by k's column of the relation, A_k that column's sum without signs. With a graph it minimises
    `sum_k loss_k(w_k) + strength/2 sum_kl |a_kl| |w_k - sign(a_kl) w_l|^2`, the second sum over pairs, a the weights,
    scaled so that a client's are 1 together on average: the first equation of Hu, Wu and Smith, Omega the Laplacian of
    a. With `pull = "round"` both only where a round's steps are few and small (`algorithms/pull.py`).
    """

    strength: Value = 1.0
    step_size: Value = 0.1
    relation: Value = None
    graph: Value = None
    pull: str = field(default="round", metadata={"static": True})
    """Pulled in every local `step`, or once a `round`, before its steps."""

    def __post_init__(self) -> None:
        check_pull(self.pull)

    def init(self, params: Params, clients: int) -> Params:
        """One model per group, or per client's neighbourhood, all the same."""
        rows = clients if self.graph is not None else 1 if self.relation is None else jnp.shape(self.relation)[0]
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows, *leaf.shape)), params)

    def init_client(self, shared: Params, slot: Array) -> tuple[Tree, Array]:
        first = trees.row(shared, 0)
        return self._towards(shared, slot)[1].begin(first), slot

    def _towards(self, shared: Params, slot: Array) -> tuple[Params, Pull]:
        """The centre of a client's pull, and the pull: with a graph the stronger, the more it has to do with others."""
        if self.graph is None:
            return self.centre(shared, slot), Pull(self.pull, self.strength, self.step_size)
        degrees = jnp.abs(jnp.asarray(self.graph, jnp.float32)).sum(axis=0)
        strength = scaled(self.strength, degrees[slot] / degrees.mean())
        return trees.row(shared, slot), Pull(self.pull, strength, self.step_size)

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
        """How far the client is from where it was pulled to. Groups' models come to rest where that is nothing on
        average, so where its steps ended will do, and moves them faster; neighbours need the model that it uses."""
        own, slot = personal
        centre, pull = self._towards(shared, slot)
        trained, own, gate = pull.descend(own, centre, gate)
        shown = trained if self.graph is None else pull.shown(own, centre)
        return trees.subtract(shown, centre), (own, slot), gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        if self.graph is not None:
            return self._neighbourhoods(jnp.asarray(self.graph, jnp.float32), shared, inbox)
        relation = self.relation
        if relation is None:
            relation = jnp.ones((1, inbox.clients), jnp.float32)
        moves, inbox = inbox.mix(jnp.asarray(relation, jnp.float32))
        return trees.add(shared, moves), inbox

    def _neighbourhoods(self, graph: Array, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        """The means of everybody's neighbours: of where they were pulled to, which is public, and how far they are."""
        moves, inbox = inbox.mix(graph)
        weights = graph * inbox.expected[None]
        shares = weights / jnp.maximum(jnp.abs(weights).sum(axis=1, keepdims=True), 1e-6)
        return trees.add(jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, axes=1), shared), moves), inbox

    def model(self, shared: Params, personal: tuple[Tree, Array]) -> Params:
        own, slot = personal
        centre, pull = self._towards(shared, slot)
        return pull.model(own, centre)
