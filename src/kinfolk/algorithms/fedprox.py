"""FedProx (Li et al., 2020): federated averaging whose local steps are held near the shared model."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value


@trees.register
@dataclass(frozen=True)
class FedProx:
    """One shared model; clients keep nothing. With strength 0 this is federated averaging."""

    strength: Value = 0.1
    step_size: Value = 0.1

    def init(self, params: Params, clients: int) -> Params:
        return params

    def init_client(self, shared: Params, slot: Array) -> tuple[()]:
        return ()

    def client(self, shared: Params, personal: tuple[()], gate: DataGate) -> tuple[Params, tuple[()], DataGate]:
        trained, gate = descend(shared, gate, self.step_size, towards=shared, strength=self.strength, held=True)
        return trees.subtract(trained, shared), (), gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        move, inbox = inbox.mean()
        return trees.add(shared, move), inbox

    def model(self, shared: Params, personal: tuple[()]) -> Params:
        return shared
