"""Noise for a release: exact, from the operating system, drawn outside the program and handed to it on a tape.

Keys and noise are in memory only, and used once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import trees
from kinfolk.privacy import exact_noise
from kinfolk.privacy.release import Meter, Tape

Draw = Callable[[str, tuple[int, ...]], np.ndarray]
"""Exact integers for the releases of a kind: (..., releases, integers of one)."""


def fresh_keys(shape: tuple[int, ...] = ()) -> Array:
    """Keys from the operating system."""
    words = np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint32).reshape(*shape, 2)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def tape_shapes(kinds: tuple[str, ...], sizes: Mapping[str, int], uses: Mapping[str, int], *lead: int) -> Tape | None:
    """The noise that is needed: (*lead, uses, integers) for every kind of release; none where nothing is paid.

    `sizes`: scalars in one release of each kind. `uses`: how many releases of it the tape is for.
    """
    shapes = {
        kind: jax.ShapeDtypeStruct((*lead, uses[kind], exact_noise.width(kind, sizes[kind])), jnp.int32)
        for kind in kinds
        if kind in sizes
    }
    return trees.filled(Tape, shapes, "noise") if kinds else None


def tape_bytes(tape: Tape | None) -> int:
    """What a tape of these shapes takes in memory."""
    return sum(int(np.prod(shape.shape)) * 4 for shape in (tape.values.values() if tape else ()))


def with_fresh_noise(meter: Meter, shapes: Tape | None, draw: Draw) -> Meter:
    """A meter with new keys, counters at zero, and exact noise; leading axes of its counters come before the tape's."""

    def drawn(kind: str, shape: tuple[int, ...]) -> Array:
        missing = meter.draws.ndim - (len(shape) - 2)
        return jnp.asarray(draw(kind, shape))[(None,) * missing]

    values = {kind: drawn(kind, own.shape) for kind, own in (shapes.values if shapes else {}).items()}
    return replace(
        meter,
        noise=fresh_keys(meter.noise.shape),
        coins=fresh_keys(meter.coins.shape),
        uses=trees.zeros_like(meter.uses),
        tape=Tape(values, "noise") if shapes else None,
    )
