"""A shared representation with a personal head: some layers are common, the others every client's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value


@trees.register
@dataclass(frozen=True)
class SharedLayers:
    """The first `layers` layers that have weights are averaged; the rest stays with each client.

    Parameters of a model made of layers are a tuple with one entry per layer. Fewer shared weights need less noise.
    """

    step_size: Value = 0.1
    layers: int = field(default=1, metadata={"static": True})

    def _split(self, params: Params) -> tuple[Params, Params]:
        """The shared part and the own part, each with empty places where the other has weights."""
        weighted = [place for place, part in enumerate(params) if jax.tree.leaves(part)]
        common = set(weighted[: self.layers])
        return (
            tuple(part if place in common else {} for place, part in enumerate(params)),
            tuple({} if place in common else part for place, part in enumerate(params)),
        )

    def init(self, params: Params, clients: int) -> tuple[Params, Params]:
        """The shared layers, and the public starting point of the others."""
        return self._split(params)

    def init_client(self, shared: tuple[Params, Params], slot: Array) -> Params:
        return shared[1]

    def client(
        self, shared: tuple[Params, Params], personal: Params, gate: DataGate
    ) -> tuple[Params, Params, DataGate]:
        trained, gate = descend(self.model(shared, personal), gate, self.step_size)
        common, own = self._split(trained)
        return trees.subtract(common, shared[0]), own, gate

    def server(self, shared: tuple[Params, Params], inbox: Inbox) -> tuple[tuple[Params, Params], Inbox]:
        move, inbox = inbox.mean()
        return (trees.add(shared[0], move), shared[1]), inbox

    def model(self, shared: tuple[Params, Params], personal: Params) -> Params:
        return tuple(own if jax.tree.leaves(own) else common for common, own in zip(shared[0], personal, strict=True))
