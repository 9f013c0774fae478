"""Clients divided among devices, and over hosts: each computes its part, and all have what came out.

Rounds are one program (`jax.shard_map` over a mesh with one axis). Only clients' own work is divided. What follows, the
aggregator's sums and its noise among it, is computed from everything, alike on every device: so results do not depend
on how many there are, beyond the rounding of a client's own work, and noise is drawn once.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from kinfolk.toml import ConfigError
from kinfolk.types import Tree

AXIS = "clients"


def usable(wanted: int | None = None) -> int:
    """How many devices to use: so many as are `wanted`, if there are as many; None: all."""
    there = jax.device_count()
    if wanted is not None and not 1 <= wanted <= there:
        raise ConfigError(
            f"devices={wanted} must lie between 1 and the {there} that JAX sees here: leave it out to use all; several "
            "on one CPU are made by the variable XLA_FLAGS=--xla_force_host_platform_device_count=N"
        )
    return there if wanted is None else wanted


def over_devices(devices: int, function: Callable[..., Tree], *rows: Tree) -> Tree:
    """`function(*rows)`, whose results have the rows' leading axis, with a part of that axis on each of the devices.

    The last part is filled up with copies of the last row, and what they give is thrown away.
    """
    if devices == 1:
        return function(*rows)
    length = jax.tree.leaves(rows)[0].shape[0]
    filled = -(-length // devices) * devices
    places = jnp.minimum(jnp.arange(filled, dtype=jnp.int32), length - 1)
    mesh = Mesh(jax.devices()[:devices], (AXIS,))

    def part(*own: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS, tiled=True), function(*own))

    divided = jax.shard_map(part, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(), check_vma=False)
    found = divided(*jax.tree.map(lambda leaf: leaf[places], rows))
    return jax.tree.map(lambda leaf: leaf[:length], found)
