"""A unit that has several rows: a person, all of whose rows at a client are protected at once.

What a unit contributes (a gradient, a bounded vector, a score) is the mean over its rows, taken *before* it is clipped:
a mean of vectors that lie in a ball lies in it too, a sum does not. Whoever clips, samples or counts sees units alone,
and never how many rows one has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees

Tree = Any


@trees.register
@dataclass(frozen=True)
class Several:
    """The features of a unit with room for a public number of rows; its targets have the same places."""

    rows: Tree
    """Features, one row per place. A place that is not needed has a copy of another of the unit's own rows."""
    shares: Tree
    """How much each place counts: 1/n in the n places that are filled, 0 in the others."""


def mean(each: Tree, shares: Array) -> Tree:
    """The mean of values along the leading axis; what does not count is left out, also where it is not finite."""

    def one(leaf: Array) -> Array:
        weights = shares.reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.where(weights > 0, weights * leaf, 0).sum(axis=0)

    return jax.tree.map(one, each)


def over_rows(function: Callable[[Tree, Tree, Array], Tree]) -> Callable[[Tree, Tree, Array], Tree]:
    """From a function `(public, x, y)` of one row to that of a unit: the same, or the mean over the unit's rows."""

    def of_unit(public: Tree, x: Tree, y: Array) -> Tree:
        if not isinstance(x, Several):
            return function(public, x, y)
        return mean(jax.vmap(function, in_axes=(None, 0, 0))(public, x.rows, y), x.shares)

    return of_unit
