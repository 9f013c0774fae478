"""The numbers of `jax.random`, bit for bit, in two thirds (uniform) or four fifths (normal) of its time on a CPU.

There JAX computes Threefry's twenty rounds in a loop that goes through its arrays after every four, to compile quickly.
Here it goes through them three times. (Without a loop, training takes twice as long: XLA seems to fuse all of it with
what reads the numbers, and to compute it again for every feature.) Elsewhere JAX has a kernel, which is used. Coins of
every release and noise of every simulation come from here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.random import threefry_2x32

from kinfolk.types import Tree

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_LOWEST = float(np.nextafter(np.float32(-1), np.float32(0)))


def hashed(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Threefry-2x32 of two counters: two words of 32 bits for each pair.

    `key`: a JAX random key of the kind `threefry2x32`. `high`, `low`: the counters, as uint32.
    """
    words = jax.random.key_data(key)
    if words.shape != (2,):
        raise TypeError(f"a key of shape {key.shape} and type {key.dtype}: one of the kind threefry2x32 is needed")
    if jax.default_backend() != "cpu":  # there JAX has a kernel of its own
        both = threefry_2x32(words, jnp.concatenate([jnp.ravel(high), jnp.ravel(low)])).reshape(2, *high.shape)
        return both[0], both[1]
    first, second, third = words[0], words[1], words[0] ^ words[1] ^ jnp.uint32(0x1BD11BDA)
    high, low = _mixed(high + first, low + second, _ROTATIONS[0], (second, third + 1))

    def turn(number: Array, state: tuple[Array, Array, tuple[Array, Array, Array]]) -> Tree:
        high, low, (p, q, r) = state
        count = 2 * number.astype(jnp.uint32)
        high, low = _mixed(high, low, _ROTATIONS[1], (p, q + count + 2))
        high, low = _mixed(high, low, _ROTATIONS[0], (q, r + count + 3))
        return high, low, (r, p, q)

    return jax.lax.fori_loop(0, 2, turn, (high, low, (third, first, second)))[:2]


def _mixed(high: Array, low: Array, rotations: tuple[int, ...], keys: tuple[Array, Array]) -> tuple[Array, Array]:
    """Four rounds, and two words of the key."""
    for rotation in rotations:
        high = high + low
        low = high ^ ((low << rotation) | (low >> (32 - rotation)))
    return high + keys[0], low + keys[1]


def uniform(key: Array, count: int) -> Array:
    """Multiples of 2^-23 in [0, 1), as by `jax.random.uniform`.

    `key`: a JAX random key. `count`: how many.
    """
    places = jnp.arange(count, dtype=jnp.uint32)
    high, low = hashed(key, jnp.zeros_like(places), places)
    between_1_and_2 = ((high ^ low) >> 9) | jnp.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type(between_1_and_2, jnp.float32) - 1


def normal(key: Array, count: int) -> Array:
    """Standard normal numbers, as by `jax.random.normal`.

    `key`: a JAX random key. `count`: how many.
    """
    lowest = jnp.float32(_LOWEST)
    symmetric = jnp.maximum(lowest, uniform(key, count) * (1 - lowest) + lowest)
    return jnp.float32(np.sqrt(2)) * jax.lax.erf_inv(symmetric)
