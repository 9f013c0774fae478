"""Fingerprints of traced programs: what an engine compiles is what the flow check saw, or is refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection

import jax
import numpy as np
from jax.extend import core
from jax.sharding import AbstractMesh

from kinfolk.privacy.release import PrivacyError
from kinfolk.types import Tree


def text(closed: core.ClosedJaxpr) -> str:
    """A traced program as text, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(closed))


def fingerprint(closed: core.ClosedJaxpr) -> str:
    """A hash of a traced program and of the arrays that it closes over."""
    constants = "".join(hashlib.sha256(np.asarray(value).tobytes()).hexdigest() for value in closed.consts)
    return hashlib.sha256((text(closed) + constants).encode()).hexdigest()


def traced(function: Callable[..., Tree], arguments: tuple[Tree, ...]) -> tuple[core.ClosedJaxpr, Tree]:
    """The program of a function at arguments of these shapes and types, and the shapes of what it returns.

    Arrays that came from Python numbers, whose type may give way, are taken as arrays of their type: engines' loops do
    the same. Python numbers stay what they are. A program is the same wherever it is traced: on one of several devices
    JAX would write their names into it.
    """
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        return jax.make_jaxpr(function, return_shape=True)(*jax.tree.map(_shape, arguments))


def _shape(leaf: Tree) -> Tree:
    if isinstance(leaf, bool | int | float):
        return leaf
    found = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return jax.ShapeDtypeStruct(found.shape, found.dtype)


def as_checked(programs: Collection[str] | None, function: Callable[..., Tree], *arguments: Tree) -> Tree:
    """The function's value, computed by its traced program; refused unless that is one of the checked `programs`.

    None: nothing was checked beforehand, and nothing is compared. A method is Python, and could be traced to something
    else when it is compiled than when it was checked.
    """
    if programs is None:
        return function(*arguments)
    closed, shapes = traced(function, arguments)
    if fingerprint(closed) not in programs:
        raise PrivacyError(
            "the program that would run is not the one that the flow check saw: a method must do the same whenever it "
            "is traced, so keep state and time out of its Python code"
        )
    leaves = core.jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)
