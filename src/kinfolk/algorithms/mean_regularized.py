"""Mean-regularised multi-task learning: a model per client, each pulled towards their mean.

Under client-level privacy this is PMTL (Hu, Wu and Smith), under example-level privacy MR-MTL (Liu, Hu, Wu and Smith).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.pull import Pull, check_pull
from kinfolk.algorithms.schedules import at
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Tree, Value

RULES = ("displacement", "increment")


@trees.register
@dataclass(frozen=True)
class MeanRegularized:
    """A model w_k for every client k, pulled towards w, the mean of all w_k.

    With `pull = "step"` it minimises the mean over clients of `loss_k(w_k) + strength/2 |w_k - w|^2`, as algorithm 1 of
    Hu, Wu and Smith does, for any number of local steps. With `pull = "round"` it minimises that only where a round's
    steps are few and small; with more of them it goes over into federated averaging with a round of fine-tuning
    (`algorithms/pull.py` has the formula). Strength 0 is training alone, infinite strength is federated averaging.
    """

    strength: Value = 1.0
    step_size: Value = 0.1
    rule: str = field(default="displacement", metadata={"static": True})
    """What a client sends: its `displacement` from the shared model, or its own `increment` since the last time (the
    paper's rule). A displacement pulls a noisy mean back to the clients, but where a cohort takes part the shared model
    is the cohort's mean, not everybody's. Increments are divided by the weight of all clients, present or not, so that
    they add up to the mean of all models; what noise or clipping puts between the two is never taken back."""
    solved: bool = field(default=False, metadata={"static": True})
    """A linear model is not stepped towards its regularised optimum but solved for (client level, where data are the
    client's own affair); `pull` then makes no difference."""
    pull: str = field(default="round", metadata={"static": True})
    """Pulled in every local `step`, or once a `round`, before its steps."""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule={self.rule!r} is not one of {RULES}")
        check_pull(self.pull)

    @property
    def _pull(self) -> Pull:
        return Pull("round" if self.solved else self.pull, self.strength, self.step_size)

    def init(self, params: Params, clients: int) -> Params:
        return params

    def init_client(self, shared: Params, slot: Array) -> Tree:
        return self._pull.begin(shared)

    def client(self, shared: Params, personal: Tree, gate: DataGate) -> tuple[Params, Tree, DataGate]:
        before = self._pull.end(personal)
        if self.solved:
            trained = personal = gate.solve(shared, at(self.strength, gate.round))
        else:
            trained, personal, gate = self._pull.descend(personal, shared, gate)
        start = shared if self.rule == "displacement" else before
        return trees.subtract(trained, start), personal, gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        move, inbox = inbox.mean()
        if self.rule == "increment":
            move = trees.scale(inbox.rate, move)
        return trees.add(shared, move), inbox

    def model(self, shared: Params, personal: Tree) -> Params:
        return self._pull.model(personal, shared)
