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
from kinfolk.algorithms.schedules import at, scaled
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Shared, Tree, Value

REACH = 1e4
"""The largest `step_size * strength` of a pull of all models at once, for the client that is pulled most firmly, and
what stands for infinity: beyond it a float32 no longer keeps apart what is pulled and what is not."""


@trees.register
@dataclass(frozen=True)
class RelationRegularized:
    """Every client is pulled towards its groups' models, or its neighbours'; who is related must be public.

    `relation` (groups x clients) says who counts how much in which group's mean. A negative weight says that a client
    is the opposite of its group: it counts turned round, and is pulled to the group's model turned round. A client is
    pulled towards the mean of the groups it belongs to. `omega` (clients x clients, symmetric, no eigenvalue below 0)
    says instead how every two clients are to differ. Without either all clients are one group. An experiment may name
    `groups`, or give a `graph`, weights between clients, whose Laplacian is then Omega (`relations.py`).

    With groups and `pull = "step"` it minimises, for any number of local steps, the sum over clients k of
    `A_k (loss_k(w_k) + strength/2 |w_k - c_k|^2)` over all w_k and all groups' models, c_k the mean of the models of
    k's groups weighted by k's column of the relation, A_k that column's sum without signs. With Omega it minimises
    `sum_k loss_k(w_k) + strength/2 sum_kl Omega_kl <w_k, w_l>`, Omega scaled so that its diagonal is 1 on average: the
    first equation of Hu, Wu and Smith, but for that scale (I - 11^T/m at strength s is theirs at s m/(m-1)). Of a
    graph with weights a, the second sum is `sum_kl |a_kl| |w_k - sign(a_kl) w_l|^2` over pairs. With an infinite
    strength all who are joined have one model, as in federated averaging. With `pull = "round"` all this holds only
    where a round's steps are few and small (`algorithms/pull.py`).

    A release publishes all groups' sums, or, with Omega, every client's message, at once. The expected size of a group
    is divided out afterwards, so a small one is noisier than a large one. Noise on a client's message is as long as on
    a whole mean, so where it is longer than clipped messages are, the published model follows its client more slowly.

    In cohorts Omega rests at the same minimum, as an absent client is seen where it was last. A group's model is the
    mean of those who are present, so it moves to and fro around its place, the more the fewer they are; where fewer
    than one member is expected, it moves as far as whoever comes says, and no further.
    """

    strength: Value = 1.0
    step_size: Value = 0.1
    relation: Value = None
    """Groups x clients: how much a client counts in a group, negative where it is the group's opposite."""
    omega: Value = None
    """Clients x clients, symmetric and without an eigenvalue below 0: how every two clients are to differ."""
    pull: str = field(default="round", metadata={"static": True})
    """Pulled in every local `step`, or once a `round`, before its steps."""

    def __post_init__(self) -> None:
        check_pull(self.pull)

    def init(self, params: Params, clients: int) -> Shared:
        """One model per group, or, with Omega, one per client and where it is pulled to; all models the same."""
        rows = clients if self.omega is not None else 1 if self.relation is None else jnp.shape(self.relation)[0]
        models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows, *leaf.shape)), params)
        return models if self.omega is None else self._with_centres(models, 0)

    def init_client(self, shared: Shared, slot: Array) -> tuple[Tree, Array]:
        first = trees.row(shared if self.omega is None else shared["models"], 0)
        return self._pull(slot).begin(first), slot

    def _pull(self, slot: Array) -> Pull:
        """A client's pull: with Omega the stronger, the larger the client's part in it."""
        if self.omega is None:
            return Pull(self.pull, self.strength, self.step_size)
        firmness, _ = divided(self.omega)
        return Pull(self.pull, scaled(self.strength, firmness[slot]), self.step_size)

    def centre(self, shared: Shared, slot: Array) -> Params:
        """Where a client is pulled to: with groups, the mean of its own, weighted as it is in them."""
        if self.omega is not None:
            return trees.row(shared["centres"], slot)
        if self.relation is None:
            return trees.row(shared, 0)
        mine = jnp.asarray(self.relation, jnp.float32)[:, slot]
        mine = mine / jnp.maximum(jnp.abs(mine).sum(), 1e-6)
        return jax.tree.map(lambda leaf: jnp.tensordot(mine, leaf, axes=1), shared)

    def client(
        self, shared: Shared, personal: tuple[Tree, Array], gate: DataGate
    ) -> tuple[Params, tuple[Tree, Array], DataGate]:
        """How far the client is from where it was pulled to, which is nothing on average where groups rest, or, with
        Omega, from what is published of it."""
        own, slot = personal
        centre = self.centre(shared, slot)
        trained, own, gate = self._pull(slot).descend(own, centre, gate)
        seen = centre if self.omega is None else trees.row(shared["models"], slot)
        return trees.subtract(trained, seen), (own, slot), gate

    def server(self, shared: Shared, inbox: Inbox) -> tuple[Shared, Inbox]:
        if self.omega is not None:
            return self._by_omega(shared["models"], inbox)
        relation = jnp.ones((1, inbox.clients)) if self.relation is None else jnp.asarray(self.relation, jnp.float32)
        moves, inbox = inbox.mix(relation)
        parts = jnp.abs(relation) * inbox.expected[None]
        damping = jnp.minimum(1, inbox.rate * parts.sum(axis=1) / parts.max(axis=1))  # 1 where a member is expected

        def moved(models: Array, move: Array) -> Array:
            return models + damping.reshape(-1, *(1,) * (move.ndim - 1)) * move

        return jax.tree.map(moved, shared, moves), inbox

    def _by_omega(self, models: Params, inbox: Inbox) -> tuple[Shared, Inbox]:
        """Everybody's published model moves by what its client sent: whoever is absent sends nothing, and stays.

        In units of the clip norm and squared, a message is at most 1 long and comes with probability `rate`, and noise
        is `size * relative_noise^2` long. `rate / (rate + noise)` of both together is nearest to a message that is as
        long as it may be; what that leaves of it comes again with the next one.
        """
        moves, inbox = inbox.mix(jnp.eye(inbox.clients, dtype=jnp.float32))
        noise = trees.size(models) / inbox.clients * jnp.square(inbox.relative_noise)
        kept = inbox.rate / (inbox.rate + noise)
        return self._with_centres(trees.add(models, trees.scale(kept * inbox.rate, moves)), inbox.round), inbox

    def model(self, shared: Shared, personal: tuple[Tree, Array]) -> Params:
        own, slot = personal
        return self._pull(slot).model(own, self.centre(shared, slot))

    @jax.default_matmul_precision("float32")
    def _with_centres(self, models: Params, number: Value) -> dict[str, Params]:
        """The models where clients' steps ended, and where each client is pulled to: a mixture of all pulled models.

        With `pull = "step"` everybody is pulled at once, by the solution P of
        `|P - models|^2 / 2 + step_size * strength / 2 * sum_kl Omega_kl <P_k, P_l>`: a whole proximal step, so that
        what joins clients does not hold back all of them together. With infinite strength only what they share is left.
        With `pull = "round"` a finite strength mixes models as they are.
        """
        strength = jnp.asarray(at(self.strength, number), jnp.float32)
        reach = at(self.step_size, number) * strength if self.pull == "step" else jnp.float32(0)
        firmness, mixture = divided(self.omega)
        reach = jnp.minimum(jnp.where(jnp.isinf(strength), jnp.inf, reach), REACH / firmness.max())
        together = jnp.eye(len(mixture)) + reach * (jnp.diag(firmness) - mixture)
        shares = jax.scipy.linalg.solve(together, mixture, assume_a="pos").T / jnp.maximum(firmness, 1e-6)[:, None]
        return {"models": models, "centres": jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, axes=1), models)}


def divided(omega: Value) -> tuple[Array, Array]:
    """Omega, scaled to a mean diagonal of 1, as the difference of a diagonal, how firmly each client is pulled, and a
    matrix that mixes models.

    `firmness_k |w_k - c_k|^2 / 2`, c the models mixed by that matrix and divided by the firmness, has Omega's slope
    where all models are known. A graph's firmness is Omega's diagonal; where the rest of a row is larger than that, it
    is their mean, so that clients who are pulled at the same time do not overshoot: 2 firmness - Omega has no
    eigenvalue below 0.
    """
    omega = jnp.asarray(omega, jnp.float32)
    omega = omega / jnp.diag(omega).mean()
    own = jnp.diag(omega)
    rest = jnp.abs(omega).sum(axis=1) - jnp.abs(own)
    firmness = jnp.where(rest > own * (1 + 1e-5), (own + rest) / 2, own)
    return firmness, jnp.diag(firmness) - omega
