"""Ditto (Li et al., 2021): a shared model by federated averaging, and a personal model pulled towards it.

At example level every client looks at its data twice a round, and pays twice; at client level the personal steps are
free.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.algorithms.pull import Pull, check_pull
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Tree, Value


@trees.register
@dataclass(frozen=True)
class Ditto:
    """A local epoch for the shared model w, then one for the personal model v_k, pulled towards the shared one.

    With `pull = "step"` a client's model minimises `loss_k(v_k) + strength/2 |v_k - w|^2`, as in the paper, for any
    number of local steps; with `pull = "round"` only where these are few and small (`algorithms/pull.py`).
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

    def init(self, params: Params, clients: int) -> Params:
        return params

    def init_client(self, shared: Params, slot: Array) -> Tree:
        return self._pull.begin(shared)

    def client(self, shared: Params, personal: Tree, gate: DataGate) -> tuple[Params, Tree, DataGate]:
        common, gate = descend(shared, gate, self.step_size)
        _, personal, gate = self._pull.descend(personal, shared, gate)
        return trees.subtract(common, shared), personal, gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        move, inbox = inbox.mean()
        return trees.add(shared, move), inbox

    def model(self, shared: Params, personal: Tree) -> Params:
        return self._pull.model(personal, shared)
