"""Reads a traced program: the programs inside an equation, releases among them, and where in the code it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

import jax
from jax.core import ShapedArray
from jax.extend import core

from kinfolk.privacy.release import release_p
from kinfolk.types import Tree

CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
)
"""Equations whose inner program is simply run: the only ones that are looked into."""
REFUSED = ("custom_vmap_call", "custom_partitioning", "run_state")
"""Equations that may do something else when they are vectorised or compiled than what is traced."""


def text(closed: core.ClosedJaxpr) -> str:
    """A traced program as text, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(closed))


def held(equation: core.JaxprEqn) -> list[core.ClosedJaxpr]:
    """Programs held by an equation, closed; an open one has no constants."""
    found = []
    for value in jax.tree.leaves(tuple(equation.params.values()), is_leaf=_is_program):
        if isinstance(value, core.ClosedJaxpr):
            found.append(value)
        elif isinstance(value, core.Jaxpr):
            found.append(core.ClosedJaxpr(value, []))
    return found


def _is_program(value: object) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def has_release(closed: core.ClosedJaxpr) -> bool:
    return any(
        equation.primitive is release_p or any(has_release(inner) for inner in held(equation))
        for equation in closed.jaxpr.eqns
    )


def problems_inside(closed: core.ClosedJaxpr) -> list[str]:
    """What may not stand inside a release: constants (perhaps frozen data), callbacks, another release."""
    problems = ["a release closes over a constant array, which may be data"] if closed.consts else []
    for equation in closed.jaxpr.eqns:
        name = equation.primitive.name
        if "callback" in name or "debug" in name or "outfeed" in name:
            problems.append(f"{name} inside a release shows raw values")
        if name in REFUSED or has_reference(equation):
            problems.append(f"{name!r} inside a release may do what the check cannot see")
        if equation.primitive is release_p:
            problems.append("a release inside a release")
        for inner in held(equation):
            problems += problems_inside(inner)
    return list(dict.fromkeys(problems))


def has_reference(equation: core.JaxprEqn) -> bool:
    """Whether an equation reads or writes a mutable array."""
    atoms = (*equation.invars, *equation.outvars)
    return any("Ref" in type(getattr(atom, "aval", None)).__name__ for atom in atoms)


def scan_sizes(params: Mapping[str, Tree]) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].elts  # jax 0.11
    return len(list(constants.vals)), len(list(carried.vals))


def aval(atom: core.Var | core.Literal) -> ShapedArray:
    """The shape and type of an equation's input or output; only arrays come here."""
    return cast(ShapedArray, atom.aval)


def public_shapes(equation: core.JaxprEqn) -> Tree:
    begin, count = sum(equation.params["sizes"][:-1]), equation.params["sizes"][-1]
    avals = [aval(atom) for atom in equation.invars[begin : begin + count]]
    shapes = [jax.ShapeDtypeStruct(own.shape, own.dtype, weak_type=own.weak_type) for own in avals]
    return jax.tree.unflatten(equation.params["form"], shapes)


def place(equation: core.JaxprEqn) -> str:
    """Where in the user's code an equation comes from, as ' (file:line in function)'."""
    traceback = getattr(equation.source_info, "traceback", None)
    for frame in traceback.frames if traceback else ():
        file = frame.file_name.replace("\\", "/")
        if not re.search(r"/jax/|/jaxlib/|/kinfolk/privacy/|<frozen|<string>", file):
            return f" ({file.rsplit('/', 1)[-1]}:{frame.line_num} in {frame.function_name})"
    return ""
