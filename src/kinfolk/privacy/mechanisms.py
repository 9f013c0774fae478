"""Mechanisms: clip, noise and cost in one object.

A mechanism's fields are public and may have a leading client axis; under `vmap` every client then has its own clip,
noise and sampling rate, and so its own budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import batching, trees
from kinfolk.privacy import threefry
from kinfolk.privacy.clipping import GRID_STEPS, Sum, with_count
from kinfolk.privacy.correlated_noise import CorrelatedSum
from kinfolk.privacy.release import Cost, Meter, PrivacyError, Secret, release
from kinfolk.types import Tree, Value

COIN_STEPS = 2**23
"""A coin compares a rate with a float32 uniform, which is a multiple of 1/COIN_STEPS."""
RELATIONS = ("zero_out", "replace_one")


@trees.register
@dataclass(frozen=True)
class Sampling:
    """Poisson sampling: every unit flips its own coin with probability `rate`.

    `capacity` gathers the chosen units into a batch of that size. What does not fit is left out: that depends on
    coins alone, and its probability is in the cost.
    """

    rate: Value = 1.0
    capacity: int | None = field(default=None, metadata={"static": True})

    def coins(self, key: Array, mask: Array) -> Array:
        """Which of the real rows (`mask`) are sampled, each independently, by a random `key`."""
        return mask & (threefry.uniform(key, mask.size).reshape(mask.shape) < self.rate)

    def batch(self, key: Array, units: Tree, mask: Array) -> tuple[Tree, Array]:
        """The sampled units and which rows of them are filled.

        `key`: a JAX random key. `units`: all of them, along the leading axis. `mask`: which are real.
        """
        chosen = self.coins(key, mask)
        if self.capacity is None or self.capacity >= mask.shape[0]:
            return units, chosen
        (index,) = jnp.nonzero(chosen, size=self.capacity, fill_value=mask.shape[0])
        return batching.rows_at(units, index), index < mask.shape[0]


def shuffled_batch(size: int, key: Array, number: Array, units: Tree, mask: Array) -> tuple[Tree, Array]:
    """Batch `number` of endless passes over the units in shuffled order, and which rows of it are filled.

    A pass leaves out what does not fill a batch, other units every time. For sums that nobody pays for: no account
    here knows this law.

    `size`: of a batch. `key`: a JAX random key. `units`: all of them, along the leading axis. `mask`: which are real.
    """
    batches, count = jnp.maximum(1, mask.sum(dtype=jnp.int32) // size), mask.shape[0]
    places = jnp.arange(count, dtype=jnp.uint32)
    bits, _ = threefry.hashed(key, jnp.full(count, number // batches, jnp.uint32), places)  # fold_in and bits in one
    low = jnp.uint32(2 ** (count - 1).bit_length() - 1)
    mixed = jnp.where(mask, bits >> 1, jnp.uint32(2**32 - 1)) & ~low  # padding comes last
    order = (jnp.sort(mixed | places) & low).astype(jnp.int32)  # number and place in one sort faster than two operands
    begin = (number % batches) * size
    return batching.rows_at((units, mask), jax.lax.dynamic_slice(order, (begin,), (min(size, count),)))


def coin_rate(rate: float) -> float:
    """The probability with which a coin of this rate really comes up: never below `rate`, at most 1.

    >>> coin_rate(0.5), coin_rate(1.7)
    (0.5, 1.0)
    """
    return float(min(1.0, np.ceil(rate * COIN_STEPS) / COIN_STEPS))


@trees.register
@dataclass(frozen=True)
class GaussianSum:
    """A sum of clipped contributions plus Gaussian noise: DP-SGD inside a silo, and the noisy sum at an aggregator.

    With `sampled_here` the coins are flipped inside the release; otherwise whoever calls has flipped them with the
    same `sampling` and passes the outcome as the mask.
    """

    open: ClassVar[bool] = False
    law: ClassVar[str] = "normal"

    clip: Value
    """Largest norm of one unit's contribution."""
    noise_multiplier: Value
    """Noise standard deviation divided by the clip norm."""
    sampling: Sampling = Sampling()
    overflow: Value = 0.0
    """Probability that a batch does not fit its capacity, per use."""
    sampled_here: bool = field(default=True, metadata={"static": True})
    relation: str = field(default="zero_out", metadata={"static": True})
    """Which data sets are neighbours, `zero_out` or `replace_one`."""
    group: int = field(default=1, metadata={"static": True})
    """In how many units one protected person may be."""
    excess: float = field(default=1.0, metadata={"static": True})
    """Variance of the noise, as a multiple of what is paid for: above 1 where clients add it in shares."""
    charged_as: str = field(default="gaussian", metadata={"static": True})
    """The law that is paid for: `discrete_gaussian` where it is made of shares."""

    def __call__(
        self, kind: str, meter: Meter, what: Sum, public: Tree, units: Tree, mask: Array, active: Value = True
    ) -> tuple[Tree, Meter]:
        def body(secret: Secret, private: tuple[Tree, Array], own: GaussianSum, args: Tree) -> Tree:
            return _noisy_sum(secret, own, what, args, private, jnp.asarray(own.clip, jnp.float32))

        return release(kind, body, meter, (units, mask), self, public, active)

    def costs(self) -> list[Cost]:
        """What one use costs, for each party."""
        return _gaussian_costs(self)


def _noisy_sum(
    secret: Secret, own: GaussianSum | AdaptiveSum, what: Sum, args: Tree, private: tuple[Tree, Array], clip: Array
) -> Tree:
    """The inside of a release: sample, clip to `clip`, sum, add noise of the mechanism's multiplier."""
    units, mask = private
    if own.sampled_here:
        units, mask = own.sampling.batch(secret.coins, units, mask)
    weights = mask.astype(jnp.float32)
    bound = clip if what.degree == 1 else clip**what.degree
    if secret.integers is not None:
        return _exact_sum(secret.integers, what, args, (units, weights), clip)
    total = what.clipped(args, units, weights, clip)
    bound = bound if own.excess == 1 else bound * math.sqrt(own.excess)
    return _shift(total, own.noise_multiplier * bound * threefry.normal(secret.noise, trees.size(total)))


def _exact_sum(noise: Array, what: Sum, args: Tree, private: tuple[Tree, Array], clip: Array) -> Tree:
    """A sum on the integer grid plus integer noise, as float32."""
    total = _shift(what.on_grid(args, *private, clip), noise)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) * (clip**what.degree / GRID_STEPS), total)


def _gaussian_costs(own: GaussianSum | AdaptiveSum) -> list[Cost]:
    values = (own.noise_multiplier, own.sampling.rate, own.overflow)
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, float)) for v in values))
    return [
        Cost(own.charged_as, float(z), float(rate), own.relation, float(overflow), group=own.group)
        for z, rate, overflow in zip(*columns, strict=True)
    ]


@trees.register
@dataclass(frozen=True)
class AdaptiveSum:
    """A Gaussian sum that finds its own clip norm (Andrew et al., 2021), in one release.

    Beside its clipped contribution every unit says whether it lay within the clip, as +-1/2 times a scale; both
    together are no longer than `reach`, and get noise as one vector. The clip then moves towards the wanted quantile.
    With noise of standard deviation s on the count and z' times the clip on the sum, the whole costs what a multiplier
    z costs, 1/z^2 = 1/z'^2 + 1/(2 s)^2.
    """

    open: ClassVar[bool] = False
    law: ClassVar[str] = "normal"

    clip: Value
    """The clip norm to begin with."""
    noise_multiplier: Value
    """Of the whole release."""
    sampling: Sampling = Sampling()
    """Who takes part."""
    overflow: Value = 0.0
    """Probability that a batch does not fit its capacity, per use."""
    quantile: Value = 0.5
    """The quantile of the units' norms that the clip follows."""
    expected: Value = 1.0
    """Expected number of units in a sum; public."""
    speed: Value = 0.2
    """How fast the logarithm of the clip moves."""
    sampled_here: bool = field(default=False, metadata={"static": True})
    """Whether the release samples the units itself."""
    relation: str = field(default="zero_out", metadata={"static": True})
    """Which data sets are neighbours, `zero_out` or `replace_one`."""
    group: int = field(default=1, metadata={"static": True})
    """In how many units one protected person may be."""
    excess: float = field(default=1.0, metadata={"static": True})
    """Variance of the noise, as a multiple of what is paid for: above 1 where clients add it in shares."""
    charged_as: str = field(default="gaussian", metadata={"static": True})
    """The law that is paid for: `discrete_gaussian` where it is made of shares."""

    @property
    def count_noise(self) -> Value:
        """Standard deviation of the noise on the count: a twentieth of the units, and never so little that the sum
        would need more than 4 % more noise."""
        return jnp.maximum(self.expected / 20, 2 * self.noise_multiplier)

    def __call__(
        self, kind: str, meter: Meter, what: Sum, public: Tree, units: Tree, mask: Array, active: Value = True
    ) -> tuple[Tree, Meter]:
        if what.degree != 1:
            raise PrivacyError(f"clip_quantile does not fit a release of kind={kind!r}: leave it out")

        def body(secret: Secret, private: tuple[Tree, Array], own: AdaptiveSum, args: Tree) -> Tree:
            public, memory = args
            clip = own.clip * memory
            sum_noise = 1 / jnp.sqrt(own.noise_multiplier**-2 - (2 * own.count_noise) ** -2)
            scale = clip * sum_noise / own.count_noise
            reach = clip * sum_noise / own.noise_multiplier
            total, count = _noisy_sum(secret, own, with_count(what), (public, clip, scale), private, reach)
            return total, count / scale

        args = (public, meter.memory)
        (total, count), meter = release(kind, body, meter, (units, mask), self, args, active)
        within = jnp.clip(0.5 + count / self.expected, 0, 1)
        step = jnp.where(jnp.asarray(active), jnp.exp(-self.speed * (within - self.quantile)), 1)
        return total, replace(meter, memory=jnp.clip(meter.memory * step, 1e-3, 1e3))

    def costs(self) -> list[Cost]:
        """What one use costs, for each party."""
        return _gaussian_costs(self)


@trees.register
@dataclass(frozen=True)
class LaplaceSum:
    """A sum of clipped contributions plus Laplace noise: pure epsilon, best for a single release of few values.

    It needs contributions that are bounded in L1, and refuses all others. Everybody takes part: there is no sampling.
    """

    open: ClassVar[bool] = False
    law: ClassVar[str] = "laplace"
    excess: ClassVar[float] = 1.0

    clip: Value
    """Largest norm of one unit's contribution."""
    noise_multiplier: Value
    """Scale of the noise divided by the bound of a contribution."""
    sampling: Sampling = Sampling()
    """Who takes part."""
    relation: str = field(default="zero_out", metadata={"static": True})
    """Which data sets are neighbours, `zero_out` or `replace_one`."""
    group: int = field(default=1, metadata={"static": True})
    """In how many units one protected person may be."""

    def __call__(
        self, kind: str, meter: Meter, what: Sum, public: Tree, units: Tree, mask: Array, active: Value = True
    ) -> tuple[Tree, Meter]:
        if not what.within_l1:
            raise PrivacyError(f"Laplace noise does not fit a release of kind={kind!r}: use noise='gaussian'")

        def body(secret: Secret, private: tuple[Tree, Array], own: LaplaceSum, args: Tree) -> Tree:
            units, mask = private
            clip, weights = jnp.asarray(own.clip, jnp.float32), mask.astype(jnp.float32)
            if secret.integers is not None:
                return _exact_sum(secret.integers, what, args, (units, weights), clip)
            total = what.clipped(args, units, weights, clip)
            noise = jax.random.laplace(secret.noise, (trees.size(total),), jnp.float32)
            return _shift(total, own.noise_multiplier * clip**what.degree * noise)

        return release(kind, body, meter, (units, mask), self, public, active)

    def costs(self) -> list[Cost]:
        """What one use costs, for each party."""
        noise = np.atleast_1d(np.asarray(self.noise_multiplier, float))
        return [Cost("laplace", float(z), 1.0, self.relation, group=self.group) for z in noise]


def _shift(tree: Tree, by: Array) -> Tree:
    """The tree plus a vector of noise, which may be longer than needed."""
    flat, unflatten = trees.flatten(tree)
    return unflatten(flat + by[: flat.size])


@trees.register
@dataclass(frozen=True)
class ExactSum:
    """The plain sum: no clip, no noise, no privacy. It stands at a gate that a privacy level leaves open."""

    open: ClassVar[bool] = True
    law: ClassVar[str] = "none"
    excess: ClassVar[float] = 1.0
    clip: ClassVar[float] = 0.0
    noise_multiplier: ClassVar[float] = 0.0

    sampling: Sampling = Sampling()
    """Who takes part."""
    sampled_here: bool = field(default=True, metadata={"static": True})
    """Whether the release samples the units itself."""
    shuffled: int | None = field(default=None, metadata={"static": True})
    """With a number, batches of that size are parts of shuffled passes instead; `sampling` has their share."""

    def __call__(
        self, kind: str, meter: Meter, what: Sum, public: Tree, units: Tree, mask: Array, active: Value = True
    ) -> tuple[Tree, Meter]:
        def total(units: Tree, mask: Array) -> Tree:
            if self.shuffled is not None:
                units, mask = shuffled_batch(self.shuffled, meter.coins, meter.draws, units, mask)
            elif self.sampled_here:
                units, mask = self.sampling.batch(jax.random.fold_in(meter.coins, meter.draws), units, mask)
            return what.exact(public, units, mask.astype(jnp.float32))

        active = jnp.asarray(active)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(total, units, mask))
        found = jax.lax.cond(active, total, lambda *_: nothing, units, mask)
        return found, replace(meter, draws=meter.draws + active.astype(jnp.int32))

    def costs(self) -> list[Cost]:
        """Nothing, as nothing is private."""
        return []


NoisySum = GaussianSum | AdaptiveSum | CorrelatedSum | LaplaceSum
Mechanism = NoisySum | ExactSum
"""What stands at a gate: called with a kind of release, a meter, what to sum, its public arguments, the units (whose
leading axis is the privacy unit), a mask and an `active` flag, it returns the (noisy) sum and the meter, with one more
use if it was private. `costs` has the cost of one use for each party; it is empty when there is nothing to pay for.
`open` says that nothing is clipped, noised or paid for, `law` what the noise is, `clip` and `noise_multiplier` how much
there is.
"""
