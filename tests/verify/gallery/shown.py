"""Raw values handed to Python, to foreign code or to other devices. The flow check must refuse each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import batching, mlir
from jax.sharding import PartitionSpec

from kinfolk import trees
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local_steps import descend

from .leaks import planted

SEEN: list[Any] = []
"""Where planted callbacks put what they get."""


def _client(show: Any) -> Any:
    """FedAvg's part of a client, which also shows something."""

    def client(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
        left = show(gate._rows, gate)
        trained, gate = descend(shared, gate, self.step_size)
        del left
        return trees.subtract(trained, shared), personal, gate

    return client


def inside_a_solver(rows: Any, gate: Any) -> Any:
    def product(v: Any) -> Any:
        jax.debug.callback(SEEN.append, rows.y)
        return 2.0 * v

    return jax.scipy.sparse.linalg.cg(product, rows.y, maxiter=1)[0]


def plain_solver(rows: Any, gate: Any) -> Any:
    return jax.scipy.sparse.linalg.cg(lambda v: 2.0 * v, rows.y, maxiter=1)[0]


def inside_shard_map(rows: Any, gate: Any) -> Any:
    def show(y: Any) -> Any:
        jax.debug.callback(SEEN.append, y)
        return y

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = PartitionSpec()
    return jax.shard_map(show, mesh=mesh, in_specs=spec, out_specs=spec)(rows.y)


def foreign_call(rows: Any, gate: Any) -> Any:
    return jax.ffi.ffi_call("somewhere", jax.ShapeDtypeStruct(rows.y.shape, rows.y.dtype))(rows.y)


own_p = core.Primitive("add_any")
own_p.def_impl(lambda x: x)
own_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(own_p, mlir.lower_fun(lambda x: x, multiple_results=False))
batching.defvectorized(own_p)


def own_operation(rows: Any, gate: Any) -> Any:
    return own_p.bind(rows.y)


def one_of_two_branches(rows: Any, gate: Any) -> Any:
    """Only the fact that it is called says something."""
    return jax.lax.cond(rows.y[0] > 0, lambda: jax.debug.callback(SEEN.append, 1.0), lambda: None)


def as_often_as_data_say(rows: Any, gate: Any) -> Any:
    def turn(n: Any) -> Any:
        jax.debug.callback(SEEN.append, 1.0)
        return n + 1

    return jax.lax.while_loop(lambda n: n < rows.y[0], turn, jnp.float32(0))


def of_public_values(rows: Any, gate: Any) -> Any:
    """The sound version: what is public may be printed, where public values decide."""
    return jax.lax.cond(gate.round > 0, lambda: jax.debug.callback(SEEN.append, gate.size), lambda: None)


def summed_over_devices(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
    """Each device of an engine has other clients, so this would be the sum of several clients' messages."""
    trained, gate = descend(shared, gate, self.step_size)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("clients",))
    whole = PartitionSpec()
    total = jax.shard_map(lambda own: jax.lax.psum(own, "clients"), mesh=mesh, in_specs=whole, out_specs=whole)
    return total(trees.subtract(trained, shared)), personal, gate


def _bug(name: str, what: str, show: Any, sound: Any = of_public_values) -> Any:
    return planted(name, what, FedAvg(), "example", sound={"new_client": _client(sound)}, new_client=_client(show))


BUGS = (
    _bug("a callback inside a solver", "a linear solver's product prints raw labels", inside_a_solver, plain_solver),
    _bug("a callback inside shard_map", "a function that runs on every device prints raw labels", inside_shard_map),
    _bug("a foreign call", "raw labels go into code that is not JAX (ffi_call)", foreign_call),
    _bug("an operation of one's own", "an operation that JAX does not know, under a harmless name", own_operation),
    _bug(
        "a callback that data decide on",
        "a constant is printed, but only if a raw label is positive",
        one_of_two_branches,
    ),
    planted(
        "messages summed over devices",
        "what a client sends is summed over devices, where engines have other clients, before it is clipped",
        FedAvg(),
        "client",
        new_client=summed_over_devices,
    ),
    _bug("a loop that data end", "a constant is printed as often as a raw label says", as_often_as_data_say),
)
