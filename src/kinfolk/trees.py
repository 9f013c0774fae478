"""Arithmetic on pytrees: what the algorithms are written in.

>>> import jax.numpy as jnp
>>> add({"w": jnp.ones(2)}, {"w": jnp.ones(2)})["w"].tolist()
[2.0, 2.0]
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

Tree = Any
"""Any pytree of arrays."""
Index = int | slice | ArrayLike | tuple[int, ...]
Kind = TypeVar("Kind", bound=type)


def register(kind: Kind) -> Kind:
    """Makes a dataclass a pytree; fields with `metadata={"static": True}` belong to its structure.

    In place of `jax.tree_util.register_dataclass`, which (in jax 0.10.2) forgets the class when it compares
    structures: two methods with the same fields are "equal" there, and once in a while, as hashes happen to fall, the
    program that was compiled for one was run for the other.
    """
    fields = dataclasses.fields(kind)
    names = [f.name for f in fields if not f.metadata.get("static")]
    static = [f.name for f in fields if f.metadata.get("static")]

    def flatten(value: Tree) -> tuple[list[Tree], tuple[object, ...]]:
        return [getattr(value, name) for name in names], (kind, *(getattr(value, name) for name in static))

    def flatten_with_keys(value: Tree) -> tuple[list[tuple[object, Tree]], tuple[object, ...]]:
        leaves, structure = flatten(value)
        return [(jax.tree_util.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)], structure

    def unflatten(structure: tuple[object, ...], leaves: Iterable[Tree]) -> Tree:
        return kind(**dict(zip(names, leaves, strict=True)), **dict(zip(static, structure[1:], strict=True)))

    jax.tree_util.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)
    return kind


def add(a: Tree, b: Tree) -> Tree:
    return jax.tree.map(jnp.add, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    return jax.tree.map(jnp.subtract, a, b)


def scale(factor: Tree, tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def zeros_like(tree: Tree) -> Tree:
    """Zeros of the same shapes and types, wherever the tree's own numbers are."""
    return jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.result_type(leaf)), tree)


def squared_norm(tree: Tree) -> Array:
    """The squared Euclidean norm of all leaves together; 0 for an empty tree."""
    return sum((jnp.square(leaf).sum() for leaf in jax.tree.leaves(tree)), jnp.float32(0))


def choose(flag: ArrayLike, a: Tree, b: Tree) -> Tree:
    """`a` where the scalar `flag` is true, else `b`."""
    return jax.tree.map(lambda x, y: jnp.where(flag, x, y), a, b)


def choose_rows(flags: Array, a: Tree, b: Tree) -> Tree:
    """Row by row along the leading axis: `a` where `flags` is true, else `b`."""

    def pick(x: Array, y: Array) -> Array:
        return jnp.where(flags.reshape(flags.shape + (1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(pick, a, b)


def filled(kind: Callable[..., Tree], *values: Tree) -> Tree:
    """A record of this `kind` that has, instead of its arrays, whatever stands for them: shapes, or labels."""
    return kind(*values)


def row(tree: Tree, index: Index) -> Tree:
    """Every leaf at `index` of its leading axis (or axes)."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def concatenate(parts: list[Tree]) -> Tree:
    """Parts joined along their leading axis."""
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def size(tree: Tree) -> int:
    """The number of scalars in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def flatten(tree: Tree) -> tuple[Array, Callable[[Array], Tree]]:
    """One float vector, and the function that turns such a vector back into the tree.

    An empty tree gives a vector of length 0.
    """
    return ravel_pytree(tree)
