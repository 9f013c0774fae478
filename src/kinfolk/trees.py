"""Arithmetic on pytrees: what the algorithms are written in.

>>> import jax.numpy as jnp
>>> add({"w": jnp.ones(2)}, {"w": jnp.ones(2)})["w"].tolist()
[2.0, 2.0]
"""

import dataclasses
import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

Tree = Any
Kind = TypeVar("Kind", bound=type)

MOST_TOGETHER = 10_000
"""Scalars of the largest tree of which a CPU computes many side by side: larger ones would not stay in its cache."""
MOST_AT_A_TIME = 200_000
"""Scalars of the trees that it computes side by side when larger ones take turns."""


def register(kind: Kind) -> Kind:
    """Makes a dataclass a pytree; fields with `metadata={"static": True}` belong to its structure.

    In place of `jax.tree_util.register_dataclass`, which (in jax 0.10.2) forgets the class when it compares
    structures: two methods with the same fields are "equal" there, and once in a while, as hashes happen to fall, the
    program that was compiled for one was run for the other.
    """
    fields = dataclasses.fields(kind)
    names = [f.name for f in fields if not f.metadata.get("static")]
    static = [f.name for f in fields if f.metadata.get("static")]

    def flatten(value: Any) -> tuple[list[Any], Any]:
        return [getattr(value, name) for name in names], (kind, *(getattr(value, name) for name in static))

    def flatten_with_keys(value: Any) -> tuple[list[Any], Any]:
        leaves, structure = flatten(value)
        return [(jax.tree_util.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)], structure

    def unflatten(structure: Any, leaves: Any) -> Any:
        return kind(**dict(zip(names, leaves, strict=True)), **dict(zip(static, structure[1:], strict=True)))

    jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)
    return kind


def add(a: Tree, b: Tree) -> Tree:
    return jax.tree.map(jnp.add, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    return jax.tree.map(jnp.subtract, a, b)


def scale(factor: Any, tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def zeros_like(tree: Tree) -> Tree:
    return jax.tree.map(jnp.zeros_like, tree)


def squared_norm(tree: Tree) -> Array:
    """The squared Euclidean norm of all leaves together; 0 for an empty tree."""
    return sum((_sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)), jnp.float32(0))


def _sum(values: Array) -> Array:
    """Long ones are folded first, half onto half: a CPU does that while it squares, on all cores."""
    if not in_turns(values):
        return values.sum()
    flat, parts = values.reshape(-1), 64
    whole = flat.size // parts * parts
    folded = flat[:whole].reshape(parts, -1)
    while len(folded) > 1:
        folded = folded[: len(folded) // 2] + folded[len(folded) // 2 :]
    return folded.sum() + flat[whole:].sum()


def choose(flag: Any, a: Tree, b: Tree) -> Tree:
    """`a` where the scalar `flag` is true, else `b`."""
    return jax.tree.map(lambda x, y: jnp.where(flag, x, y), a, b)


def choose_rows(flags: Array, a: Tree, b: Tree) -> Tree:
    """Row by row along the leading axis: `a` where `flags` is true, else `b`."""

    def pick(x: Array, y: Array) -> Array:
        return jnp.where(flags.reshape(flags.shape + (1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(pick, a, b)


def row(tree: Tree, index: Any) -> Tree:
    """Every leaf at `index` of its leading axis (or axes)."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def rows_at(tree: Tree, places: Array) -> Tree:
    """The rows at many places along the leading axis; a place beyond the last has the last row.

    Rows move as vectors: what comes next would have to find its way through images otherwise.
    """
    rows = jax.tree.map(lambda leaf: leaf.at[places].get(mode="clip"), vectors(tree, 1))
    return jax.tree.map(lambda found, leaf: found.reshape(*places.shape, *leaf.shape[1:]), rows, tree)


def concatenate(parts: list[Tree]) -> Tree:
    """Parts joined along their leading axis."""
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def vectors(tree: Tree, axes: int = 0) -> Tree:
    """Every leaf as a vector, or as vectors along its first `axes` axes: the form to carry through loops.

    A CPU goes through one long vector several times as fast as through rows of, say, 62 numbers.
    """
    return jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:axes], math.prod(leaf.shape[axes:])), tree)


def shaped(tree: Tree, like: Tree, axes: int = 0) -> Tree:
    """The way back from `vectors`: to the shapes of `like`, behind the first `axes` axes."""
    return jax.tree.map(lambda leaf, one: leaf.reshape(*leaf.shape[:axes], *one.shape), tree, like)


def size(tree: Tree) -> int:
    """The number of scalars in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def flatten(tree: Tree) -> tuple[Array, Any]:
    """One float vector, and the function that turns such a vector back into the tree.

    An empty tree gives a vector of length 0.
    """
    return ravel_pytree(tree)


def in_turns(tree: Tree) -> bool:
    """Whether many trees like this one are quicker computed a few at a time than all side by side, on this machine."""
    return jax.default_backend() == "cpu" and size(tree) > MOST_TOGETHER


def at_a_time(tree: Tree) -> int:
    """How many trees like this one take their turn together: two cores share a long vector, and wait for a short one.

    >>> at_a_time(jnp.zeros(50_000)), at_a_time(jnp.zeros(1_000_000))
    (4, 1)
    """
    return max(1, MOST_AT_A_TIME // size(tree))
