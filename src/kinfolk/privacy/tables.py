"""Tables of predictions against what came out: what an evaluation releases, once, for every unit as a whole.

A unit (a row, a person, a client) adds its rows' mean: each row is in one cell, or between two. So whatever it holds,
the absolute values of all that it adds, over all tables, bins and groups, sum to at most 1; one that is replaced moves
the table by at most 2. That they do is not left to the tables: the sum sees to it once more, unit by unit.

Where a row goes is decided by public numbers: edges of bins, and either a model that is public (example level) or the
unit's own (client level, where the client is the unit).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.models import error
from kinfolk.outcomes import OUTCOMES, log_odds_of_event, rate
from kinfolk.privacy.clipping import Sum, rows
from kinfolk.types import Model, Params, Tree

GAINS = 3
"""Cells for whether a client gains by its own model: less error than the shared model, the same, more."""
GAIN_SHARE = 0.2
"""Of what a client adds, where gains are counted."""
SCORED = ("binary", "survival")
"""Outcomes whose rows are sorted by a score, and by what came out."""
MOST_LABELS = 10
"""With more, a table has right and wrong for each label instead of all pairs."""


@trees.register
@dataclass(frozen=True)
class Unit:
    """Everything of one unit that an evaluation looks at."""

    x: Tree
    """Features of its rows, along the leading axis."""
    y: Tree
    """Their targets."""
    group: Tree
    """The number of each row's group."""
    keep: Tree
    """Which rows are real."""
    params: Params | None = None
    """Its own model, where that is private."""


@trees.register
@dataclass(frozen=True)
class Board:
    """Where rows go; public numbers all of it."""

    edges: Array
    """Of score bins, or nodes of misses."""
    params: Params | None
    """The model, where it is public."""
    shared: Params | None
    """The model that units' own are compared with."""
    model: Model = field(metadata={"static": True})
    labels: int = field(metadata={"static": True})
    """How many labels, levels or intervals there are."""
    groups: int = field(default=1, metadata={"static": True})
    sets: bool = field(default=False, metadata={"static": True})
    """Whether rows are sorted by how little their outcome conforms, for prediction sets, instead of for metrics."""
    posted: bool = field(default=False, metadata={"static": True})
    """Whether units are vectors that clients made of their own rows, of the same board: each is taken as it came, and
    the sum bounds it once more."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the table: groups, then what its rows are sorted by."""
        return (self.groups, *self._one_group)

    @property
    def _one_group(self) -> tuple[int, ...]:
        if self.sets:
            return (self.edges.shape[-1] + 1,)
        if self.model.outcome in ("number", "count"):
            return (self.edges.shape[-1],)
        if self.model.outcome in SCORED:
            return (self.edges.shape[-1] + 1, self._columns)
        if self.model.outcome == "labels":
            return (2, 2)
        return (self.labels, self.labels if self.labels <= MOST_LABELS else 2)

    @property
    def _columns(self) -> int:
        """What may come out beside a score: no and yes, or each course through the intervals."""
        return 2 if self.model.outcome == "binary" else 2 * self.labels + 1

    def contribution(self, unit: Unit | Array) -> Array:
        """What a unit adds: its rows' mean, and behind that whether it gains.

        `unit`: its rows, and its model where that is private; or the vector, where it was posted.
        """
        if self.posted or not isinstance(unit, Unit):
            return jnp.asarray(unit)
        params = unit.params if self.params is None else self.params
        outputs = jax.vmap(lambda x: self.model.predict(params, x))(unit.x)
        each = jax.vmap(self._cell)(outputs, unit.y)
        groups = jax.nn.one_hot(unit.group, self.groups, dtype=jnp.float32)
        kept = unit.keep.astype(jnp.float32)
        shares = kept / jnp.maximum(kept.sum(), 1)
        flat = jnp.einsum("r,rg,rc->gc", shares, groups, jnp.where(unit.keep[:, None], each, 0)).ravel()
        if self.shared is None:
            return flat
        gained = (1 - GAIN_SHARE) * flat, GAIN_SHARE * self._gain(outputs, unit, shares)
        return jnp.concatenate(gained)

    def _cell(self, output: Array, y: Array) -> Array:
        """One row's place, as a vector of the cells of a group."""
        if self.sets:
            misfit = nonconformity(self.model.outcome, output, y)
            place = jnp.searchsorted(self.edges, jnp.where(jnp.isnan(misfit), jnp.inf, misfit), side="left")
            return jax.nn.one_hot(place, self.edges.shape[-1] + 1, dtype=jnp.float32)
        if self.model.outcome in ("number", "count"):
            return between(y - (output if self.model.outcome == "number" else rate(output)), self.edges)
        if self.model.outcome in SCORED:
            place = jnp.searchsorted(self.edges, score(self.model, output), side="right") * self._columns
            came = (y > 0) if self.model.outcome == "binary" else jnp.clip(y, 0, self._columns - 1)
            return jax.nn.one_hot(
                place + came.astype(jnp.int32), (self.edges.shape[-1] + 1) * self._columns, dtype=jnp.float32
            )
        if self.model.outcome == "labels":
            places = 2 * y + (output > 0).astype(jnp.int32)
            return jax.nn.one_hot(places, 4, dtype=jnp.float32).mean(axis=0)
        guess = OUTCOMES[self.model.outcome].guess
        assert guess is not None
        guess, label = guess(output), y.astype(jnp.int32)
        if self.labels > MOST_LABELS:
            return jax.nn.one_hot(2 * label + (guess == label).astype(jnp.int32), 2 * self.labels, dtype=jnp.float32)
        return jax.nn.one_hot(label * self.labels + guess, self.labels**2, dtype=jnp.float32)

    def _gain(self, outputs: Array, unit: Unit, shares: Array) -> Array:
        theirs = jax.vmap(lambda x: self.model.predict(self.shared, x))(unit.x)
        wrong = jax.vmap(lambda output, y: error(self.model, output, y))
        own, other = (shares @ jnp.where(unit.keep, wrong(found, unit.y), 0) for found in (outputs, theirs))
        place = jnp.where(own < other, 0, jnp.where(own > other, 2, 1))
        return jnp.where(unit.keep.any(), jax.nn.one_hot(place, GAINS, dtype=jnp.float32), 0)


def score(model: Model, output: Array) -> Array:
    """The log odds of the outcome; of a time until an event, that it comes by the last edge."""
    return output if model.outcome == "binary" else log_odds_of_event(output)


def nonconformity(outcome: str, output: Array, y: Array) -> Array:
    """How little an outcome conforms to a prediction: what it misses, or one minus the chance of the label.

    `outcome`: what is predicted. `output`: the model's. `y`: what came out.
    """
    if outcome == "number":
        return jnp.abs(y - output)
    if outcome == "binary":
        return jax.nn.sigmoid(jnp.where(y > 0, -output, output))
    return 1 - jax.nn.softmax(output)[y.astype(jnp.int32)]


def between(value: Array, nodes: Array) -> Array:
    """How a number lies between public nodes: shares of the two next to it, which sum to 1; at the ends, of one."""
    value = jnp.clip(value, nodes[0], nodes[-1])
    right = jnp.clip(jnp.searchsorted(nodes, value, side="right"), 1, nodes.shape[0] - 1)
    share = (value - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
    places = jnp.arange(nodes.shape[0], dtype=right.dtype)
    return jnp.where(places == right, share, 0) + jnp.where(places == right - 1, 1 - share, 0)


def counts() -> Sum:
    """The sum of what units add, in units of the mechanism's clip: one moves it by at most the clip, in L1 as in L2."""
    plain = rows(lambda board, unit: at_most_one(board.contribution(unit)))
    one = jnp.float32(1)
    return Sum(
        "counts",
        plain.exact,
        lambda board, units, weights, clip: trees.scale(clip, plain.clipped(board, units, weights, one)),
        lambda board, units, weights, clip: plain.on_grid(board, units, weights, one),
        within_l1=True,
    )


def at_most_one(vector: Array) -> Array:
    """The vector, divided by the sum of its absolute values where that is more than 1; zeros if it is not finite."""
    total = jnp.abs(vector).sum()
    return jnp.where(jnp.isfinite(total), vector / jnp.maximum(total, 1), jnp.zeros_like(vector))
