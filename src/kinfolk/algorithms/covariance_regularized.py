"""Model-protected multi-task learning (Liang et al., 2020), with noise that is private.

In every round the second moment of the clients' models is released, and each client shrinks its own model with it: its
weak directions (low-rank) or features (group-sparse) are shrunk most. Then it takes a gradient step on its own data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.empirical_bayes import PATTERNS, as_params
from kinfolk.algorithms.local_steps import descend
from kinfolk.algorithms.shrinkage import shrink, shrink_features
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value

Shared = dict[str, Array]
Personal = tuple[Array, Array]


@trees.register
@dataclass(frozen=True)
class CovarianceRegularized:
    """Proximal gradient steps for a trace-norm (`low_rank`) or l2,1 (`group_sparse`) penalty on all models together.

    The proximal operator needs only the second moment of all models, so that is all that is released.
    """

    strength: Value = 0.1
    step_size: Value = 0.5
    shift: Value = 1.0
    """Added to the eigenvalues, in units of the noise's edge: above 0, strong noise means little shrinking, as in
    training alone; below 0, what may be noise is cut off."""
    accelerated: bool = field(default=True, metadata={"static": True})
    pattern: str = field(default="low_rank", metadata={"static": True})

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise ValueError(f"pattern={self.pattern!r} is not one of {PATTERNS}")

    def init(self, params: Params, clients: int) -> Shared:
        layer = params[0]["weights"] if isinstance(params, tuple) else params["weights"]
        size, outputs = layer.shape[0] + 1, layer.shape[1]
        shape = (size, size) if self.pattern == "low_rank" else (size,)
        return {
            "moment": jnp.zeros(shape, jnp.float32),
            "deviation": jnp.float32(0),
            "known": jnp.float32(0),
            "model": jnp.zeros((size, outputs), jnp.float32),
        }

    def init_client(self, shared: Shared, slot: Array) -> Personal:
        """The model, and its shrunk version of the round before (for acceleration)."""
        return shared["model"], shared["model"]

    def client(self, shared: Shared, personal: Personal, gate: DataGate) -> tuple[Array, Personal, DataGate]:
        model, before = personal
        how = shrink if self.pattern == "low_rank" else shrink_features
        shrunk = how(model, shared["moment"], self.step_size * self.strength, self.shift * shared["deviation"])
        shrunk = jnp.where(shared["known"] > 0, shrunk, model)
        number = jnp.asarray(gate.round, jnp.float32)
        ahead = number / (number + 3) if self.accelerated else jnp.float32(0)  # (t - 1) / (t + 2), t from 1
        start = shrunk + ahead * (shrunk - before)
        trained, gate = descend(as_params(start), gate, self.step_size)
        moved = jnp.concatenate([trained[0]["weights"], trained[0]["bias"][None]])
        return moved, (moved, shrunk), gate

    def server(self, shared: Shared, inbox: Inbox) -> tuple[Shared, Inbox]:
        moment, inbox = inbox.second_moment() if self.pattern == "low_rank" else inbox.squares()
        return {**shared, "moment": moment, "deviation": inbox.deviation, "known": jnp.float32(1)}, inbox

    def model(self, shared: Shared, personal: Personal) -> Params:
        return as_params(personal[0])
