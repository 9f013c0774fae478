"""Mocha (Smith et al., 2017): how clients relate is learned from their models, and decides how they pull each other.

The server needs every client's model, so this exists only where messages are already private, or nothing is. The pull
uses the *inverse* of the task covariance; the code published with the cross-silo paper forgot to invert it.
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
class Mocha:
    """Client k is pulled along `strength * sum_j P_kj w_j`, P the inverse of `(W W^T)^(1/2) / trace + ridge`.

    P is scaled to a mean diagonal of 1, so that a strength means about what it does elsewhere. The sum over the other
    clients is fixed during a round, the client's own term is implicit: together a pull towards a centre.

    With `pull = "step"` training rests, for any number of local steps, where the sum of
    `loss_k(w_k) + strength/2 sum_j P_kj <w_k, w_j>` has no slope in the models, given P; with `pull = "round"` only
    where a round's steps are few and small (`algorithms/pull.py`).
    """

    strength: Value = 0.3
    step_size: Value = 0.1
    ridge: Value = 1.0
    """Added to the normalised covariance, in units of its mean eigenvalue."""
    pull: str = field(default="round", metadata={"static": True})
    """Pulled in every local `step`, or once a `round`, before its steps."""

    def __post_init__(self) -> None:
        check_pull(self.pull)

    def _towards(self, shared: dict[str, Tree], slot: Array) -> tuple[Params, Pull]:
        """The centre of a client's pull, and the pull."""
        return trees.row(shared["centres"], slot), Pull(self.pull, shared["strengths"][slot], self.step_size)

    def init(self, params: Params, clients: int) -> dict[str, Tree]:
        """Nothing is known of the relations before the first round: no pull."""
        centres = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), params)
        return {"centres": centres, "strengths": jnp.zeros(clients, jnp.float32)}

    def init_client(self, shared: dict[str, Tree], slot: Array) -> tuple[Tree, Array]:
        centre, pull = self._towards(shared, slot)
        return pull.begin(centre), slot

    def client(
        self, shared: dict[str, Tree], personal: tuple[Tree, Array], gate: DataGate
    ) -> tuple[Params, tuple[Tree, Array], DataGate]:
        own, slot = personal
        centre, pull = self._towards(shared, slot)
        _, own, gate = pull.descend(own, centre, gate)
        return pull.model(own, centre), (own, slot), gate

    def server(self, shared: dict[str, Tree], inbox: Inbox) -> tuple[dict[str, Tree], Inbox]:
        models = inbox.stack()
        flat = jax.vmap(lambda model: trees.flatten(model)[0])(models)
        precision = relation_precision(flat, self.ridge)
        own = jnp.diag(precision)
        mixed = (precision - jnp.diag(own)) @ flat
        centres = -mixed / own[:, None]
        unflatten = trees.flatten(trees.row(models, 0))[1]
        return {"centres": jax.vmap(unflatten)(centres), "strengths": self.strength * own}, inbox

    def model(self, shared: dict[str, Tree], personal: tuple[Tree, Array]) -> Params:
        own, slot = personal
        centre, pull = self._towards(shared, slot)
        return pull.model(own, centre)


def relation_precision(models: Array, ridge: Value) -> Array:
    """The regularised inverse of the clients' covariance `(W W^T)^(1/2) / trace`, scaled to a mean diagonal of 1."""
    clients = models.shape[0]
    vectors, roots, _ = jnp.linalg.svd(models, full_matrices=False)
    share = roots / jnp.maximum(roots.sum(), 1e-12)
    outside = clients / ridge  # in directions that no model has
    inside = 1 / (share + ridge / clients) - outside
    precision = outside * jnp.eye(clients) + (vectors * inside[None, :]) @ vectors.T
    return precision * (clients / jnp.trace(precision))
