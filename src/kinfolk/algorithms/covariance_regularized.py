"""Model-protected multi-task learning (Liang et al., 2020), with noise that is private.

Algorithms 2 and 3. Each client begins with the model that it fits alone. In every round the second moment of the
clients' models is released, and each client shrinks its own model with it: its weak directions (low-rank) or features
(group-sparse) are shrunk most. Then it takes one gradient step on all of its own data, whatever batches and epochs are
set: the shrinking is that of one step, and with several the penalty would count for less. A client's model is what the
last release makes of its last step, so every release that is paid for is used. Where noise hides everything little is
shrunk, and what is left is the model that the client fits alone.

The paper's framework may also share `W^T W`, tasks x tasks. That is not offered here: a client could use its row only
with the other clients' models, and what would have to be hidden grows with their number (`theory/covariance_noise.py`).
It is compared in `benchmarks/studies/covariance/tasks_matrix.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.empirical_bayes import PATTERNS, as_params, fitted, has_fit
from kinfolk.algorithms.schedules import at
from kinfolk.algorithms.shrinkage import momentum, shrink, shrink_features, shrink_whole
from kinfolk.closed_form import slope
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Value

Shared = dict[str, Array]
Personal = dict[str, Array]
"""`model` and `own`: both parts after the last step, of size `step`; `shrunk` and `kept`: what they were before it;
`turns`: the rounds in which the client took part."""
LEAST_RIDGE = 0.01
"""Of the fit with which a client begins, which needs some where it has fewer rows than features."""


@trees.register
@dataclass(frozen=True)
class CovarianceRegularized:
    """Proximal gradient steps for a trace-norm (`low_rank`) or l2,1 (`group_sparse`) penalty on all models together.

    The proximal operator needs only the second moment of all models, so that is all that is released. A client's first
    message is the model that it fits alone, in closed form (outcomes that have no such fit: a gradient step from zero),
    and its later ones are what a gradient step makes of the shrunk one.

    Only what is released is cut to the clip norm. Algorithms 2 and 3 shrink what they have cut, so that no client's
    model is ever longer than that; here a small clip norm, which needs little noise, costs a client none of its own.

    With `outliers` a model is the sum of two parts (the paper's decomposed models): one that is shared like this, and
    one of the client's own, penalised by its norm, so that a client that is like nobody else has all of its model there
    and does not spoil what the others share. Only the first part is ever sent: the second is free. The two move
    together, so `step_size` should be half of what it was.
    """

    strength: Value = 0.1
    """Of the penalty: what singular values (or norms of features) of all models together lose in a step of size 1."""
    step_size: Value = 0.5
    shift: Value = 2.0
    """Added to the eigenvalues, in units of the noise's edge: well above 1, strong noise means little shrinking, as in
    training alone; at 1, noise now and then goes beyond its edge and cuts off a direction; below 0, whatever may be
    noise is cut off."""
    ridge: Value = 0.0
    """Penalty on each shared part's own squared norm (half of it), which makes losses strongly convex. The fit with
    which a client begins has it too."""
    condition: Value = 0.0
    """Strong convexity over smoothness of the clients' losses, where they are known to have it: then momentum is the
    constant `(1 - sqrt(condition)) / (1 + sqrt(condition))` (if accelerated). With 0 it is `(t - 1) / (t + 2)`."""
    outliers: Value = math.inf
    """Strength of the penalty on a client's own part; infinite means that there is none."""
    accelerated: bool = field(default=True, metadata={"static": True})
    """Whether a step starts beyond the shrunk model, by momentum, as in algorithms 2 and 3 of the paper: fewer rounds,
    and so fewer releases."""
    pattern: str = field(default="low_rank", metadata={"static": True})
    """What models have in common: `low_rank`, the same few directions (the whole second moment is released), or
    `group_sparse`, the same few features (its diagonal alone, which needs far less noise)."""

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
        nothing = {"model": shared["model"], "shrunk": shared["model"], "own": zero, "kept": zero}
        return {**nothing, "step": step, "turns": jnp.int32(0)}

    def client(self, shared: Shared, personal: Personal, gate: DataGate) -> tuple[Array, Personal, DataGate]:
        begins_with_fit, turns = has_fit(gate.model), personal["turns"]
        shrunk, kept = self.parts(shared, personal)
        steps = turns if begins_with_fit else turns + 1
        ahead = momentum(steps, self.condition) if self.accelerated else 0.0
        start = shrunk + ahead * (shrunk - personal["shrunk"])
        own = kept + ahead * (kept - personal["kept"])
        step = jnp.asarray(at(self.step_size, gate.round), jnp.float32)
        (downhill,) = slope(gate.model, gate.examples(), as_params(start + own))
        way = -step * jnp.concatenate([downhill["weights"], downhill["bias"][None]])
        moved = {"model": start + way, "shrunk": shrunk, "own": own + way, "kept": kept, "step": step}
        moved["turns"] = turns + 1
        if begins_with_fit:
            fit, nothing = self.alone(personal, gate), jnp.zeros_like(own)
            begun = {**moved, "model": fit, "shrunk": fit, "own": nothing, "kept": nothing}
            moved = trees.choose(turns == 0, begun, moved)
        return moved["model"], moved, gate

    def alone(self, personal: Personal, gate: DataGate) -> Array:
        """The model that a client fits alone, when it first takes part; later nothing, by a loop of no turns.

        `personal`: the client's state. `gate`: the way to its examples.
        """
        penalty, first = jnp.maximum(self.ridge * gate.size, LEAST_RIDGE), personal["turns"] == 0
        nothing = jnp.zeros_like(personal["model"])
        return jax.lax.fori_loop(0, first.astype(jnp.int32), lambda *_: fitted(gate, penalty), nothing)

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
