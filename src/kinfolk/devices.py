"""Clients divided among devices, and over hosts.

Rounds are one program (`jax.shard_map` over a mesh with one axis). Clients' own work is divided, and where clients have
homes, one device each for good, so are their states, their messages and the aggregator's sum of these. Everything else,
the aggregator's noise among it, is computed alike on every device: so results do not depend on how many there are,
beyond rounding, and noise is drawn once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kinfolk.toml import ConfigError
from kinfolk.types import Tree

AXIS = "clients"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)


def usable(wanted: int | None = None) -> int:
    """How many devices to use: so many as are `wanted`, if there are as many; None: all.

    A CPU is divided into as many as are wanted, if it has as many cores and JAX was not yet used for anything.
    """
    given = "device_count" in os.environ.get("XLA_FLAGS", "") or jax.distributed.is_initialized()
    if wanted is not None and 1 < wanted <= (os.cpu_count() or 1) and not given:
        with contextlib.suppress(RuntimeError):  # it was used, and sees what it sees
            jax.config.update("jax_num_cpu_devices", wanted)
    there = jax.device_count()
    if wanted is not None and not 1 <= wanted <= there:
        raise ConfigError(
            f"devices={wanted} must lie between 1 and the {there} that JAX sees here: leave it out to use all; a CPU "
            "can be divided until JAX is first used, by this setting or by jax.config.update('jax_num_cpu_devices', N)"
        )
    return there if wanted is None else wanted


def over_devices(devices: int, function: Callable[..., Tree], shared: Tree, *rows: Tree) -> Tree:
    """`function(shared, *rows)`, whose results have the rows' leading axis, with a part of that axis on each of the
    devices; afterwards all of them have all results."""
    length = jax.tree.leaves(rows)[0].shape[0]

    def part(shared: Tree, rows: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS, tiled=True), function(shared, *rows))

    return cut(_mapped(devices, part, EVERYWHERE)(shared, filled_up(rows, length, devices)), length)


def at_homes(devices: int, function: Callable[..., Tree], shared: Tree, *rows: Tree) -> Tree:
    """`function(number, shared, *rows)` on each of the devices, which have numbers, with its part of the rows; the
    devices divide how many there are. What comes out stays where it is."""
    return _mapped(devices, lambda shared, rows: function(jax.lax.axis_index(AXIS), shared, *rows), DIVIDED)(
        shared, rows
    )


def summed(devices: int, function: Callable[..., Tree], *rows: Tree) -> Tree:
    """The sum over the devices of `function(*rows)`, each with its part of the rows; they divide how many there are."""
    return _mapped(devices, lambda _, rows: jax.lax.psum(function(*rows), AXIS), EVERYWHERE)((), rows)


def _mapped(devices: int, function: Callable[[Tree, Tree], Tree], outputs: PartitionSpec) -> Callable[..., Tree]:
    """The function of what all devices have, and of a part of the rows on each."""
    inputs = (EVERYWHERE, DIVIDED)
    return jax.shard_map(function, mesh=_mesh(devices), in_specs=inputs, out_specs=outputs, check_vma=False)


def _mesh(devices: int) -> Mesh:
    return Mesh(jax.devices()[:devices], (AXIS,))


def filled_up(rows: Tree, length: int, devices: int) -> Tree:
    """Rows, of which there are `length`, with copies of the last one behind them until the devices divide them."""
    if length % devices == 0:
        return rows
    places = jnp.minimum(jnp.arange(-(-length // devices) * devices, dtype=jnp.int32), length - 1)
    return jax.tree.map(lambda leaf: leaf[places], rows)


def cut(rows: Tree, length: int) -> Tree:
    """The first `length` rows: the way back from `filled_up`."""
    return jax.tree.map(lambda leaf: leaf[:length], rows)


def kept_at(devices: int, tree: Tree, axis: int | None = None) -> Tree:
    """The tree, held by all devices, or, where they divide the length of `axis`, with a part of that axis on each.

    So a program leaves its results where the next one looks for them, and is compiled once. Several processes have all
    of it each: what is elsewhere they could not read.
    """

    def placed(leaf: jax.Array) -> jax.Array:
        apart = axis is not None and leaf.shape[axis] % devices == 0 and jax.process_count() == 1
        spec = PartitionSpec(*[None] * axis, AXIS) if axis is not None and apart else EVERYWHERE
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(_mesh(devices), spec))

    return jax.tree.map(placed, tree)
