"""Federated averaging first, then every client alone. At example level it costs what either of them costs."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.algorithms.schedules import before
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value


@trees.register
@dataclass(frozen=True)
class FineTune:
    """Federated averaging in the first `shared_rounds` rounds; after that nothing is sent any more."""

    shared_rounds: Value = 30
    step_size: Value = 0.1

    def init(self, params: Params, clients: int) -> Params:
        return params

    def init_client(self, shared: Params, slot: Array) -> Params:
        return shared

    def client(self, shared: Params, personal: Params, gate: DataGate) -> tuple[Params, Params, DataGate]:
        together = before(gate.round, self.shared_rounds)
        trained, gate = descend(trees.choose(together, shared, personal), gate, self.step_size)
        move = trees.subtract(trained, shared)
        return trees.choose(together, move, trees.zeros_like(move)), trained, gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        move, inbox = inbox.mean(active=before(inbox.round, self.shared_rounds))
        return trees.add(shared, move), inbox

    def model(self, shared: Params, personal: Params) -> Params:
        return personal
