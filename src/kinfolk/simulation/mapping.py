"""One function for many clients, or for many runs: all together, or in turns where that is quicker.

On a CPU the weights of a client and what is computed from them should stay in the cache, so clients with many weights
take turns, a few at a time. Small models are quicker together, and on an accelerator everything is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.models import Conv
from kinfolk.types import Model, Tree

IN_A_TURN = 400_000
"""Weights of all clients in a turn together."""
BEYOND = 2**31 - 1
"""The client in a place that is there to fill a turn."""


def takes_turns(model: Model) -> bool:
    """Whether clients and runs are computed one after the other."""
    if any(isinstance(layer, Conv) for layer in model.layers):
        return jax.default_backend() == "cpu"
    return trees.in_turns(jax.eval_shape(model.init, jax.random.key(0)))


def clients_in_a_turn(model: Model) -> int:
    """How many clients are computed side by side in one turn: one alone leaves cores waiting for each other, except
    where convolutions occupy them."""
    if any(isinstance(layer, Conv) for layer in model.layers):
        return 1
    return max(1, IN_A_TURN // trees.size(jax.eval_shape(model.init, jax.random.key(0))))


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
    clients = present.shape[0]
    places = whole_turns(model, present, jnp.arange(clients, dtype=jnp.int32))
    found, _ = at_places(model, lambda _, own: (function(*own), ()), *places, (), rows)
    return found if places[0].shape == present.shape else trees.row(found, slice(clients))


def whole_turns(model: Model, present: Array, index: Array) -> tuple[Array, Array]:
    """Who is present and which client sits in each place, followed by empty places up to a whole number of turns."""
    spare = -present.shape[0] % clients_in_a_turn(model) if takes_turns(model) else 0
    return jnp.pad(present, (0, spare)), jnp.pad(index, (0, spare), constant_values=BEYOND)


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

    In turns, `kept` stays where it is, a few rows of it are changed at a time, and all rows are vectors.
    """
    at = lambda tree, slots: jax.tree.map(lambda leaf: leaf.at[slots].get(mode="clip"), tree)  # noqa: E731
    put = lambda tree, slots, new: jax.tree.map(lambda o, n: o.at[slots].set(n, mode="drop"), tree, new)  # noqa: E731

    def side_by_side(here: Array, kept: Tree, fixed: Tree) -> tuple[Tree, Tree]:
        found, new = jax.vmap(function)(kept, fixed)
        return trees.choose_rows(here, found, trees.zeros_like(found)), new

    if not takes_turns(model):
        found, new = side_by_side(present, at(kept, index), at(fixed, index))
        return found, put(kept, index, new)

    own = jax.eval_shape(lambda: trees.row((kept, fixed), 0))
    shapes, _ = jax.eval_shape(function, *own)
    width = clients_in_a_turn(model)
    lead = () if width == 1 else (width,)
    fixed = trees.vectors(fixed, 1)

    def turn(kept: Tree, places: tuple[Array, Array]) -> tuple[Tree, Tree]:
        here, slots = places

        def work(kept: Tree) -> tuple[Tree, Tree]:
            taken = trees.shaped((kept, at(fixed, slots)), own, len(lead))
            return trees.vectors(side_by_side(here, *taken) if lead else function(*taken), len(lead))

        def nothing(kept: Tree) -> tuple[Tree, Tree]:
            return jax.tree.map(lambda leaf: jnp.zeros((*lead, leaf.size), leaf.dtype), shapes), kept

        found, new = jax.lax.cond(here.any(), work, nothing, at(kept, slots))
        return put(kept, slots, new), found

    turns = present.reshape(-1, *lead), index.reshape(-1, *lead)
    kept, found = jax.lax.scan(turn, trees.vectors(kept, 1), turns)
    found = jax.tree.map(lambda leaf, one: leaf.reshape(*present.shape, *one.shape), found, shapes)
    return found, trees.shaped(kept, own[0], 1)
