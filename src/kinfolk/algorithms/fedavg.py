"""Federated averaging: one shared model, clients keep nothing."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value


@trees.register
@dataclass(frozen=True)
class FedAvg:
    """Clients descend from the shared model and send how far they got; the shared model moves by the mean."""

    step_size: Value = 0.1

    def init(self, params: Params, clients: int) -> Params:
        return params

    def init_client(self, shared: Params, slot: Array) -> tuple[()]:
        return ()

    def client(self, shared: Params, personal: tuple[()], gate: DataGate) -> tuple[Params, tuple[()], DataGate]:
        trained, gate = descend(shared, gate, self.step_size)
        return trees.subtract(trained, shared), (), gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        move, inbox = inbox.mean()
        return trees.add(shared, move), inbox

    def model(self, shared: Params, personal: tuple[()]) -> Params:
        return shared
