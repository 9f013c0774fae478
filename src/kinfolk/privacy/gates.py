"""The two doors. A `DataGate` stands between an algorithm and a client's examples, an `Inbox` between the aggregator
and the clients' messages. What stands in the door is a mechanism; a privacy level decides which.

Both are consumed and returned, like a random key: use the one you get back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.closed_form import newton
from kinfolk.models import error
from kinfolk.privacy import clipping, moments, statistics
from kinfolk.privacy.choice import Chooser
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Meter, PrivacyError
from kinfolk.privacy.statistics import Query
from kinfolk.types import Message, Model, Params, Rows, Tree, Value
from kinfolk.units import over_rows

GRADIENT = "gradient"
CHOICE = "choice"
STATISTIC = "statistic"
EVALUATION = "evaluation"
"""Made once, after training: it has a meter of its own (`training/published.py`)."""
UPDATE = "update"
MIXTURE = "mixture"
SECOND_MOMENT = "second_moment"
SQUARES = "squares"


@trees.register
@dataclass(frozen=True)
class DataGate:
    """A client's examples behind a mechanism. The underscored fields are not for algorithms."""

    _rows: Rows
    _meter: Meter
    _mechanism: Mechanism
    _chooser: Chooser
    size: Array
    """The client's number of training examples, or of people; public."""
    steps: Array
    """How many local steps this client takes in a round; public."""
    round: Array
    """Number of the round, from 0."""
    most_steps: int = field(metadata={"static": True})
    """The largest `steps` of any client computed together with this one: the length of the loop."""
    _model: Model = field(metadata={"static": True})

    @property
    def clip(self) -> Array:
        """Largest norm of one example's gradient: public, and 0 where gradients are not clipped."""
        return jnp.asarray(self._mechanism.clip, jnp.float32)

    def gradient(self, params: Params, active: Value = True) -> tuple[Params, DataGate]:
        """The mean loss gradient over a batch: the sum divided by the *expected* batch size.

        An inactive query returns zeros and costs nothing; use it for steps that this client does not take.

        `params`: the weights of a model. `active`: whether the query is made; public.
        """
        what = clipping.gradients(self._model)
        units = (self._rows.x, self._rows.y)
        total, meter = self._mechanism(GRADIENT, self._meter, what, params, units, self._rows.mask, active)
        expected = self._mechanism.sampling.rate * self.size
        return trees.scale(1 / expected, total), replace(self, _meter=meter)

    def statistic(self, query: Query, active: Value = True) -> tuple[Array, DataGate]:
        """The mean of a query's vectors over the rows: their sum divided by the *expected* number of rows.

        A vector is at most 1 long; every coordinate of the mean has noise of deviation `relative_noise`.

        `query`: what a row contributes (`privacy/statistics.py`); its numbers are public. `active`: whether it is
        asked; if not, it is zeros and free.
        """
        units = (self._rows.x, self._rows.y)
        what = statistics.bounded()
        total, meter = self._mechanism(STATISTIC, self._meter, what, query, units, self._rows.mask, active)
        expected = self._mechanism.sampling.rate * self.size
        return total / (expected * self._unit), replace(self, _meter=meter)

    @property
    def _unit(self) -> Array:
        """What one example can move a sum by; 1 where nothing is clipped."""
        return jnp.float32(1) if self._mechanism.open else self.clip

    @property
    def relative_noise(self) -> Array:
        """Standard deviation of the noise on each coordinate of a statistic; public, and 0 where there is none."""
        return self.noise / self._unit

    def choose(self, candidates: Params, active: Value = True) -> tuple[Array, DataGate]:
        """The number of the candidate (along the leading axis) that fits this client's examples best, or nearly.

        An example's score is its loss, or whether it is classified wrongly, as the chooser says.

        `candidates`: weights, along a leading axis. `active`: whether it is asked; if not, it is 0 and free.
        """
        model, score = self._model, self._chooser.score

        def of_row(candidates: Params, x: Tree, y: Array) -> Array:
            if score == "error":
                return jax.vmap(lambda params: error(model, model.predict(params, x), y))(candidates)
            return jax.vmap(lambda params: model.loss(params, x, y))(candidates)

        def scores(candidates: Params, example: tuple[Tree, Array]) -> Array:
            return over_rows(of_row)(candidates, *example)

        units = (self._rows.x, self._rows.y)
        best, meter = self._chooser(CHOICE, self._meter, scores, candidates, units, self._rows.mask, active)
        return best, replace(self, _meter=meter)

    @property
    def noise(self) -> Array:
        """Standard deviation of the noise on each coordinate of a gradient; public, and 0 where there is none."""
        if self._mechanism.open:
            return jnp.zeros_like(self.size)
        expected = self._mechanism.sampling.rate * self.size
        return self._mechanism.noise_multiplier * self._mechanism.clip / expected

    @property
    def model(self) -> Model:
        """The model, as functions of one example."""
        return self._model

    def examples(self) -> Rows:
        """The client's examples themselves, where this door is open: what a client does alone is free at client level.

        At example level everything a client sends or keeps is published, so there they are refused.
        """
        if not self._mechanism.open:
            raise PrivacyError(
                "examples() and solve() show raw data: at example level ask for gradient() or choose(), which are "
                "released, or use level='client'"
            )
        return self._rows

    def solve(self, centre: Params, precision: Value, steps: int = 1) -> Params:
        """The weights that minimise the client's mean loss plus `precision / 2` times the squared distance to `centre`.

        `precision` is a number, one per weight, or a matrix. One step is exact for linear models with squared loss;
        others take a few Newton steps. Refused at example level, like `examples`.

        `steps`: Newton steps.
        """
        return newton(self._model, self.examples(), centre, precision, steps)


@trees.register
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
    """Number of the round, from 0."""
    messages_are_clean: bool = field(metadata={"static": True})
    """Whether messages were released by the clients already."""
    _devices: int = field(default=1, metadata={"static": True})
    """Among how many devices messages are divided."""

    @property
    def laplace(self) -> bool:
        """Whether the noise is Laplace's; public."""
        return self._mechanism.law == "laplace"

    @property
    def rate(self) -> Array:
        """The share of a client's weight that is expected in a round; public. 1 where everybody takes part."""
        return jnp.asarray(self._mechanism.sampling.rate, jnp.float32)

    @property
    def clients(self) -> int:
        """How many clients there are, present or not."""
        return self.expected.shape[0]

    def _query(self, kind: str, what: clipping.Sum, public: Tree, active: Value) -> tuple[Tree, Inbox]:
        units = (self._messages, self._weights, self._slots)
        total, meter = self._mechanism(kind, self._meter, what, public, units, self._present, active)
        return total, replace(self, _meter=meter)

    def sum(self, active: Value = True) -> tuple[Tree, Inbox]:
        """The (noisy) weighted sum of the messages.

        `active`: whether it is asked; if not, it is zeros and free.
        """
        what = clipping.rows(lambda _, unit: trees.scale(unit[1], unit[0]), self._devices)
        return self._query(UPDATE, what, (), active)

    def mean(self, active: Value = True) -> tuple[Tree, Inbox]:
        """The (noisy) weighted mean of the messages, with the expected weight as divisor.

        `active`: whether it is asked; if not, it is zeros and free.
        """
        total, inbox = self.sum(active)
        return trees.scale(1 / self.expected.sum(), total), inbox

    def mix(self, relation: Array, active: Value = True) -> tuple[Tree, Inbox]:
        """For every row of a public matrix (rows x clients) the (noisy) weighted mean of the messages, in one release.

        A negative entry turns a message round; a row is divided by the sum of its entries without their signs.

        A client's message goes into every row, times the matrix entry; all of that together is clipped. Columns are
        divided by the largest column norm before, and the result multiplied by it after, so that a client that stands
        in many rows does not lose by the clip what a client in one row keeps.

        `relation`: the matrix; public. `active`: whether it is asked; if not, it is zeros and free.
        """

        def contribution(relation: Array, unit: Tree) -> Tree:
            message, weight, slot = unit
            shares = weight * relation[:, slot]
            return jax.tree.map(lambda leaf: shares.reshape(-1, *(1,) * leaf.ndim) * leaf[None], message)

        widest = jnp.sqrt(jnp.square(relation).sum(axis=0)).max()
        total, inbox = self._query(MIXTURE, clipping.rows(contribution, self._devices), relation / widest, active)
        divisors = jnp.maximum(jnp.abs(relation) @ self.expected, 1e-6) / widest
        return jax.tree.map(lambda leaf: leaf / divisors.reshape(-1, *(1,) * (leaf.ndim - 1)), total), inbox

    def second_moment(self, active: Value = True) -> tuple[Array, Inbox]:
        """The (noisy) weighted sum of W W^T, W (features x outputs) a client's message clipped to the clip norm K.

        Noise is symmetric, with deviation `deviation` on the diagonal and 1/sqrt(2) of that off it.

        `active`: whether it is asked; if not, it is zeros and free.
        """
        total, inbox = self._query(SECOND_MOMENT, moments.second_moments(), (), active)
        return moments.symmetric(total), inbox

    def squares(self, active: Value = True) -> tuple[Array, Inbox]:
        """The diagonal of the second moment alone, released far more cheaply: one value per feature.

        `active`: whether it is asked; if not, it is zeros and free.
        """
        return self._query(SQUARES, moments.squares(), (), active)

    @property
    def deviation(self) -> Array:
        """Of the noise in a second moment or in squares: their bound K^2 times the noise multiplier, of all the
        shares where it is shared; public."""
        own = self._mechanism
        bound = jnp.square(own.clip) if own.excess == 1 else math.sqrt(own.excess) * jnp.square(own.clip)
        return jnp.asarray(own.noise_multiplier * bound, jnp.float32)

    @property
    def relative_noise(self) -> Array:
        """Of the noise on each coordinate of a sum: its standard deviation in units of the clip norm, of all the shares
        where it is shared; public, and 0 where there is none."""
        return jnp.asarray(self._mechanism.noise_multiplier * math.sqrt(self._mechanism.excess), jnp.float32)

    def stack(self) -> Message:
        """All messages, one row per client. Refused where messages are private."""
        if not self.messages_are_clean:
            raise PrivacyError("stack() shows raw messages: under client-level privacy use mean() or sum()")
        return self._messages
