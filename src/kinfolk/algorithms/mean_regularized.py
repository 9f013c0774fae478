"""Mean-regularised multi-task learning: a model per client, each pulled towards their mean.

Under client-level privacy this is PMTL (Hu, Wu and Smith), under example-level privacy MR-MTL (Liu, Hu, Wu and Smith).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.algorithms.schedules import at
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value

RULES = ("displacement", "increment")


@trees.register
@dataclass(frozen=True)
class MeanRegularized:
    """Minimises the mean over clients k of `loss_k(w_k) + strength/2 |w_k - w|^2`, w the mean of all w_k.

    Strength 0 is training alone, infinite strength is federated averaging. `rule` says what a client sends: its
    `displacement`
    from the shared model, which pulls a noisy mean back to the clients, or its own `increment` since the last time
    (the paper's rule), under which the shared model walks off with the noise. With `solved`, a linear model is not
    stepped towards its regularised optimum but solved for (client level, where data are the client's own affair).
    """

    strength: Value = 1.0
    step_size: Value = 0.1
    rule: str = field(default="displacement", metadata={"static": True})
    solved: bool = field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule={self.rule!r} is not one of {RULES}")

    def init(self, params: Params, clients: int) -> Params:
        return params

    def init_client(self, shared: Params, slot: Array) -> Params:
        return shared

    def client(self, shared: Params, personal: Params, gate: DataGate) -> tuple[Params, Params, DataGate]:
        if self.solved:
            trained = gate.solve(shared, at(self.strength, gate.round))
        else:
            trained, gate = descend(personal, gate, self.step_size, towards=shared, strength=self.strength)
        start = shared if self.rule == "displacement" else personal
        return trees.subtract(trained, start), trained, gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        move, inbox = inbox.mean()
        return trees.add(shared, move), inbox

    def model(self, shared: Params, personal: Params) -> Params:
        return personal
