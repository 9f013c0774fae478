"""Correlated noise: later noise takes some of the earlier noise back, so that sums over many steps carry less of it.

Step t adds the t-th row of C^-1 z, z independent normals and C a banded Toeplitz matrix (DP-FTRL; Choquette-Choo et
al., 2023). This is one Gaussian release of C times all steps' sums: its sensitivity depends on how often, and how far
apart, a unit takes part. So units take part in turns that are public, there is no sampling, and the whole run is paid
for when it begins. It pays where a unit takes part seldom: with full batches every unit takes part in every step, and
independent noise is as good.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import trees
from kinfolk.privacy.clipping import Sum
from kinfolk.privacy.release import Cost, Meter, PrivacyError, Secret, release
from kinfolk.types import Tree, Value


@trees.register
@dataclass(frozen=True)
class Turns:
    """Units take part in turns: unit i in steps i, i + period, i + 2 period, ... There is nothing secret about it."""

    period: Value = 1.0
    capacity: None = field(default=None, metadata={"static": True})

    @property
    def rate(self) -> Value:
        """The share of units in a step."""
        return 1 / self.period

    def present(self, number: Array, mask: Array) -> Array:
        place, period = jnp.arange(mask.shape[0], dtype=jnp.int32), jnp.asarray(self.period).astype(jnp.int32)
        return mask & (place % period == number.astype(jnp.int32) % period)


@trees.register
@dataclass(frozen=True)
class CorrelatedSum:
    """A sum of clipped contributions plus correlated Gaussian noise."""

    open: ClassVar[bool] = False
    law: ClassVar[str] = "normal"
    excess: ClassVar[float] = 1.0

    clip: Value
    noise_multiplier: Value
    """Standard deviation of each z divided by the clip norm."""
    sampling: Turns
    inverse: Value
    """First column of C^-1."""
    sensitivity: Value
    """Most that one unit changes C times all sums, in clip norms, over the steps of the whole run."""
    uses: Value
    """Steps that the sensitivity holds for."""
    sampled_here: bool = field(default=True, metadata={"static": True})
    relation: str = field(default="zero_out", metadata={"static": True})

    def __call__(
        self, kind: str, meter: Meter, what: Sum, public: Tree, units: Tree, mask: Array, active: Value = True
    ) -> tuple[Tree, Meter]:
        if what.degree != 1:
            raise PrivacyError(f"noise_bands above 1 does not fit a release of kind={kind!r}: use noise_bands=1")

        def body(secret: Secret, private: tuple[Tree, Array], own: CorrelatedSum, args: Tree) -> Tree:
            if secret.integers is not None:
                raise PrivacyError("correlated noise has no exact noise yet: give a seed to simulate, or noise_bands=1")
            units, mask = private
            if own.sampled_here:
                mask = own.sampling.present(secret.number, mask)
            clip = jnp.asarray(own.clip, jnp.float32)
            total, unflatten = trees.flatten(what.clipped(args, units, mask.astype(jnp.float32), clip))

            def earlier(lag: Array, noise: Array) -> Array:
                key = jax.random.fold_in(secret.stream, secret.number - lag)
                return noise + own.inverse[lag] * jax.random.normal(key, noise.shape)

            noise = jax.lax.fori_loop(0, secret.number + 1, earlier, jnp.zeros_like(total))
            beyond = secret.number.astype(jnp.float32) >= own.uses  # no account covers this step: fail loudly
            return unflatten(jnp.where(beyond, jnp.nan, total + own.noise_multiplier * clip * noise))

        return release(kind, body, meter, (units, mask), self, public, active)

    def costs(self) -> list[Cost]:
        values = (self.noise_multiplier, self.sensitivity, self.uses)
        columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, float)) for v in values))
        return [
            Cost("gaussian", float(z / s) if s else float(z), 1.0, self.relation, 0.0, max(1, int(uses)))
            for z, s, uses in zip(*columns, strict=True)
        ]


def strategy(steps: int, bands: int) -> np.ndarray:
    """The best banded Toeplitz strategy for running sums over `steps` steps, of norm 1, by jax-privacy."""
    try:
        from jax_privacy.matrix_factorization import toeplitz
    except ImportError:
        raise ImportError(
            "correlated noise (noise_bands above 1) needs jax-privacy: pip install 'kinfolk[correlated]'"
        ) from None
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        warnings.simplefilter("ignore")
        return np.asarray(toeplitz.optimize_banded_toeplitz(max(steps, bands), bands), np.float64)


def inverse(coefficients: np.ndarray, steps: int) -> np.ndarray:
    """First column of the inverse of a lower-triangular Toeplitz matrix, from its own first column."""
    found = np.zeros(steps)
    for t in range(steps):
        lags = np.arange(1, min(t, len(coefficients) - 1) + 1)
        found[t] = ((t == 0) - coefficients[lags] @ found[t - lags]) / coefficients[0]
    return found


def sensitivity(coefficients: np.ndarray, steps: int, period: int) -> float:
    """Most that one unit, taking part every `period` steps, changes C times its contributions of norm at most 1.

    With coefficients of one sign the worst contributions all point the same way.
    """
    if (coefficients < -1e-9).any():
        raise ValueError("the sensitivity is known for coefficients that are not negative only")
    padded = np.zeros(steps)
    padded[: min(steps, len(coefficients))] = coefficients[:steps]
    worst = 0.0
    for first in range(min(period, steps)):
        total = np.zeros(steps)
        for start in range(first, steps, period):
            total[start:] += padded[: steps - start]
        worst = max(worst, float(np.linalg.norm(total)))
    return worst * (1 + 1e-6)
