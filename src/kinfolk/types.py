"""The page to read first: what a model, an algorithm and a mechanism are.

Every method here is the same sentence: *something is published about all clients, and each client uses it with its
own data.* What is published is the `Shared` state; what a client keeps is its `Personal` state; what it sends in a
round is its `Message`. An algorithm is five pure functions, written from one client's view. It draws no randomness,
sees no raw data and adds no noise: it asks the two gates (`privacy/gates.py`), which are the only doors.

`rounds.py` puts an algorithm and the gates together; every engine calls only the two functions there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from jax import Array

from kinfolk import trees

if TYPE_CHECKING:
    from kinfolk.privacy.gates import DataGate, Inbox

Tree = Any
"""Any pytree of arrays."""
Value = Any
"""A number or an array of numbers; a hyper-parameter may be traced, and may have an axis for clients or a sweep."""
Params = Tree
"""The weights of one model."""
Shared = Tree
"""Published: everybody, an attacker included, may read it."""
Personal = Tree
"""One client's own state: it never leaves the client."""
Message = Tree
"""What one client sends in one round."""


@trees.register
@dataclass(frozen=True)
class Rows:
    """One client's examples, padded to a common length; `mask` is true for real rows."""

    x: Tree
    """Features, one row per example."""
    y: Tree
    """Targets."""
    mask: Tree


@dataclass(frozen=True)
class Model:
    """A model as functions of one example. Batch axes are added outside, by the gates.

    `layers` is what `models.sequential` was built from, so that a mechanism can find per-example norms without
    per-example gradients; a bring-your-own model leaves it empty and is clipped row by row.
    """

    init: Callable[[Array], Params]
    """From a random key to weights; it looks at no data."""
    loss: Callable[[Params, Tree, Array], Array]
    """Of weights, features and target."""
    predict: Callable[[Params, Tree], Array]
    """From weights and features to the output."""
    outcome: str = "number"
    """A key of `outcomes.OUTCOMES` (`number`, `binary`, `survival`, ...): what `predict` returns, and which error is
    reported."""
    layers: tuple[Any, ...] = ()
    output_loss: Callable[[Array, Array], Array] = lambda output, y: output
    """The loss as a function of the last layer's output, for models made of layers."""


class Algorithm(Protocol):
    """A method, as a frozen dataclass that is a pytree of its (public) hyper-parameters."""

    def init(self, params: Params, clients: int) -> Shared:
        """The shared state before the first round, from freshly initialised (data-free) weights.

        `params`: one model's weights. `clients`: how many there are.
        """
        ...

    def init_client(self, shared: Shared, slot: Array) -> Personal:
        """A client's state before its first round; `slot` is its public number.

        `shared`: the published state.
        """
        ...

    def client(self, shared: Shared, personal: Personal, gate: DataGate) -> tuple[Message, Personal, DataGate]:
        """One client's part of a round. The gate is consumed and returned, like a random key.

        `shared`: the published state. `personal`: the client's own state. `gate`: the way to its examples.
        """
        ...

    def server(self, shared: Shared, inbox: Inbox) -> tuple[Shared, Inbox]:
        """The aggregator's part of a round.

        `shared`: the published state. `inbox`: the way to the clients' messages.
        """
        ...

    def model(self, shared: Shared, personal: Personal) -> Params:
        """The model a client predicts with.

        `shared`: the published state. `personal`: the client's own state.
        """
        ...


class Afterwards(Protocol):
    """What a client does alone with its model after the last round, as a frozen dataclass that is a pytree."""

    def __call__(self, common: Params, model: Params, gate: DataGate) -> Params:
        """Its new model, from the one everybody may have, its own, and its examples (`gate.examples()`)."""
        ...
