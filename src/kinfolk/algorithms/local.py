"""Training alone: no client learns from another. The baseline that sharing has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value


@trees.register
@dataclass(frozen=True)
class Local:
    """Every client descends on its own data; nothing is sent."""

    step_size: Value = 0.1

    def init(self, params: Params, clients: int) -> Params:
        return params

    def init_client(self, shared: Params, slot: Array) -> Params:
        return shared

    def client(self, shared: Params, personal: Params, gate: DataGate) -> tuple[tuple[()], Params, DataGate]:
        personal, gate = descend(personal, gate, self.step_size)
        return (), personal, gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        return shared, inbox

    def model(self, shared: Params, personal: Params) -> Params:
        return personal
