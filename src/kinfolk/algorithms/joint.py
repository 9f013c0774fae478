"""Plain differential privacy for all personal models at once: what joint privacy spares us.

Every client's model is published with noise, in one release for all of them together. A client's own noise is as large
as that on everybody's mean, and nothing averages it out (figure 1 of Hu, Wu and Smith, 2023). For comparison only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.pull import Pull, Stepped, check_pull
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Shared, Tree, Value


@trees.register
@dataclass(frozen=True)
class Joint:
    """Mean-regularised training in which the server publishes every client's noisy model and clients keep nothing.

    What it minimises depends on `pull`, as in `mean_regularized`.
    """

    strength: Value = 1.0
    step_size: Value = 0.1
    pull: str = field(default="round", metadata={"static": True})
    """Pulled in every local `step`, or once a `round`, before its steps."""

    def __post_init__(self) -> None:
        check_pull(self.pull)

    @property
    def _pull(self) -> Pull:
        return Pull(self.pull, self.strength, self.step_size)

    def init(self, params: Params, clients: int) -> Shared:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), params)

    def init_client(self, shared: Shared, slot: Array) -> Tree:
        return self._pull.begin(slot)

    def client(self, shared: Shared, personal: Tree, gate: DataGate) -> tuple[Params, Tree, DataGate]:
        slot = self._pull.end(personal)
        own, centre = self._published(shared, personal)
        trained, after, gate = self._pull.descend(own, centre, gate)
        start = self._pull.end(own)
        return trees.subtract(trained, start), Stepped(slot, after.kept) if self.pull == "step" else slot, gate

    def server(self, shared: Shared, inbox: Inbox) -> tuple[Shared, Inbox]:
        moves, inbox = inbox.mix(jnp.eye(inbox.clients, dtype=jnp.float32))
        return trees.add(shared, trees.scale(inbox.rate, moves)), inbox

    def model(self, shared: Shared, personal: Tree) -> Params:
        return self._pull.model(*self._published(shared, personal))

    def _published(self, shared: Shared, personal: Tree) -> tuple[Tree, Params]:
        """A client's state, with its published model in place of its number, and the mean of all of them."""
        own = trees.row(shared, self._pull.end(personal))
        centre = jax.tree.map(lambda leaf: leaf.mean(axis=0), shared)
        return (Stepped(own, personal.kept) if self.pull == "step" else own), centre
