"""One function for many clients, or for many runs: all together, or in turns where that is quicker.

On a CPU the weights of one client and what is computed from them should stay in the cache, so clients with many
weights take turns. Small models are quicker together, and on an accelerator everything is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.models import Conv
from kinfolk.types import Model, Tree

MOST_TOGETHER = 10_000
"""Weights of the largest model (without convolutions) that is computed for all clients together on a CPU."""


def takes_turns(model: Model) -> bool:
    """Whether clients and runs are computed one after the other."""
    if jax.default_backend() != "cpu":
        return False
    weights = trees.size(jax.eval_shape(model.init, jax.random.key(0)))
    return weights > MOST_TOGETHER or any(isinstance(layer, Conv) for layer in model.layers)


def over(model: Model, function: Callable[..., Tree], in_axes: Sequence[int | None]) -> Callable[..., Tree]:
    """The function along the leading axis of those arguments whose axis is 0, as by `jax.vmap`."""
    if not takes_turns(model):
        return jax.vmap(function, in_axes=tuple(in_axes))

    def in_turns(*arguments: Tree) -> Tree:
        def one(rows: Sequence[Tree]) -> Tree:
            left = iter(rows)
            return function(*(next(left) if axis == 0 else a for a, axis in zip(arguments, in_axes, strict=True)))

        many = [argument for argument, axis in zip(arguments, in_axes, strict=True) if axis == 0]
        if jax.tree.leaves(many)[0].shape[0] == 1:  # a loop of one turn would copy the state
            return jax.tree.map(lambda leaf: leaf[None], one(trees.row(many, 0)))
        return jax.lax.map(one, many)

    return in_turns


def over_clients(model: Model, function: Callable[..., Tree], present: Array, *rows: Tree) -> Tree:
    """The function of each client's rows. What comes out for an absent client means nothing, and may cost nothing."""

    def if_present(present: Array, *own: Tree) -> Tree:
        shapes = jax.eval_shape(function, *own)
        blank = lambda *_: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)  # noqa: E731
        return jax.lax.cond(present, function, blank, *own)

    if not takes_turns(model):
        return jax.vmap(function)(*rows)
    axes: Any = (0,) * (1 + len(rows))
    return over(model, if_present, axes)(present, *rows)
