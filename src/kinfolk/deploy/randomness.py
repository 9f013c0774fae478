"""Keys and exact noise for one round of one party: from the operating system, in memory only, used once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import CHOICE
from kinfolk.privacy.mechanisms import AdaptiveSum, GaussianSum, Mechanism
from kinfolk.privacy.noise import rounded_normal
from kinfolk.privacy.release import Meter, PrivacyError, Tape, new_meter

MOST_UNITS = 2**14
"""Units that one exact sum on the integer grid can hold."""


def fresh_key() -> Array:
    words = np.frombuffer(os.urandom(8), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def tape_shapes(kinds: tuple[str, ...], sizes: Mapping[str, int], uses: Mapping[str, int]) -> Tape | None:
    """The noise that a round may need: (most uses, scalars) for every kind of release; none where nothing is paid."""
    shapes = {
        kind: jax.ShapeDtypeStruct((uses[kind], sizes[kind]), jnp.int32)
        for kind in kinds
        if kind != CHOICE and uses.get(kind) and kind in sizes
    }
    return Tape(shapes, "noise") if kinds else None  # type: ignore[arg-type]


def fresh_meter(kinds: tuple[str, ...], mechanism: Mechanism, shapes: Tape | None) -> Meter:
    """A meter with new keys, counters at zero and exact noise for one round."""
    meter = new_meter(fresh_key(), kinds)
    if shapes is None:
        return meter
    noise = mechanism.costs()[0].noise_multiplier if mechanism.costs() else 1.0
    tape = jax.tree.map(lambda shape: jnp.asarray(rounded_normal(GRID_STEPS * noise, shape.shape)), shapes)
    return replace(meter, tape=tape)


def check_grid(mechanism: Mechanism, units: int) -> None:
    """Refuses a sum over more units than fit on the integer grid."""
    if not isinstance(mechanism, GaussianSum | AdaptiveSum):
        return
    units = min(units, mechanism.sampling.capacity or units)
    if units > MOST_UNITS:
        raise PrivacyError(
            f"a release sums up to {units} units exactly, and at most {MOST_UNITS} fit: use smaller ones"
        )


def require_traced(uses: Mapping[str, np.ndarray], traced: Mapping[str, int]) -> None:
    """Refuses counts that the traced program does not bear out."""
    for kind, counts in uses.items():
        if counts.max(initial=0) > traced.get(kind, 0):
            raise PrivacyError(
                f"{kind}: {counts.max()} uses in a round, but the traced program makes {traced.get(kind, 0)}"
            )
