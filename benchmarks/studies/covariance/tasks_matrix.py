"""Algorithm 1 of Liang et al. with the tasks' matrix, `W^T W` (clients x clients): what can be run of it.

For comparison only. The paper names this matrix beside `W W^T` and prints no method that uses it. The trace norm's
proximal operator can be taken from either: `W V S V^T`, with V S V^T of the tasks' matrix, is the same as `U S U^T W`.
But column i of the first is a mixture of *all* models, while in line 7 of the algorithm client i has the matrix, its
own model and its own data. So four things can be done, `use`:

* `own`: what the algorithm allows. Of the mixture a client has its own term only: its model, times one number.
* `noised`: all models are released with noise, and the matrix and the mixtures are made of those. One client is one
  column, so the sensitivity is K, and every entry of every model gets the noise.
* `handed out`: the mixture of the models as they are. NOT PRIVATE: noise on the matrix protects nobody whose model is
  handed out. It shows what would be left if others' models were public, and only how they relate were private.
* `as published`: the same with the Wishart noise that line 5 of the algorithm prints for this matrix. NOT PRIVATE, for
  that reason and because the noise is positive.

The sensitivity of the matrix is that of `kinfolk.theory.covariance_noise.tasks_sensitivity`. Nothing here goes through
the gates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.shrinkage import momentum, shrink
from kinfolk.privacy.clipping import clip_one
from kinfolk.privacy.moments import symmetric
from kinfolk.theory.covariance_noise import tasks_sensitivity
from kinfolk.types import Value
from kinfolk.verify.covariance_iterative import WARNING

USES = ("own", "noised", "handed out", PUBLISHED := "as published")


@trees.register
@dataclass(frozen=True)
class ByTasks:
    """Settings, named as those of `Iterative`, which shares the features' matrix."""

    strength: Value = 1.0
    step_size: Value = 1.0
    clip: Value = 1.0
    """K, the largest norm of a model that goes into the matrix; public."""
    shift: Value = 1.0
    ridge: Value = 0.0
    use: str = field(default="own", metadata={"static": True})
    """One of USES."""

    @property
    def label(self) -> str:
        """What to print beside results: a warning where they are not private."""
        return WARNING if self.use in ("handed out", PUBLISHED) else ""

    @property
    def noise(self) -> str:
        """As `Iterative` calls it."""
        return "wishart_as_published" if self.use == PUBLISHED else "gaussian"

    def run(self, key: Array, x: Array, y: Array, levels: Array, start: Array) -> Array:
        """Every client's model after `len(levels)` rounds, from `start` (clients, features).

        `levels`: each round's noise multiplier, or its epsilon for the published noise.
        """

        def turn(carry: tuple[Array, Array], now: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
            (models, before), (number, level, key) = carry, now
            shrunk = self.shrunk(key, models, level) / (1 + self.step_size * self.ridge)
            ahead = shrunk + momentum(number, 0.0) * (shrunk - before)
            missed = jnp.einsum("mnd,md->mn", x, ahead) - y
            return (ahead - self.step_size * jnp.einsum("mnd,mn->md", x, missed) / x.shape[1], shrunk), None

        rounds = levels.shape[0]
        turns = (jnp.arange(1, rounds + 1, dtype=jnp.float32), levels, jax.random.split(key, rounds))
        (_, shrunk), _ = jax.lax.scan(turn, (start, start), turns)
        return shrunk

    def shrunk(self, key: Array, models: Array, level: Value) -> Array:
        """All models after one noisy proximal step."""
        matrix, shown, deviation = self.released(key, models, level)
        mixing = shrink(jnp.eye(len(models)), matrix, self.step_size * self.strength, self.shift * deviation)
        share = jnp.diag(mixing)
        return share[:, None] * models + (mixing - jnp.diag(share)) @ shown

    def released(self, key: Array, models: Array, level: Value) -> tuple[Array, Array, Array]:
        """The noisy matrix, what a client has of the others' models, and the deviation of the matrix's own noise."""
        clients, clip = models.shape[0], jnp.asarray(self.clip, jnp.float32)
        kept = jax.vmap(clip_one, in_axes=(0, None, None))(models, jnp.float32(1), clip)
        if self.use == "noised":
            shown = kept + level * clip * jax.random.normal(key, models.shape)
            return shown @ shown.T, shown, jnp.float32(0)
        if self.use == PUBLISHED:
            normal = clip / jnp.sqrt(2 * level) * jax.random.normal(key, (clients, clients + 1))
            return kept @ kept.T + normal @ normal.T, models, jnp.float32(0)
        deviation = level * tasks_sensitivity(clients, 1.0) * jnp.square(clip)
        matrix = kept @ kept.T + symmetric(deviation * jax.random.normal(key, (clients, clients)))
        return matrix, jnp.zeros_like(models) if self.use == "own" else models, deviation
