"""Model-protected multi-task learning (Liang et al., 2020), with noise that is private.

Algorithms 2 and 3. In every round the second moment of the clients' models is released, and each client shrinks its own
model with it: its weak directions (low-rank) or features (group-sparse) are shrunk most. Then it takes a gradient step
on its own data. A client's model is what the last release makes of its last step, so every release that is paid for is
used.

The paper's framework may also share `W^T W`, tasks x tasks. That is not offered here: a client could use its row only
with the other clients' models, and what would have to be hidden grows with their number (`theory/covariance_noise.py`).
It is compared in `benchmarks/studies/covariance/tasks_matrix.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.empirical_bayes import PATTERNS, as_params
from kinfolk.algorithms.local_steps import descend
from kinfolk.algorithms.schedules import at
from kinfolk.algorithms.shrinkage import momentum, shrink, shrink_features, shrink_whole
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value

Shared = dict[str, Array]
Personal = dict[str, Array]
"""`model` and `own`: both parts after the last step, of size `step`; `shrunk` and `kept`: what they were before it."""


@trees.register
@dataclass(frozen=True)
class CovarianceRegularized:
    """Proximal gradient steps for a trace-norm (`low_rank`) or l2,1 (`group_sparse`) penalty on all models together.

    The proximal operator needs only the second moment of all models, so that is all that is released.

    With `outliers` a model is the sum of two parts (the paper's decomposed models): one that is shared like this, and
    one of the client's own, penalised by its norm, so that a client that is like nobody else has all of its model there
    and does not spoil what the others share. Only the first part is ever sent: the second is free. The two move
    together, so `step_size` should be half of what it was.
    """

    strength: Value = 0.1
    step_size: Value = 0.5
    shift: Value = 1.0
    """Added to the eigenvalues, in units of the noise's edge: above 0, strong noise means little shrinking, as in
    training alone; below 0, what may be noise is cut off."""
    ridge: Value = 0.0
    """Penalty on each shared part's own squared norm (half of it), which makes losses strongly convex."""
    condition: Value = 0.0
    """Strong convexity over smoothness of the clients' losses, where they are known to have it: then momentum is the
    constant `(1 - sqrt(condition)) / (1 + sqrt(condition))` (if accelerated). With 0 it is `(t - 1) / (t + 2)`."""
    outliers: Value = math.inf
    """Strength of the penalty on a client's own part; infinite means that there is none."""
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
        zero = jnp.zeros_like(shared["model"])
        step = jnp.asarray(at(self.step_size, 0), jnp.float32)
        return {"model": shared["model"], "shrunk": shared["model"], "own": zero, "kept": zero, "step": step}

    def client(self, shared: Shared, personal: Personal, gate: DataGate) -> tuple[Array, Personal, DataGate]:
        shrunk, kept = self.parts(shared, personal)
        ahead = momentum(jnp.asarray(gate.round, jnp.float32) + 1, self.condition) if self.accelerated else 0.0
        start = shrunk + ahead * (shrunk - personal["shrunk"])
        own = kept + ahead * (kept - personal["kept"])
        trained, gate = descend(as_params(start + own), gate, self.step_size)
        way = jnp.concatenate([trained[0]["weights"], trained[0]["bias"][None]]) - (start + own)
        step = jnp.asarray(at(self.step_size, gate.round), jnp.float32)
        moved = {"model": start + way, "shrunk": shrunk, "own": own + way, "kept": kept, "step": step}
        return moved["model"], moved, gate

    def parts(self, shared: Shared, personal: Personal) -> tuple[Array, Array]:
        """The shared part after the proximal step with the last release, and the client's own after its own.

        `shared`: what is released. `personal`: the client's state.
        """
        how = shrink if self.pattern == "low_rank" else shrink_features
        step, model = personal["step"], personal["model"]
        shrunk = how(model, shared["moment"], step * self.strength, self.shift * shared["deviation"])
        shrunk = jnp.where(shared["known"] > 0, shrunk, model) / (1 + step * self.ridge)
        return shrunk, shrink_whole(personal["own"], step * self.outliers)

    def server(self, shared: Shared, inbox: Inbox) -> tuple[Shared, Inbox]:
        moment, inbox = inbox.second_moment() if self.pattern == "low_rank" else inbox.squares()
        return {**shared, "moment": moment, "deviation": inbox.deviation, "known": jnp.float32(1)}, inbox

    def model(self, shared: Shared, personal: Personal) -> Params:
        shrunk, own = self.parts(shared, personal)
        return as_params(shrunk + own)
