"""One function for many clients, or for many runs: all together, or in turns where that is quicker.

On a CPU the weights of a client and what is computed from them should stay in the cache, so clients with many weights
take turns, a few at a time. Small models are quicker together, and on an accelerator everything is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.models import Conv
from kinfolk.types import Model, Tree

OfRows = Callable[[Tree, Tree], tuple[Tree, Tree]]
"""Of a client's changing and fixed rows: what is found, and the changing ones afterwards."""
BEYOND = 2**31 - 1
"""A row that is beyond the last of everything: what is put there is dropped."""


def takes_turns(model: Model) -> bool:
    """Whether clients and runs are computed a few at a time."""
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
    everyone = jnp.arange(present.shape[0], dtype=jnp.int32)
    one = lambda _, own: (function(*own), ())  # noqa: E731
    return at_places(model, [one], jnp.zeros_like(everyone), present, everyone, (), rows)[0]


def at_places(
    model: Model, functions: Sequence[OfRows], least: Array, present: Array, index: Array, kept: Tree, fixed: Tree
) -> tuple[Tree, Tree]:
    """`function(kept, fixed)` of the rows of the clients in some places: what it returns first, zeros for empty places,
    and all rows of `kept` with what it returns second put back. The client in an empty place is beyond the last.

    The last function is right for all, and function k, which is quicker, for clients whose `least` is at most k. In
    turns, those with a quick function come first; `kept` stays where it is, a few rows of it are changed at a time, and
    all rows are vectors.
    """
    if not takes_turns(model):
        found, new = jax.vmap(functions[-1])(trees.rows_at(kept, index), trees.rows_at(fixed, index))
        return trees.choose_rows(present, found, trees.zeros_like(found)), _put(kept, index, new)
    count, own = present.shape[0], jax.eval_shape(lambda: trees.row((kept, fixed), 0))
    turn = jnp.arange(min(count, _at_a_time(model)), dtype=jnp.int32)
    if turn.size == 1:  # steps that somebody does not take cost nothing then, and compiling twice would
        functions, least = functions[-1:], jnp.zeros_like(least)
    shapes, _ = jax.eval_shape(functions[-1], *own)
    least = jnp.where(present, trees.rows_at(least, index), len(functions))
    order = jnp.argsort(least).astype(jnp.int32)
    fixed = trees.vectors(fixed, 1)

    def take(carry: tuple[Tree, Tree], begin: Array) -> tuple[tuple[Tree, Tree], None]:
        places = order.at[begin + turn].get(mode="fill", fill_value=BEYOND)
        here = present.at[places].get(mode="fill", fill_value=False)
        slots, rows = jnp.where(here, trees.rows_at(index, places), BEYOND), jnp.where(here, places, BEYOND)

        def work(function: OfRows, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            found, kept = carry
            one = lambda kept, fixed: trees.vectors(function(*trees.shaped((kept, fixed), own)))  # noqa: E731
            some = trees.rows_at((kept, fixed), slots)
            if turn.size == 1:
                more, new = jax.tree.map(lambda leaf: leaf[None], one(*trees.row(some, 0)))
            else:
                more, new = jax.vmap(one)(*some)
            return _put(found, rows, more), _put(kept, slots, new)

        need = jnp.where(here, trees.rows_at(least, places), -1).max()
        for number, function in enumerate(functions):  # not a switch: of that, XLA copies what is carried
            carry = jax.lax.cond(need == number, partial(work, function), lambda carry: carry, carry)
        return carry, None

    nothing = jax.tree.map(lambda leaf: jnp.zeros((count, leaf.size), leaf.dtype), shapes)
    begins = jnp.arange(0, count, turn.size, dtype=jnp.int32)
    (found, kept_rows), _ = jax.lax.scan(take, (nothing, trees.vectors(kept, 1)), begins)
    return trees.shaped(found, shapes, 1), trees.shaped(kept_rows, own[0], 1)


def _put(tree: Tree, slots: Array, new: Tree) -> Tree:
    return jax.tree.map(lambda old, rows: old.at[slots].set(rows, mode="drop"), tree, new)


def _at_a_time(model: Model) -> int:
    """How many clients take their turn together."""
    if any(isinstance(layer, Conv) for layer in model.layers):
        return 1
    return trees.at_a_time(jax.eval_shape(model.init, jax.random.key(0)))
