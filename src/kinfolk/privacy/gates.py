"""The two doors. A `DataGate` stands between an algorithm and a client's examples, an `Inbox` between the aggregator
and the clients' messages. What stands in the door is a mechanism; a privacy level decides which.

Both are consumed and returned, like a random key: use the one you get back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
from jax import Array

from kinfolk import trees
from kinfolk.privacy import clipping
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Meter, PrivacyError

if TYPE_CHECKING:
    from kinfolk.types import Message, Model, Params, Tree, Value

GRADIENT = "gradient"
UPDATE = "update"


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
    size: Array
    """The client's number of training examples; public."""
    steps: Array
    """How many local steps this client takes in a round; public."""
    round: Array
    """Number of the round, from 0."""
    most_steps: int = field(metadata={"static": True})
    """The largest `steps` of any client computed together with this one: the length of the loop."""
    _model: Model = field(metadata={"static": True})

    def gradient(self, params: Params, active: Value = True) -> tuple[Params, DataGate]:
        """The mean loss gradient over a batch: the sum divided by the *expected* batch size.

        An inactive query returns zeros and costs nothing; use it for steps that this client does not take.
        """
        what = clipping.gradients(self._model)
        units = (self._rows.x, self._rows.y)
        total, meter = self._mechanism(GRADIENT, self._meter, what, params, units, self._rows.mask, active)
        expected = self._mechanism.sampling.rate * self.size
        return trees.scale(1 / expected, total), replace(self, _meter=meter)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inbox:
    """The clients' messages behind a mechanism. The underscored fields are not for algorithms."""

    _messages: Message
    _weights: Array
    """Each client's public weight; it multiplies the message before the clip."""
    _present: Array
    _meter: Meter
    _mechanism: Mechanism
    expected_weight: Array
    """The expected sum of the weights of those who take part; public. What `mean` divides by."""
    round: Array
    messages_are_clean: bool = field(metadata={"static": True})

    def sum(self) -> tuple[Tree, Inbox]:
        """The (noisy) weighted sum of the messages."""
        what = clipping.rows(lambda _, unit: trees.scale(unit[1], unit[0]))
        units = (self._messages, self._weights)
        total, meter = self._mechanism(UPDATE, self._meter, what, (), units, self._present, True)
        return total, replace(self, _meter=meter)

    def mean(self) -> tuple[Tree, Inbox]:
        """The (noisy) weighted mean of the messages, with the expected weight as divisor."""
        total, inbox = self.sum()
        return trees.scale(1 / self.expected_weight, total), inbox

    def stack(self) -> Message:
        """All messages, one row per client. Refused where messages are private."""
        if not self.messages_are_clean:
            raise PrivacyError("stack() shows raw messages: under client-level privacy use mean() or sum()")
        return self._messages
