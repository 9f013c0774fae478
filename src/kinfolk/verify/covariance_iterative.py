"""The iterative method on all clients at once, for repeated experiments and for comparison with the published noise.

It computes what `algorithms/covariance_regularized.py` computes through the gates (a test compares them), for least
squares and one full gradient step per round. Private runs belong behind the gates: nothing here keeps an account.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.shrinkage import momentum, shrink, shrink_features, shrink_whole
from kinfolk.privacy.clipping import clip_one
from kinfolk.privacy.mechanisms import Cost
from kinfolk.privacy.moments import symmetric
from kinfolk.privacy.release import PrivacyError
from kinfolk.types import Value

NOISES = ("gaussian", "wishart_as_published", "none")
WARNING = "NOT PRIVATE"
"""The label of everything computed with the published noise."""


@trees.register
@dataclass(frozen=True)
class Iterative:
    """Settings of the iterative method. `noise="wishart_as_published"` is NOT PRIVATE and for comparison only."""

    strength: Value = 1.0
    step_size: Value = 1.0
    clip: Value = 1.0
    """K, the largest norm of a model that goes into the moment; public."""
    shift: Value = 1.0
    ridge: Value = 0.0
    """Penalty on each model's own squared norm, without the step size."""
    condition: Value = 0.0
    """Strong convexity over smoothness: above 0 momentum is constant, as the paper has it for such losses."""
    outliers: Value = math.inf
    """Strength of the penalty on a part of each client's own, which is not shared; infinite: there is none."""
    accelerated: bool = field(default=True, metadata={"static": True})
    pattern: str = field(default="low_rank", metadata={"static": True})
    noise: str = field(default="gaussian", metadata={"static": True})

    @property
    def label(self) -> str:
        """What to print beside results: a warning where they are not private."""
        return WARNING if self.noise == "wishart_as_published" else ""

    def costs(self, levels: Sequence[float]) -> list[Cost]:
        """What the releases cost, one per round. Refused for the published noise: no ledger can be charged for it."""
        if self.noise == "gaussian":
            return [Cost("gaussian", float(level)) for level in levels]
        raise PrivacyError(f"noise={self.noise!r} is {WARNING}: there is nothing a ledger could be charged")

    def run(self, key: Array, x: Array, y: Array, mask: Array, levels: Array, start: Array) -> Array:
        """Every client's model after `len(levels)` rounds, from `start` (clients, features).

        `levels`: each round's noise multiplier, or its epsilon for the published noise.
        """
        counts = jnp.maximum(mask.sum(axis=1), 1).astype(jnp.float32)

        def gradient(models: Array) -> Array:
            missed = jnp.where(mask, jnp.einsum("mnd,md->mn", x, models) - y, 0)
            return jnp.einsum("mnd,mn->md", x, missed) / counts[:, None]

        def step(carry: tuple[Array, ...], turn: tuple[Array, Array, Array]) -> tuple[tuple[Array, ...], None]:
            (models, before, own, kept_before), (number, level, key) = carry, turn
            shrunk = self.shrunk(key, models, level) / (1 + self.step_size * self.ridge)
            kept = jax.vmap(shrink_whole, in_axes=(0, None))(own, self.step_size * self.outliers)
            ahead = momentum(number, self.condition) if self.accelerated else jnp.float32(0)
            first, own = shrunk + ahead * (shrunk - before), kept + ahead * (kept - kept_before)
            way = self.step_size * gradient(first + own)
            return (first - way, shrunk, own - way, kept), None

        rounds, nothing = levels.shape[0], jnp.zeros_like(start)
        turns = (jnp.arange(1, rounds + 1, dtype=jnp.float32), levels, jax.random.split(key, rounds))
        (_, shrunk, _, kept), _ = jax.lax.scan(step, (start, start, nothing, nothing), turns)
        return shrunk + kept

    def shrunk(self, key: Array, models: Array, level: Array) -> Array:
        """All models after one noisy proximal step."""
        moment, deviation = self.moment(key, models, level)
        how = shrink if self.pattern == "low_rank" else shrink_features
        return how(models.T, moment, self.step_size * self.strength, self.shift * deviation).T

    def moment(self, key: Array, models: Array, level: Array) -> tuple[Array, Array]:
        """The noisy second moment (or its diagonal), and the deviation of its noise where that is sound."""
        clip = jnp.asarray(self.clip, jnp.float32)
        kept = jax.vmap(clip_one, in_axes=(0, None, None))(models, jnp.float32(1), clip)
        size, low_rank = models.shape[1], self.pattern == "low_rank"
        exact = kept.T @ kept if low_rank else jnp.square(kept).sum(axis=0)
        if self.noise == "none":
            return exact, jnp.float32(0)
        if self.noise == "gaussian":
            deviation = level * jnp.square(clip)
            if not low_rank:
                return exact + deviation * jax.random.normal(key, (size,)), deviation
            return exact + symmetric(deviation * jax.random.normal(key, (size, size))), deviation
        normal = clip / jnp.sqrt(2 * level) * jax.random.normal(key, (size + 1, size))
        noise = normal.T @ normal if low_rank else jnp.square(normal).sum(axis=0)
        return exact + noise, jnp.float32(0)
