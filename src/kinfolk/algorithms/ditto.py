"""Ditto (Li et al., 2021): a shared model by federated averaging, and a personal model pulled towards it.

At example level every client looks at its data twice a round, and pays twice; at client level the personal steps are
free.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value


@trees.register
@dataclass(frozen=True)
class Ditto:
    """A local epoch for the shared model, then one for the personal model, pulled towards the shared one."""

    strength: Value = 1.0
    step_size: Value = 0.1

    def init(self, params: Params, clients: int) -> Params:
        return params

    def init_client(self, shared: Params, slot: Array) -> Params:
        return shared

    def client(self, shared: Params, personal: Params, gate: DataGate) -> tuple[Params, Params, DataGate]:
        common, gate = descend(shared, gate, self.step_size)
        personal, gate = descend(personal, gate, self.step_size, towards=shared, strength=self.strength)
        return trees.subtract(common, shared), personal, gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        move, inbox = inbox.mean()
        return trees.add(shared, move), inbox

    def model(self, shared: Params, personal: Params) -> Params:
        return personal
