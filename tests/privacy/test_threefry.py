"""Our numbers are those of `jax.random`, so stored runs go on bit for bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from kinfolk.privacy import threefry


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_numbers_are_those_of_jax(count: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One key, and many under `vmap`, compiled or not; where there is a GPU they are computed in another way."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    keys = jax.random.split(jax.random.key(5, impl="threefry2x32"), 6).reshape(2, 3)
    for ours, theirs in ((threefry.uniform, jax.random.uniform), (threefry.normal, jax.random.normal)):
        expected = jax.vmap(jax.vmap(lambda key, theirs=theirs: theirs(key, (count,))))(keys)
        found = jax.jit(jax.vmap(jax.vmap(lambda key, ours=ours: ours(key, count))))(keys)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(ours(keys[0, 1], count), expected[0, 1])


def test_both_words_are_threefry() -> None:
    """Of any two counters."""
    counters = jax.random.bits(jax.random.key(1), (2, 50))
    key = jax.random.key(2, impl="threefry2x32")
    found = threefry.hashed(key, counters[0], counters[1])
    np.testing.assert_array_equal(jnp.concatenate(found), threefry_2x32(jax.random.key_data(key), counters.ravel()))


def test_another_generator_is_refused() -> None:
    """Half of its key would be ignored."""
    with pytest.raises(TypeError, match="threefry2x32 is needed"):
        threefry.uniform(jax.random.key(0, impl="rbg"), 3)
