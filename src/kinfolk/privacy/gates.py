"""The two doors. A `DataGate` stands between an algorithm and a client's examples, an `Inbox` between the aggregator
and the clients' messages. What stands in the door is a mechanism; a privacy level decides which.

Both are consumed and returned, like a random key: use the one you get back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.privacy import clipping
from kinfolk.privacy.mechanisms import Chooser, GaussianSum, Mechanism
from kinfolk.privacy.release import Meter, PrivacyError

if TYPE_CHECKING:
    from kinfolk.types import Message, Model, Params, Tree, Value

GRADIENT = "gradient"
CHOICE = "choice"
UPDATE = "update"
MIXTURE = "mixture"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """One client's examples, padded to a common length; `mask` is true for real rows."""

    x: Any
    y: Any
    mask: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DataGate:
    """A client's examples behind a mechanism. The underscored fields are not for algorithms."""

    _rows: Rows
    _meter: Meter
    _mechanism: Mechanism
    _chooser: Chooser
    size: Array
    """The client's number of training examples; public."""
    steps: Array
    """How many local steps this client takes in a round; public."""
    round: Array
    """Number of the round, from 0."""
    most_steps: int = field(metadata={"static": True})
    """The largest `steps` of any client computed together with this one: the length of the loop."""
    _model: Model = field(metadata={"static": True})

    @property
    def noise(self) -> Array:
        """Standard deviation of the noise on each coordinate of a gradient: public, and 0 where none is added."""
        if not isinstance(self._mechanism, GaussianSum):
            return jnp.zeros_like(self.size)
        return self._mechanism.noise_multiplier * self._mechanism.clip / (self._mechanism.sampling.rate * self.size)

    @property
    def clip(self) -> Array:
        """Largest norm of one example's gradient: public, and 0 where gradients are not clipped."""
        if not isinstance(self._mechanism, GaussianSum):
            return jnp.zeros_like(self.size)
        return jnp.asarray(self._mechanism.clip, jnp.float32)

    def gradient(self, params: Params, active: Value = True) -> tuple[Params, DataGate]:
        """The mean loss gradient over a batch: the sum divided by the *expected* batch size.

        An inactive query returns zeros and costs nothing; use it for steps that this client does not take.
        """
        what = clipping.gradients(self._model)
        units = (self._rows.x, self._rows.y)
        total, meter = self._mechanism(GRADIENT, self._meter, what, params, units, self._rows.mask, active)
        expected = self._mechanism.sampling.rate * self.size
        return trees.scale(1 / expected, total), replace(self, _meter=meter)

    def choose(self, candidates: Params, active: Value = True) -> tuple[Array, DataGate]:
        """The number of the candidate (along the leading axis) that fits this client's examples best, or nearly."""

        def losses(candidates: Params, example: tuple[Tree, Array]) -> Array:
            return jax.vmap(lambda params: self._model.loss(params, *example))(candidates)

        units = (self._rows.x, self._rows.y)
        best, meter = self._chooser(CHOICE, self._meter, losses, candidates, units, self._rows.mask, active)
        return best, replace(self, _meter=meter)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inbox:
    """The clients' messages behind a mechanism. The underscored fields are not for algorithms."""

    _messages: Message
    _weights: Array
    """Each client's public weight; it multiplies the message before the clip."""
    _slots: Array
    """Which client sits in each place."""
    _present: Array
    _meter: Meter
    _mechanism: Mechanism
    expected: Array
    """For every client, the expected weight with which it takes part; public. What means are divided by."""
    round: Array
    messages_are_clean: bool = field(metadata={"static": True})

    @property
    def clients(self) -> int:
        """How many clients there are, present or not."""
        return self.expected.shape[0]

    def _query(self, kind: str, what: clipping.Sum, public: Tree, active: Value) -> tuple[Tree, Inbox]:
        units = (self._messages, self._weights, self._slots)
        total, meter = self._mechanism(kind, self._meter, what, public, units, self._present, active)
        return total, replace(self, _meter=meter)

    def sum(self, active: Value = True) -> tuple[Tree, Inbox]:
        """The (noisy) weighted sum of the messages."""
        what = clipping.rows(lambda _, unit: trees.scale(unit[1], unit[0]))
        return self._query(UPDATE, what, (), active)

    def mean(self, active: Value = True) -> tuple[Tree, Inbox]:
        """The (noisy) weighted mean of the messages, with the expected weight as divisor."""
        total, inbox = self.sum(active)
        return trees.scale(1 / self.expected.sum(), total), inbox

    def mix(self, relation: Array, active: Value = True) -> tuple[Tree, Inbox]:
        """For every row of a public matrix (rows x clients) the (noisy) weighted mean of the messages, in one release.

        A client's message goes into every row, times the matrix entry; all of that together is clipped. Columns are
        divided by the largest column norm before, and the result multiplied by it after, so that a client that stands
        in many rows does not lose by the clip what a client in one row keeps.
        """

        def contribution(relation: Array, unit: Tree) -> Tree:
            message, weight, slot = unit
            shares = weight * relation[:, slot]
            return jax.tree.map(lambda leaf: shares.reshape(-1, *(1,) * leaf.ndim) * leaf[None], message)

        widest = jnp.sqrt(jnp.square(relation).sum(axis=0)).max()
        total, inbox = self._query(MIXTURE, clipping.rows(contribution), relation / widest, active)
        divisors = jnp.maximum(relation @ self.expected, 1e-6) / widest
        return jax.tree.map(lambda leaf: leaf / divisors.reshape(-1, *(1,) * (leaf.ndim - 1)), total), inbox

    def stack(self) -> Message:
        """All messages, one row per client. Refused where messages are private."""
        if not self.messages_are_clean:
            raise PrivacyError("stack() shows raw messages: under client-level privacy use mean() or sum()")
        return self._messages
