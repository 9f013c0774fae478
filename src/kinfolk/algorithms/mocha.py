"""Mocha (Smith et al., 2017): how clients relate is learned from their models, and decides how they pull each other.

The server needs every client's model, so this exists only where messages are already private, or nothing is. The pull
uses the *inverse* of the task covariance; the code published with the cross-silo paper forgot to invert it.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Tree, Value


@trees.register
@dataclass(frozen=True)
class Mocha:
    """Client k is pulled along `strength * sum_j P_kj w_j`, P the inverse of `(W W^T)^(1/2) / trace + ridge`.

    P is scaled to a mean diagonal of 1, so that a strength means about what it does elsewhere. The sum over the other
    clients is fixed during a round, the client's own term is implicit: together a pull towards a centre.
    """

    strength: Value = 0.3
    step_size: Value = 0.1
    ridge: Value = 1.0
    """Added to the normalised covariance, in units of its mean eigenvalue."""

    def init(self, params: Params, clients: int) -> dict[str, Tree]:
        """Nothing is known of the relations before the first round: no pull."""
        centres = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), params)
        return {"centres": centres, "strengths": jnp.zeros(clients, jnp.float32)}

    def init_client(self, shared: dict[str, Tree], slot: Array) -> tuple[Params, Array]:
        return trees.row(shared["centres"], slot), slot

    def client(
        self, shared: dict[str, Tree], personal: tuple[Params, Array], gate: DataGate
    ) -> tuple[Params, tuple[Params, Array], DataGate]:
        model, slot = personal
        centre, strength = trees.row(shared["centres"], slot), shared["strengths"][slot]
        model, gate = descend(model, gate, self.step_size, towards=centre, strength=strength)
        return model, (model, slot), gate

    def server(self, shared: dict[str, Tree], inbox: Inbox) -> tuple[dict[str, Tree], Inbox]:
        models = inbox.stack()
        flat = jax.vmap(lambda model: trees.flatten(model)[0])(models)
        precision = relation_precision(flat, self.ridge)
        own = jnp.diag(precision)
        mixed = (precision - jnp.diag(own)) @ flat
        centres = -mixed / own[:, None]
        unflatten = trees.flatten(trees.row(models, 0))[1]
        return {"centres": jax.vmap(unflatten)(centres), "strengths": self.strength * own}, inbox

    def model(self, shared: dict[str, Tree], personal: tuple[Params, Array]) -> Params:
        return personal[0]


def relation_precision(models: Array, ridge: Value) -> Array:
    """The regularised inverse of the clients' covariance `(W W^T)^(1/2) / trace`, scaled to a mean diagonal of 1."""
    clients = models.shape[0]
    vectors, roots, _ = jnp.linalg.svd(models, full_matrices=False)
    share = roots / jnp.maximum(roots.sum(), 1e-12)
    outside = clients / ridge  # in directions that no model has
    inside = 1 / (share + ridge / clients) - outside
    precision = outside * jnp.eye(clients) + (vectors * inside[None, :]) @ vectors.T
    return precision * (clients / jnp.trace(precision))
