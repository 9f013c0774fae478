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

STEPS = 21
"""That take any value between 1e-7 and 1 to 1, to the last bits of a float32."""


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


@jax.default_matmul_precision("float32")
def relation_precision(models: Array, ridge: Value) -> Array:
    """The regularised inverse of the clients' covariance `(W W^T)^(1/2) / trace`, scaled to a mean diagonal of 1.

    With the polar decomposition W = U H, it is `1 / floor` outside the models' span and `U (H / trace + floor)^-1 U^T`
    within: matrix products and one solution of the smaller side's size, for which every device has batched code.
    Products are of whole float32 numbers also on GPUs, where small values would else be lost.
    """
    clients, weights = models.shape
    if weights > clients:  # a square matrix with the same W W^T
        models = jnp.linalg.qr(models.T, mode="r").T
    columns = models.T
    directions = orthogonal_factor(columns)
    size = directions @ columns.T
    size = (size + size.T) / 2
    share = size / jnp.maximum(jnp.trace(size), 1e-12)
    floor = ridge / clients
    less = jax.scipy.linalg.solve(share + floor * jnp.eye(len(share)), share, assume_a="pos")
    precision = (jnp.eye(clients) - directions.T @ less @ directions) / floor
    return precision * (clients / jnp.trace(precision))


def orthogonal_factor(matrix: Array) -> Array:
    """The matrix with its singular values replaced by 1, those below 1e-7 of its norm by something smaller.

    Newton and Schulz's iteration. Each step is scaled so that it takes the least and the largest value that may be left
    to the same place (Chen and Chow, 2014), but by 1.7 at most: near the root of 3, values that rounding left just
    above 1 would become negative. `matrix` should have no more rows than columns.
    """

    def step(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        found, least = state
        scale = jnp.minimum(jnp.sqrt(3 / (1 + least + least**2)), 1.7)
        least, largest = (scale * end * (3 - (scale * end) ** 2) / 2 for end in (least, 1))
        found = (1.5 * scale * jnp.eye(len(found)) - scale**3 / 2 * (found @ found.T)) @ found
        return (found, jnp.minimum(least, largest)), None

    start = matrix / jnp.maximum(jnp.linalg.norm(matrix), 1e-30)
    return jax.lax.scan(step, (start, jnp.float32(1e-7)), length=STEPS)[0][0]
