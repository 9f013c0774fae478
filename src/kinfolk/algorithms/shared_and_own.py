"""PP-SGD (Bietti et al., 2022): a client's model is the shared weights plus its own, trained together on the sum."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.schedules import at
from kinfolk.batching import repeat
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Tree, Value


@trees.register
@dataclass(frozen=True)
class SharedAndOwn:
    """Both parts step on the gradient at their sum: the own part at home, the shared part through the inbox.

    `own_rate` is how fast the own part moves compared with the shared one: 0 is federated averaging.
    """

    step_size: Value = 0.1
    own_rate: Value = 0.5

    def init(self, params: Params, clients: int) -> Params:
        return params

    def init_client(self, shared: Params, slot: Array) -> Params:
        return trees.zeros_like(shared)

    def client(self, shared: Params, personal: Params, gate: DataGate) -> tuple[Params, Params, DataGate]:
        step_size = at(self.step_size, gate.round)

        def step(number: Array, models: Tree, gate: DataGate) -> tuple[Tree, DataGate]:
            common, own = models
            gradient, gate = gate.gradient(trees.add(common, own), number < gate.steps)  # zeros when inactive
            common = trees.subtract(common, trees.scale(step_size, gradient))
            own = trees.subtract(own, trees.scale(self.own_rate * step_size, gradient))
            return (common, own), gate

        (common, own), gate = repeat(step, gate.most_steps, (shared, personal), gate)
        return trees.subtract(common, shared), own, gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        move, inbox = inbox.mean()
        return trees.add(shared, move), inbox

    def model(self, shared: Params, personal: Params) -> Params:
        return trees.add(shared, personal)
