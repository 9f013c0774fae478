"""How work is laid out for the machine: all side by side, or a few at a time, and as vectors. Nothing else knows.

On a CPU the weights of a client and what is computed from them should stay in the cache, so clients with many weights
take turns (the field says microbatches), a few at a time, and what loops carry are long vectors. Small models are
quicker together, and on an accelerator everything is. No result depends on it beyond rounding.

What other files call: `repeat` (a client's local steps), `sum_of` and `squared_norm` (clipped contributions), `losses`
and `rows_at` (batches of examples), and for engines `over`, `over_clients`, `over_cohort` and `loop`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.devices import at_homes, cut, filled_up, over_devices, summed
from kinfolk.models import Conv, Dense
from kinfolk.products import convolved, fewer_values, product
from kinfolk.types import Model, Params, Tree, Value
from kinfolk.units import Several, over_rows

Gate = TypeVar("Gate")
OfRows = Callable[[Tree, Tree], tuple[Tree, Tree]]
"""Of a client's changing and fixed rows: what is found, and the changing ones afterwards."""
MOST_TOGETHER = 10_000
"""Scalars of the largest tree of which a CPU computes many side by side: larger ones would not stay in its cache."""
MOST_AT_A_TIME = 200_000
"""Scalars of the trees that it computes side by side when larger ones take turns."""
BEYOND = 2**31 - 1
"""A row that is beyond the last of everything: what is put there is dropped."""


def in_turns(tree: Tree) -> bool:
    """Whether many trees like this one are quicker computed a few at a time than all side by side, on this machine."""
    return jax.default_backend() == "cpu" and trees.size(tree) > MOST_TOGETHER


def at_a_time(tree: Tree) -> int:
    """How many trees like this one take their turn together: two cores share a long vector, and wait for a short one.

    >>> at_a_time(jnp.zeros(50_000)), at_a_time(jnp.zeros(1_000_000))
    (4, 1)
    """
    return max(1, MOST_AT_A_TIME // trees.size(tree))


def vectors(tree: Tree, axes: int = 0) -> Tree:
    """Every leaf as a vector, or as vectors along its first `axes` axes: the form to carry through loops.

    A CPU goes through one long vector several times as fast as through rows of, say, 62 numbers.
    """
    return jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:axes], math.prod(leaf.shape[axes:])), tree)


def shaped(tree: Tree, like: Tree, axes: int = 0) -> Tree:
    """The way back from `vectors`: to the shapes of `like`, behind the first `axes` axes."""
    return jax.tree.map(lambda leaf, one: leaf.reshape(*leaf.shape[:axes], *one.shape), tree, like)


def elementwise(function: Callable[..., Array], *many: Tree) -> Tree:
    """The function of corresponding numbers of trees of one shape; what else it uses are scalars."""
    if not in_turns(many[0]):
        return jax.tree.map(function, *many)
    return shaped(jax.tree.map(function, *map(vectors, many)), many[0])


def rows_at(tree: Tree, places: Array) -> Tree:
    """The rows at many places along the leading axis; a place beyond the last has the last row.

    Rows move as vectors: what comes next would have to find its way through images otherwise.
    """
    rows = jax.tree.map(lambda leaf: leaf.at[places].get(mode="clip"), vectors(tree, 1))
    return jax.tree.map(lambda found, leaf: found.reshape(*places.shape, *leaf.shape[1:]), rows, tree)


def repeat(
    step: Callable[[Array, Params, Gate], tuple[Params, Gate]], count: int, params: Params, gate: Gate
) -> tuple[Params, Gate]:
    """`params, gate = step(number, params, gate)` for the numbers below `count`."""
    form = vectors if in_turns(params) else lambda tree: tree
    shapes = params

    def turn(carry: tuple[Params, Gate], number: Array) -> tuple[tuple[Params, Gate], None]:
        carried, gate = carry
        params, gate = step(number, shaped(carried, shapes), gate)
        return (form(params), gate), None

    (carried, gate), _ = jax.lax.scan(turn, (form(params), gate), jnp.arange(count, dtype=jnp.int32))
    return shaped(carried, shapes), gate


def loop(model: Model, step: Callable[[Array, Tree], Tree], begin: Value, end: Value, state: Tree) -> Tree:
    """`state = step(number, state)` for the numbers from `begin` to `end` - 1, as by `jax.lax.fori_loop`."""
    if not takes_turns(model):
        return jax.lax.fori_loop(begin, end, step, state)
    turn = lambda number, carried: vectors(step(number, shaped(carried, state)))  # noqa: E731
    return shaped(jax.lax.fori_loop(begin, end, turn, vectors(state)), state)


def squared_norm(tree: Tree) -> Array:
    """The squared Euclidean norm of all leaves together, as `trees.squared_norm`; long leaves are folded first, half
    onto half: a CPU does that while it squares, on all cores."""
    return sum((_sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)), jnp.float32(0))


def _sum(values: Array) -> Array:
    if not in_turns(values):
        return values.sum()
    flat, parts = values.reshape(-1), 64
    whole = flat.size // parts * parts
    folded = flat[:whole].reshape(parts, -1)
    while len(folded) > 1:
        folded = folded[: len(folded) // 2] + folded[len(folded) // 2 :]
    return folded.sum() + flat[whole:].sum()


def sum_of(one: Callable[[Tree, Array], Tree], units: Tree, weights: Array, skip: bool, devices: int = 1) -> Tree:
    """The sum of `one(unit, weight)` over the units. With `skip`, turns in which every weight is 0 may cost nothing.

    `devices`: so many of them have a part of the units each, where these take turns and can be divided.
    """
    first = jax.eval_shape(one, *jax.eval_shape(lambda *all: trees.row(all, 0), units, weights))
    if not in_turns(first):
        return jax.tree.map(lambda leaf: leaf.sum(axis=0), jax.vmap(one)(units, weights))
    if devices > 1 and weights.shape[0] % devices == 0:
        return summed(devices, lambda units, weights: sum_of(one, units, weights, skip), units, weights)

    shapes, flat = jax.eval_shape(lambda: trees.row(units, 0)), vectors(units, 1)
    count, turn = weights.shape[0], jnp.arange(min(weights.shape[0], at_a_time(first)), dtype=jnp.int32)

    def add(total: Tree, begin: Array) -> tuple[Tree, None]:
        places = begin + turn
        own = jnp.where(places < count, rows_at(weights, places), 0)

        def more() -> Tree:
            found = jax.vmap(one)(shaped(rows_at(flat, places), shapes, 1), own)
            return reduce(trees.add, (trees.row(vectors(found, 1), k) for k in range(turn.size)), total)

        return jax.lax.cond((own > 0).any(), more, lambda: total) if skip else more(), None

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.size, leaf.dtype), first)
    begins = jnp.arange(0, count, turn.size, dtype=jnp.int32)
    return shaped(jax.lax.scan(add, nothing, begins)[0], first)


def losses(model: Model, params: Params, x: Tree, y: Array) -> Array:
    """The loss of every example of a batch, in a form whose sum has a quick gradient."""
    if not model.layers or isinstance(x, Several):
        return jax.vmap(lambda x, y: over_rows(model.loss)(params, x, y))(x, y)
    for layer, own in zip(model.layers, params, strict=True):
        if isinstance(layer, Dense) and x.ndim == 2 and in_turns(own):
            x = product(x, own["weights"]) + own["bias"][None]
        elif isinstance(layer, Conv) and fewer_values(layer) and in_turns(own):
            x = convolved(layer, own, x)
        else:
            x = jax.vmap(partial(layer.apply, own))(x)
    return jax.vmap(model.output_loss)(x, y)


def takes_turns(model: Model) -> bool:
    """Whether clients and runs are computed a few at a time."""
    if any(isinstance(layer, Conv) for layer in model.layers):
        return jax.default_backend() == "cpu"
    return in_turns(jax.eval_shape(model.init, jax.random.key(0)))


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


def over_clients(
    model: Model, function: Callable[..., Tree], shared: Tree, present: Array, *rows: Tree, devices: int = 1
) -> Tree:
    """`function(shared, *rows)` of each client's rows, and zeros for absent ones, who cost nothing where clients take
    turns.

    `devices`: so many of them have a part of the clients each.
    """
    if devices > 1:
        return over_devices(devices, partial(over_clients, model, function), shared, present, *rows)
    if not takes_turns(model):
        found = jax.vmap(partial(function, shared))(*rows)
        return trees.choose_rows(present, found, trees.zeros_like(found))
    everyone = jnp.arange(present.shape[0], dtype=jnp.int32)
    one = lambda _, own: (function(shared, *own), ())  # noqa: E731
    return at_places(model, [one], jnp.zeros_like(everyone), present, everyone, (), rows)[0]


def loop_lengths(most: int) -> list[int]:
    """Lengths of the loops of local steps that a gathered cohort may have, of clients with at most so many steps."""
    return sorted({-(-most // 2), most})


def over_cohort(
    model: Model,
    function: Callable[[int, Tree, Tree, Tree], tuple[Tree, Tree]],
    steps: tuple[Array, int],
    places: tuple[Array, Array],
    rows: tuple[Tree, Tree, Tree],
    devices: int = 1,
) -> tuple[Tree, Tree]:
    """`function(most_steps, shared, kept, fixed)` of the clients in some places, as by `at_places`.

    `steps`: every client's local steps, and the most of any. `places`: whether somebody sits in each, and who. `rows`:
    what is the same for all, then clients' changing and fixed rows. Where clients take turns, those who take at most
    half of the most steps have a loop of that length; what is the same for all is a vector outside of the loop, so that
    vectors meet vectors there. `devices`: so many of them have a part of the places each, and where clients take turns
    also a part of the clients, who sit in places of their own device (`engines/cohorts.py`).
    """
    (own, most), (shared, kept, fixed) = steps, rows
    limits, flat = loop_lengths(most), vectors(shared)

    def functions(flat: Tree) -> list[OfRows]:
        return [lambda kept, fixed, most=most: function(most, shaped(flat, shared), kept, fixed) for most in limits]

    least = (own > limits[0]).astype(jnp.int32)
    if devices == 1:
        return at_places(model, functions(flat), least, *places, kept, fixed)
    if takes_turns(model):

        def at_home(number: Array, flat: Tree, places: tuple[Array, Array], own: tuple[Array, Tree, Tree]) -> Tree:
            (present, index), (least, *rows) = places, own
            here = jnp.where(present, index - number * least.shape[0], BEYOND)
            return at_places(model, functions(flat), least, present, here, *rows)

        everybody = filled_up((least, kept, fixed), least.shape[0], devices)
        found, new = at_homes(devices, at_home, flat, places, everybody)
        return found, cut(new, least.shape[0])
    present, index = places

    def part(flat: Tree, present: Array, kept: Tree, fixed: Tree, least: Array) -> tuple[Tree, Tree]:
        here = jnp.arange(present.shape[0], dtype=jnp.int32)
        return at_places(model, functions(flat), least, present, here, kept, fixed)

    found, new = over_devices(devices, part, flat, present, *rows_at((kept, fixed, least), index))
    return found, _put(kept, index, new)


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
        found, new = jax.vmap(functions[-1])(rows_at(kept, index), rows_at(fixed, index))
        return trees.choose_rows(present, found, trees.zeros_like(found)), _put(kept, index, new)
    count, own = present.shape[0], jax.eval_shape(lambda: trees.row((kept, fixed), 0))
    turn = jnp.arange(min(count, _at_a_time(model)), dtype=jnp.int32)
    if turn.size == 1:  # steps that somebody does not take cost nothing then, and compiling twice would
        functions, least = functions[-1:], jnp.zeros_like(least)
    shapes, _ = jax.eval_shape(functions[-1], *own)
    least = jnp.where(present, rows_at(least, index), len(functions))
    order = jnp.argsort(least).astype(jnp.int32)
    fixed = vectors(fixed, 1)

    def take(carry: tuple[Tree, Tree], begin: Array) -> tuple[tuple[Tree, Tree], None]:
        places = order.at[begin + turn].get(mode="fill", fill_value=BEYOND)
        here = present.at[places].get(mode="fill", fill_value=False)
        slots, rows = jnp.where(here, rows_at(index, places), BEYOND), jnp.where(here, places, BEYOND)

        def work(function: OfRows, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            found, kept = carry
            one = lambda kept, fixed: vectors(function(*shaped((kept, fixed), own)))  # noqa: E731
            some = rows_at((kept, fixed), slots)
            if turn.size == 1:  # and somebody sits there
                more, new = one(*trees.row(some, 0))
                return _put_one(found, rows[0], more), _put_one(kept, slots[0], new)
            more, new = jax.vmap(one)(*some)
            return _put(found, rows, more), _put(kept, slots, new)

        need = jnp.where(here, rows_at(least, places), -1).max()
        for number, function in enumerate(functions):  # not a switch: of that, XLA copies what is carried
            carry = jax.lax.cond(need == number, partial(work, function), lambda carry: carry, carry)
        return carry, None

    nothing = jax.tree.map(lambda leaf: jnp.zeros((count, leaf.size), leaf.dtype), shapes)
    begins = jnp.arange(0, count, turn.size, dtype=jnp.int32)
    (found, kept_rows), _ = jax.lax.scan(take, (nothing, vectors(kept, 1)), begins)
    return shaped(found, shapes, 1), shaped(kept_rows, own[0], 1)


def _put(tree: Tree, slots: Array, new: Tree) -> Tree:
    """The tree with new rows in some places; those for a place beyond the last are dropped."""
    return jax.tree.map(lambda old, rows: old.at[slots].set(rows, mode="drop"), tree, new)


def _put_one(tree: Tree, slot: Array, new: Tree) -> Tree:
    """The tree with one new row, in a place that is there: written without looking at the old one."""
    return jax.tree.map(lambda old, row: jax.lax.dynamic_update_index_in_dim(old, row, slot, 0), tree, new)


def _at_a_time(model: Model) -> int:
    """How many clients take their turn together."""
    if any(isinstance(layer, Conv) for layer in model.layers):
        return 1
    return at_a_time(jax.eval_shape(model.init, jax.random.key(0)))
