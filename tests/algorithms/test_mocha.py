"""Mocha's relations, against the definition in double precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.algorithms.mocha import orthogonal_factor, relation_precision


def spectrum(name: str, clients: int, weights: int) -> np.ndarray:
    """Models whose differences are large, small beside what they share, nothing, or of all orders of magnitude."""
    generator = np.random.default_rng(0)
    own = generator.normal(size=(clients, weights))
    common = np.broadcast_to(generator.normal(size=weights), own.shape)
    falling = own * 10.0 ** (-np.arange(weights) / 3) @ np.linalg.qr(generator.normal(size=(weights, weights)))[0]
    return {"large": own, "small": common + 1e-3 * own, "none": common, "falling": falling, "zero": 0 * own}[name]


def by_definition(models: np.ndarray, ridge: float) -> np.ndarray:
    """The inverse of `(W W^T)^(1/2) / trace + ridge / clients`, with a mean diagonal of 1."""
    vectors, roots, _ = np.linalg.svd(models)
    padded = np.zeros(len(models))
    padded[: len(roots)] = roots
    covariance = (vectors * padded) @ vectors.T / max(padded.sum(), 1e-12)
    found = np.linalg.inv(covariance + ridge / len(models) * np.eye(len(models)))
    return found * len(models) / np.trace(found)


@pytest.mark.parametrize("shape", [(40, 9), (9, 40), (12, 12), (1, 5)])
@pytest.mark.parametrize("ridge", [1.0, 0.1])
def test_relations_are_those_of_the_definition(shape: tuple[int, int], ridge: float) -> None:
    names = ("large", "small", "none", "falling", "zero")
    models = np.stack([spectrum(name, *shape) for name in names]).astype(np.float32)
    found = jax.jit(jax.vmap(lambda own: relation_precision(own, ridge)))(models)
    for name, own, precision in zip(names, models, found, strict=True):
        expected = by_definition(own.astype(float), ridge)
        np.testing.assert_allclose(precision, expected, atol=3e-5, err_msg=name)


def test_the_orthogonal_factor_keeps_directions_and_signs() -> None:
    """Also of values a millionth of the largest, and where one value is the whole norm."""
    generator = np.random.default_rng(1)
    left, right = (np.linalg.qr(generator.normal(size=(size, 6)))[0] for size in (6, 30))
    for values in (10.0 ** -np.arange(6), np.ones(6), np.array([1, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5])):
        found = orthogonal_factor(jnp.asarray((left * values) @ right.T, jnp.float32))
        np.testing.assert_allclose(np.asarray(found) @ found.T, np.eye(6), atol=5e-5)
        seen = left.T @ np.asarray(found, float) @ right
        assert (np.diag(seen) > 0.5).all()
