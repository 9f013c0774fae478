"""Regularisation by a public relation between clients: groups, a graph, or any matrix Omega.

One group is mean regularisation, several are clustered multi-task learning; weights between clients are
graph-regularised multi-task learning, with negative ones where clients are each other's opposite; Omega is the matrix
of the papers' first equation, of which a graph's Laplacian is the usual one.
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
    pulled towards the mean of the groups it belongs to. `omega` (clients x clients, symmetric, no eigenvalue below 0)
    says instead how every two clients are to differ. Without either all clients are one group. An experiment may name
    `groups`, or give a `graph`, weights between clients, whose Laplacian is then Omega (`relations.py`).

    A release publishes all groups' sums, or one for every client, at once; the expected size is divided out afterwards,
    so a small one is noisier than a large one.

    With groups and `pull = "step"` it minimises, for any number of local steps, the sum over clients k of
    `A_k (loss_k(w_k) + strength/2 |w_k - c_k|^2)` over all w_k and all groups' models, c_k the mean of the models of
    k's groups weighted by k's column of the relation, A_k that column's sum without signs. With Omega it minimises
    `sum_k loss_k(w_k) + strength/2 sum_kl Omega_kl <w_k, w_l>`, Omega scaled so that its diagonal is 1 on average: the
    first equation of Hu, Wu and Smith. Of a graph with weights a, the second sum is
    `sum_kl |a_kl| |w_k - sign(a_kl) w_l|^2` over pairs. With `pull = "round"` both only where a round's steps are few
    and small (`algorithms/pull.py`).

    With Omega and `pull = "step"` clients see only each other's pulled models, so that all of them together move by
    `1/(1 + step_size strength)` of a step a round: a strong pull needs so many times the rounds, where groups or
    `pull = "round"` do not.
    """

    strength: Value = 1.0
    step_size: Value = 0.1
    relation: Value = None
    omega: Value = None
    pull: str = field(default="round", metadata={"static": True})
    """Pulled in every local `step`, or once a `round`, before its steps."""

    def __post_init__(self) -> None:
        check_pull(self.pull)

    def init(self, params: Params, clients: int) -> Params:
        """One model per group, or, with Omega, one to pull each client to, all the same."""
        rows = clients if self.omega is not None else 1 if self.relation is None else jnp.shape(self.relation)[0]
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows, *leaf.shape)), params)

    def init_client(self, shared: Params, slot: Array) -> tuple[Tree, Array]:
        first = trees.row(shared, 0)
        return self._towards(shared, slot)[1].begin(first), slot

    def _towards(self, shared: Params, slot: Array) -> tuple[Params, Pull]:
        """The centre of a client's pull, and the pull: with Omega the stronger, the larger the client's part in it."""
        if self.omega is None:
            return self.centre(shared, slot), Pull(self.pull, self.strength, self.step_size)
        firmness, _ = divided(self.omega)
        strength = scaled(self.strength, firmness[slot] / jnp.diag(jnp.asarray(self.omega, jnp.float32)).mean())
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
        average, so where its steps ended will do, and moves them faster; Omega needs the model that it uses."""
        own, slot = personal
        centre, pull = self._towards(shared, slot)
        trained, own, gate = pull.descend(own, centre, gate)
        shown = trained if self.omega is None else pull.shown(own, centre)
        return trees.subtract(shown, centre), (own, slot), gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        if self.omega is not None:
            return self._by_omega(shared, inbox)
        relation = self.relation
        if relation is None:
            relation = jnp.ones((1, inbox.clients), jnp.float32)
        moves, inbox = inbox.mix(jnp.asarray(relation, jnp.float32))
        return trees.add(shared, moves), inbox

    def _by_omega(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        """Where everybody is pulled to next: a mixture of all models, each of them a place that somebody was pulled to,
        which is public, and how far away the client is from there."""
        firmness, mixture = divided(self.omega)
        moves, inbox = inbox.mix(mixture)
        weights = mixture * inbox.expected[None]
        shares = weights / jnp.maximum(jnp.abs(weights).sum(axis=1, keepdims=True), 1e-6)
        together = jnp.abs(mixture).sum(axis=1) / jnp.maximum(firmness, 1e-6)  # 1 for a graph

        def mixed(places: Array, move: Array) -> Array:
            part = together.reshape(-1, *(1,) * (places.ndim - 1))
            return part * (jnp.tensordot(shares, places, axes=1) + move)

        return jax.tree.map(mixed, shared, moves), inbox

    def model(self, shared: Params, personal: tuple[Tree, Array]) -> Params:
        own, slot = personal
        centre, pull = self._towards(shared, slot)
        return pull.model(own, centre)


def divided(omega: Value) -> tuple[Array, Array]:
    """Omega as the difference of a diagonal, how firmly each client is pulled, and a matrix that mixes models.

    `firmness_k |w_k - c_k|^2 / 2`, c the models mixed by that matrix and divided by the firmness, has Omega's slope
    where all models are known. A graph's firmness is Omega's diagonal; where the rest of a row is larger than that, it
    is their mean, so that clients who are pulled at the same time do not overshoot: 2 firmness - Omega has no
    eigenvalue below 0.
    """
    omega = jnp.asarray(omega, jnp.float32)
    own = jnp.diag(omega)
    rest = jnp.abs(omega).sum(axis=1) - jnp.abs(own)
    firmness = jnp.where(rest > own * (1 + 1e-5), (own + rest) / 2, own)
    return firmness, jnp.diag(firmness) - omega
