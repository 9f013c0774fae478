"""The pull of a personal model towards a shared one: in every local step, or once a round.

Both are implicit (proximal), so stable for every strength, need no data, and are the same in rounds of one step but for
the model they leave a client with.

`step`: every gradient step starts from the pulled point `c + (w - c) / (1 + step_size * strength)`, c the shared model,
and the model a client uses is where its next step would start. At rest that is exactly the minimum of
`loss(w) + strength/2 |w - c|^2`, however many steps a round has: what algorithm 1 of Hu, Wu and Smith minimises.

`round`: the pulls of all steps to come are made at once, before the first; then follow plain steps, after which the
model is used as it is. With E steps of a quadratic loss of curvature H and minimum a, the pulled point minimises
`1/2 (w - a)^T (1 - (1 - step_size H)^E) (w - a) + ((1 + step_size * strength)^E - 1)/2 |w - c|^2` (times step_size
and E, for few and small steps, the objective above), and a client uses the model that E steps from there lead to. With
many steps or a large strength that is federated averaging, tuned for a round at home.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk.algorithms.local_steps import descend
from kinfolk.algorithms.schedules import at
from kinfolk.privacy.gates import DataGate
from kinfolk.types import Params, Tree, Value

PULLS = ("step", "round")


def check_pull(pull: str) -> None:
    """Refuses what is no pull."""
    if pull not in PULLS:
        raise ValueError(f"pull={pull!r} is not one of {PULLS}")


class Stepped(NamedTuple):
    """What a client keeps where it is pulled in every step."""

    model: Params
    """Where its last step ended."""
    kept: Array
    """The part of its distance to the shared model that a pull leaves."""


@dataclass(frozen=True)
class Pull:
    """How a method pulls: `kind` is one of PULLS; strength and step size may be schedules over rounds.

    An infinite strength leaves no model of one's own: whatever the kind, a round's steps start from the shared model
    and are plain ones: federated averaging, where the shared model is an average. Mocha's is not, so it has no infinite
    strength (`limits.py`).
    """

    kind: str
    strength: Value
    step_size: Value

    def begin(self, model: Params) -> Tree:
        """A client's state before its first round."""
        return model if self.kind == "round" else Stepped(model, self.kept(0))

    def end(self, own: Tree) -> Params:
        """Where a client's last step ended."""
        return own if self.kind == "round" else own.model

    def kept(self, number: Value) -> Array:
        """The part of a distance that one pull leaves in round `number`."""
        strength = jnp.asarray(at(self.strength, number), jnp.float32)
        return jnp.where(jnp.isinf(strength), 0, 1 / (1 + at(self.step_size, number) * _finite(strength)))

    def descend(self, own: Tree, centre: Params, gate: DataGate) -> tuple[Params, Tree, DataGate]:
        """A round's local steps: where the last of them ended, and the client's state."""
        if self.kind == "round":
            trained, gate = descend(own, gate, self.step_size, towards=centre, strength=self.strength)
            return trained, trained, gate
        strength = jnp.asarray(at(self.strength, gate.round), jnp.float32)
        start = pulled(own.model, centre, jnp.where(jnp.isinf(strength), 0.0, 1.0))
        held = _finite(strength)
        trained, gate = descend(start, gate, self.step_size, towards=centre, strength=held, held=True)
        return trained, Stepped(trained, self.kept(gate.round)), gate

    def model(self, own: Tree, centre: Params) -> Params:
        """The model that a client uses."""
        return own if self.kind == "round" else pulled(own.model, centre, own.kept)


def pulled(model: Params, centre: Params, kept: Value) -> Params:
    """The model, with this part of its distance to the centre left."""
    return jax.tree.map(lambda w, c: c + kept * (w - c), model, centre)


def _finite(strength: Array) -> Array:
    return jnp.where(jnp.isinf(strength), 0, strength)
