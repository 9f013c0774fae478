"""Sums of bounded vectors, one per row: what a method asks for that needs few releases instead of many gradients.

A query says, with public numbers, which vector a row contributes. Its parts lie in balls (or intervals) of public size;
each is divided by its bound and gets a share of the vector's squared length, so that the whole is at most 1 long. That
it is no longer is not left to the query: the sum clips every contribution once more, as it does for any other.

Numbers in an interval are taken from its middle: a row that is left out then moves a sum by half of the interval, one
that is replaced by all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.privacy.clipping import Sum, clip_factor, rows
from kinfolk.types import Tree
from kinfolk.units import over_rows


class Query(Protocol):
    """What a row contributes; a pytree of public numbers, with one row's vector as a function of them."""

    def contribution(self, x: Tree, y: Array) -> Array:
        """One row's vector, at most 1 long.

        `x`: the row's features. `y`: its target.
        """
        ...


def bounded() -> Sum:
    """The sum of a query's vectors, in units of the mechanism's clip: one row moves it by at most the clip.

    A person's vector is the mean of its rows'.
    """
    of_unit = over_rows(lambda query, x, y: query.contribution(x, y))
    plain = rows(lambda query, unit: of_unit(query, *unit))
    one = jnp.float32(1)
    return Sum(
        "bounded",
        plain.exact,
        lambda query, units, weights, clip: trees.scale(clip, plain.clipped(query, units, weights, one)),
        lambda query, units, weights, clip: plain.on_grid(query, units, weights, one),
    )


def within(vector: Array, bound: Array) -> Array:
    """The vector cut to the bound, and divided by it."""
    return vector * clip_factor(jnp.linalg.norm(vector), bound) / bound


def joined(parts: Sequence[tuple[Array, Array]]) -> Array:
    """Vectors that are each at most 1 long as one that is; the numbers beside them are their shares, which add to 1."""
    return jnp.concatenate([jnp.sqrt(share) * vector for vector, share in parts])


def hats(value: Array, nodes: int) -> Array:
    """How a number in -1..1 lies between evenly spaced nodes: a soft place in a histogram, of length at most 1.

    Numbers outside count as the nearer end.
    """
    place = (jnp.clip(value, -1, 1) + 1) * ((nodes - 1) / 2)
    return jnp.maximum(1 - jnp.abs(place - jnp.arange(nodes, dtype=jnp.float32)), 0)


@trees.register
@dataclass(frozen=True)
class FirstLook:
    """Where features lie and how far they reach, and a soft histogram of the target."""

    radius: Array
    """Features are cut to this length, and their squared length to twice its square."""
    bound: Array
    """Targets lie within this distance of 0."""
    shares: Array
    """Of the histogram, of the features and of their squared length."""
    nodes: int = field(metadata={"static": True})
    """Of the histogram."""

    def contribution(self, x: Tree, y: Array) -> Array:
        """One row's vector.

        `x`: the row's features. `y`: its target.
        """
        x = jnp.ravel(x).astype(jnp.float32)
        reach = jnp.minimum(jnp.square(x).sum() / jnp.square(self.radius), 2) - 1
        place = hats(y.astype(jnp.float32) / self.bound, self.nodes)
        found = (place, within(x, self.radius), reach[None])
        return joined([(vector, self.shares[k]) for k, vector in enumerate(found)])


@trees.register
@dataclass(frozen=True)
class RowMoments:
    """Products and values of features about a public centre, cut to a radius R: [u u', R u] / (sqrt(2) R^2).

    Of length sqrt(|u|^4 + R^2 |u|^2) / (sqrt(2) R^2), at most 1. Two of them are at most 1.5 apart; a row that is
    replaced is charged as 2, like every vector's, which errs on the safe side.
    """

    centre: Array
    radius: Array

    def contribution(self, x: Tree, y: Array) -> Array:
        """One row's vector.

        `x`: the row's features. `y`: its target, which is not looked at.
        """
        unit = within(jnp.ravel(x).astype(jnp.float32) - self.centre, self.radius)
        return jnp.concatenate([jnp.outer(unit, unit).ravel(), unit]) / jnp.sqrt(jnp.float32(2))


@trees.register
@dataclass(frozen=True)
class Line:
    """What a linear model misses of a row's target: features are centred and turned, the target is divided by a unit.

    Weights are (the constant, then one per turned feature), or several such rows.
    """

    centre: Array
    turn: Array
    weights: Array
    bound: Array
    """Targets are cut to this distance of 0."""
    unit: Array

    def features(self, x: Tree) -> Array:
        """The turned features of one row.

        `x`: its features.
        """
        return (jnp.ravel(x).astype(jnp.float32) - self.centre) @ self.turn

    def missed(self, z: Array, y: Array) -> Array:
        """The target minus what the weights say.

        `z`: the turned features. `y`: the target.
        """
        target = jnp.clip(y.astype(jnp.float32), -self.bound, self.bound) / self.unit
        return target - self.weights[..., 0] - self.weights[..., 1:] @ z


@trees.register
@dataclass(frozen=True)
class Residuals:
    """A linear model's gradient in two parts, each with a clip of its own, and the square of what it misses."""

    line: Line
    clips: Array
    """Of what is missed, and of its product with the features."""
    cap: Array
    """Of its square."""
    shares: Array
    """Of these three."""

    def contribution(self, x: Tree, y: Array) -> Array:
        """One row's vector.

        `x`: the row's features. `y`: its target.
        """
        z = self.line.features(x)
        miss = self.line.missed(z, y)
        square = 2 * jnp.minimum(jnp.square(miss) / self.cap, 1) - 1
        found = (within(miss[None], self.clips[0]), within(miss * z, self.clips[1]), square[None])
        return joined([(vector, self.shares[k]) for k, vector in enumerate(found)])


@trees.register
@dataclass(frozen=True)
class Losses:
    """The squared error of several linear models, each up to a cap."""

    line: Line
    cap: Array

    def contribution(self, x: Tree, y: Array) -> Array:
        """One row's vector.

        `x`: the row's features. `y`: its target.
        """
        each = 2 * jnp.minimum(jnp.square(self.line.missed(self.line.features(x), y)) / self.cap, 1) - 1
        return each / jnp.sqrt(jnp.float32(each.shape[0]))


@trees.register
@dataclass(frozen=True)
class FeatureLook:
    """Where features lie and how far they reach."""

    radius: Array
    """Features are cut to this length, and their squared length to twice its square."""
    shares: Array
    """Of the features and of their squared length."""

    def contribution(self, x: Tree, y: Array) -> Array:
        """One row's vector.

        `x`: the row's features. `y`: its target, which is not looked at.
        """
        x = jnp.ravel(x).astype(jnp.float32)
        reach = jnp.minimum(jnp.square(x).sum() / jnp.square(self.radius), 2) - 1
        return joined([(within(x, self.radius), self.shares[0]), (reach[None], self.shares[1])])


@trees.register
@dataclass(frozen=True)
class FeatureSpread:
    """Squares and values of features about a public centre, half of the vector's squared length each."""

    centre: Array
    radius: Array
    """Features are cut to this distance of the centre."""
    bound: Array
    """Of the vector of their squares."""

    def contribution(self, x: Tree, y: Array) -> Array:
        """One row's vector.

        `x`: the row's features. `y`: its target, which is not looked at.
        """
        unit = within(jnp.ravel(x).astype(jnp.float32) - self.centre, self.radius)
        squares = within(jnp.square(self.radius * unit), self.bound)
        return jnp.concatenate([squares, unit]) / jnp.sqrt(jnp.float32(2))


@trees.register
@dataclass(frozen=True)
class LogisticGradient:
    """What a logistic model misses of a row's answer, times 1 and the features."""

    weights: Array
    """The constant, then one per feature."""
    clip: Array

    def contribution(self, x: Tree, y: Array) -> Array:
        """One row's vector.

        `x`: the row's features. `y`: its answer, 0 or 1.
        """
        x = jnp.concatenate([jnp.ones(1, jnp.float32), jnp.ravel(x).astype(jnp.float32)])
        miss = jnp.clip(y.astype(jnp.float32), 0, 1) - jax.nn.sigmoid(self.weights @ x)
        return within(miss * x, self.clip)


@trees.register
@dataclass(frozen=True)
class OneOf:
    """One of several queries, by its public number; its vector is filled up with zeros to the longest of theirs."""

    number: Array
    queries: tuple[Query, ...]

    def contribution(self, x: Tree, y: Array) -> Array:
        """One row's vector.

        `x`: the row's features. `y`: its target.
        """
        longest = max(jax.eval_shape(query.contribution, x, y).size for query in self.queries)

        def filled(query: Query) -> Array:
            found = query.contribution(x, y)
            return jnp.concatenate([found, jnp.zeros(longest - found.size, jnp.float32)])

        return jax.lax.switch(self.number, [partial(filled, query) for query in self.queries])
