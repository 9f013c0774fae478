"""One function for many clients, or for many runs: all together, or in turns where that is quicker.

On a CPU the weights of one client and what is computed from them should stay in the cache, so clients with many
weights take turns. Small models are quicker together, and on an accelerator everything is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.models import Conv
from kinfolk.types import Model, Tree


def takes_turns(model: Model) -> bool:
    """Whether clients and runs are computed one after the other."""
    if any(isinstance(layer, Conv) for layer in model.layers):
        return jax.default_backend() == "cpu"
    return trees.in_turns(jax.eval_shape(model.init, jax.random.key(0)))


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
    """The function of each client's rows, and zeros for absent clients, who cost nothing where clients take turns."""
    if not takes_turns(model):
        found = jax.vmap(function)(*rows)
        return trees.choose_rows(present, found, trees.zeros_like(found))

    def if_present(present: Array, *own: Tree) -> Tree:
        shapes = jax.eval_shape(function, *own)
        nothing = lambda *_: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)  # noqa: E731
        return jax.lax.cond(present, function, nothing, *own)

    return over(model, if_present, (0,) * (1 + len(rows)))(present, *rows)
