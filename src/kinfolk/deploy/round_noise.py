"""Keys and exact noise for one round of one party: from the operating system, in memory only, used once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.privacy import exact_noise
from kinfolk.privacy.choice import Chooser
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Meter, PrivacyError, Tape, new_meter


def fresh_key() -> Array:
    words = np.frombuffer(os.urandom(8), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def tape_shapes(kinds: tuple[str, ...], sizes: Mapping[str, int], uses: Mapping[str, int]) -> Tape | None:
    """The noise that a round may need: (most uses, scalars) for every kind of release; none where nothing is paid."""
    shapes = {
        kind: jax.ShapeDtypeStruct((max(1, uses[kind]), exact_noise.width(kind, sizes[kind])), jnp.int32)
        for kind in kinds
        if kind in sizes
    }
    return Tape(shapes, "noise") if kinds else None  # type: ignore[arg-type]


def fresh_meter(mechanisms: Mapping[str, Mechanism | Chooser], shapes: Tape | None) -> Meter:
    """A meter with new keys, counters at zero and exact noise for one round. `mechanisms`: one per kind of release."""
    meter = new_meter(fresh_key(), tuple(mechanisms))
    if shapes is None:
        return meter

    def drawn(kind: str, shape: tuple[int, ...]) -> Array:
        (cost,) = mechanisms[kind].costs()
        return jnp.asarray(exact_noise.integers(mechanisms[kind], np.array(cost.noise_multiplier), shape))

    return replace(meter, tape=Tape({kind: drawn(kind, own.shape) for kind, own in shapes.values.items()}, "noise"))


def require_traced(uses: Mapping[str, np.ndarray], traced: Mapping[str, int]) -> None:
    """Refuses counts that the traced program does not bear out."""
    for kind, counts in uses.items():
        if counts.max(initial=0) > traced.get(kind, 0):
            raise PrivacyError(
                f"{kind}: {counts.max()} uses in a round, but the traced program makes {traced.get(kind, 0)}"
            )
