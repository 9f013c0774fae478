"""Reads a traced program: the programs inside an equation, releases among them, and where in the code it comes from."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend import core
from jax.extend.core import primitives
from jax.sharding import AbstractMesh, PartitionSpec

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
SHOWS = ("callback", "debug", "outfeed", "infeed")
"""In the names of operations that hand values to Python, or to whoever listens."""


@functools.cache
def known() -> frozenset[core.Primitive]:
    """JAX's own operations without effects: those it lists, and some that it only shows in traced programs.

    Everything else is refused: calls of foreign code, operations that do something else when they are vectorised,
    compiled or divided among devices, and whatever a later JAX or a package adds.
    """
    listed = {value for value in vars(primitives).values() if isinstance(value, core.Primitive)}
    row, key = jax.ShapeDtypeStruct((2,), jnp.float32), jax.eval_shape(lambda: jax.random.key(0))
    words = jax.ShapeDtypeStruct((2,), jnp.uint32)
    samples: list[tuple[Callable[..., Tree], Tree]] = [
        (jax.lax.optimization_barrier, row),
        (lambda x: jnp.stack(jnp.split(x, 2)), row),
        (lambda x: jnp.stack(jnp.unstack(x)), row),
        (lambda x: jax.lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), row),
        (jax.random.clone, key),
        (jax.random.key_data, key),
        (jax.random.wrap_key_data, words),
        (_on_devices(lambda x: x + jax.lax.psum(x, "d")), row),
        (_on_devices(lambda x: jax.lax.all_gather(x, "d")[0] * jax.lax.axis_index("d").astype(x.dtype)), row),
    ]
    shown = {eqn.primitive for call, argument in samples for eqn in _equations(jax.make_jaxpr(call)(argument))}
    return frozenset(listed | shown | {release_p})


def _on_devices(function: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
    """The function as several devices compute it, each for a part of its rows; only ever traced."""
    part = PartitionSpec("d")
    return jax.shard_map(function, mesh=AbstractMesh((2,), ("d",)), in_specs=part, out_specs=part)


def shows(equation: core.JaxprEqn) -> bool:
    """Whether an equation hands its inputs to somebody outside the program."""
    return any(word in equation.primitive.name for word in SHOWS)


def refusal(equation: core.JaxprEqn) -> str | None:
    """Why an equation cannot be followed, if so: fails closed on whatever is not known to be free of effects."""
    effects = [effect for effect in equation.effects if type(effect).__name__ != "NamedAxisEffect"]  # between devices
    strange = equation.primitive not in known() or has_reference(equation) or (effects and not held(equation))
    name = equation.primitive.name
    return f"{name!r} may do what the check cannot see: write it with plain functions" if strange else None


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


def _equations(closed: core.ClosedJaxpr) -> Iterator[core.JaxprEqn]:
    """All equations of a program, and of those that its equations hold."""
    for equation in closed.jaxpr.eqns:
        yield equation
        for inner in held(equation):
            yield from _equations(inner)


def has_release(closed: core.ClosedJaxpr) -> bool:
    return any(equation.primitive is release_p for equation in _equations(closed))


def divides(closed: core.ClosedJaxpr) -> bool:
    """Whether a program divides work among devices, in a release or outside of it."""
    return any(equation.primitive.name == "shard_map" for equation in _equations(closed))


def shown_inside(closed: core.ClosedJaxpr) -> list[str]:
    """Operations of a program that hand values to somebody outside."""
    return list(dict.fromkeys(equation.primitive.name for equation in _equations(closed) if shows(equation)))


def unseen_inside(closed: core.ClosedJaxpr, where: str) -> list[str]:
    """What may not stand in a program whose values are not followed one by one, such as a solver's."""
    problems = [f"{name} inside {where} shows raw values" for name in shown_inside(closed)]
    for equation in _equations(closed):
        why = None if shows(equation) else refusal(equation)
        problems += [f"inside {where}, {why}"] if why else []
        if equation.primitive is release_p:
            problems.append(f"a release inside {where}, which the check cannot follow")
    return list(dict.fromkeys(problems))


def problems_inside(closed: core.ClosedJaxpr) -> list[str]:
    """What may not stand inside a release: constants (perhaps frozen data), callbacks, another release."""
    held_constants = closed.consts or any(inner.consts for eqn in _equations(closed) for inner in held(eqn))
    problems = ["a release closes over a constant array, which may be data"] if held_constants else []
    return problems + unseen_inside(closed, "a release")


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
