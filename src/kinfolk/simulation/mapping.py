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
    places = jnp.arange(present.shape[0], dtype=jnp.int32)
    return at_places(model, lambda _, own: (function(*own), ()), present, places, (), rows)[0]


def at_places(
    model: Model,
    function: Callable[[Tree, Tree], tuple[Tree, Tree]],
    present: Array,
    index: Array,
    kept: Tree,
    fixed: Tree,
) -> tuple[Tree, Tree]:
    """`function(kept, fixed)` of the rows of the clients in some places: what it returns first, zeros for empty places,
    and all rows of `kept` with what it returns second put back. The client in an empty place is beyond the last.

    In turns, `kept` stays where it is, one row of it is changed at a time, and all rows are vectors.
    """
    at = lambda tree, slots: jax.tree.map(lambda leaf: leaf.at[slots].get(mode="clip"), tree)  # noqa: E731
    put = lambda tree, slots, new: jax.tree.map(lambda o, n: o.at[slots].set(n, mode="drop"), tree, new)  # noqa: E731
    if not takes_turns(model):
        found, new = jax.vmap(function)(at(kept, index), at(fixed, index))
        return trees.choose_rows(present, found, trees.zeros_like(found)), put(kept, index, new)

    own = jax.eval_shape(lambda: trees.row((kept, fixed), 0))
    shapes, _ = jax.eval_shape(function, *own)
    fixed = trees.vectors(fixed, 1)

    def turn(kept: Tree, place: tuple[Array, Array]) -> tuple[Tree, Tree]:
        here, slot = place

        def work(kept: Tree) -> tuple[Tree, Tree]:
            return trees.vectors(function(*trees.shaped((kept, at(fixed, slot)), own)))

        def nothing(kept: Tree) -> tuple[Tree, Tree]:
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.size, leaf.dtype), shapes), kept

        found, new = jax.lax.cond(here, work, nothing, at(kept, slot))
        return put(kept, slot, new), found

    kept, found = jax.lax.scan(turn, trees.vectors(kept, 1), (present, index))
    return trees.shaped(found, shapes, 1), trees.shaped(kept, own[0], 1)
