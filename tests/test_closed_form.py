"""Closed-form fits against what they stand for: the minimum, and refitting without each row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from kinfolk import models, outcomes, trees
from kinfolk.closed_form import bounded_newton, evidence, fitted_and_left_out, newton
from kinfolk.types import Rows


def rows_for(outcome: str, count: int = 12, padding: int = 3) -> Rows:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count + padding, 3)).astype(np.float32)
    y = {
        "number": generator.normal(size=count + padding).astype(np.float32),
        "binary": generator.integers(0, 2, count + padding).astype(np.int32),
        "classes": generator.integers(0, 3, count + padding).astype(np.int32),
    }[outcome]
    return Rows(jnp.asarray(x), jnp.asarray(y), jnp.arange(count + padding) < count)


MODELS = {"number": models.linear(3), "binary": models.logistic(3), "classes": models.softmax(3, 3)}


def objective(model, rows, centre, precision, params):  # type: ignore[no-untyped-def]
    losses = jax.vmap(lambda x, y: model.loss(params, x, y))(rows.x, rows.y)
    mean = jnp.where(rows.mask, losses, 0).sum() / rows.mask.sum().astype(jnp.float32)
    return mean + precision / 2 * trees.squared_norm(trees.subtract(params, centre))


@pytest.mark.parametrize("outcome", ["number", "binary", pytest.param("classes", marks=pytest.mark.slow)])
def test_newton_finds_the_minimum_and_ignores_padding(outcome: str) -> None:
    model, rows = MODELS[outcome], rows_for(outcome)
    centre = jax.tree.map(lambda leaf: leaf + 0.3, model.init(jax.random.key(0)))
    found = newton(model, rows, centre, jnp.float32(0.2), steps=1 if outcome == "number" else 8)
    slope = jax.grad(lambda p: objective(model, rows, centre, 0.2, p))(found)
    assert float(trees.squared_norm(slope)) < 1e-9


def test_a_precision_for_every_weight_and_a_matrix_agree() -> None:
    model, rows = MODELS["number"], rows_for("number")
    centre = model.init(jax.random.key(0))
    each = jnp.array([0.1, 1.0, 2.0, 3.0])
    one, other = newton(model, rows, centre, each), newton(model, rows, centre, jnp.diag(each))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("outcome", "tolerance"), [("number", 1e-4), ("binary", 0.05), ("classes", 0.08)])
def test_outputs_without_a_row_are_those_of_a_fit_without_it(outcome: str, tolerance: float) -> None:
    """The prior keeps its weight: a mean over n rows of which one counts as nothing."""
    model, rows = MODELS[outcome], rows_for(outcome)
    centre, precision, steps = model.init(jax.random.key(0)), jnp.float32(0.3), 8
    fitted, quick = fitted_and_left_out(model, rows, centre, precision, steps)
    for a, b in zip(*map(jax.tree.leaves, (fitted, newton(model, rows, centre, precision, steps))), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    count = int(rows.mask.sum())
    for i in (0, 5, 11):
        kept = Rows(rows.x, rows.y, rows.mask.at[i].set(False))
        refitted = newton(model, kept, centre, precision * count / (count - 1), steps)
        exact = np.ravel(model.predict(refitted, rows.x[i]))
        np.testing.assert_allclose(np.asarray(quick[i]), exact, atol=tolerance)
        with_it = np.ravel(model.predict(fitted, rows.x[i]))
        assert np.abs(with_it - exact).max() > 2 * np.abs(np.asarray(quick[i]) - exact).max()


@pytest.mark.slow
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("features", [3, 20, 150])
def test_evidence_is_the_density_of_the_targets(features: int, free: bool) -> None:
    """Also with far more weights than rows, where it is computed from another matrix, and with a free intercept."""
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(11, features)), generator.normal(size=11)
    rows = Rows(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), jnp.arange(11) < 8)
    model = models.linear(features)
    centre = jax.tree.map(lambda leaf: leaf + 0.3, model.init(jax.random.key(0)))
    inputs = np.array([np.asarray(trees.flatten(jax.grad(model.predict)(centre, row))[0]) for row in rows.x])[:8]
    residual = np.array([float(t) - float(model.predict(centre, row)) for row, t in zip(rows.x, rows.y, strict=True)])[
        :8
    ]

    def each_of(precision: float) -> np.ndarray:
        every = jax.tree.map(lambda leaf: jnp.full_like(leaf, precision), centre)
        every[0]["bias"] = every[0]["bias"] * (1e-3 / precision if free else 1)
        return np.asarray(trees.flatten(every)[0], float)

    def density(precision: float) -> float:  # at the noise variance that makes it largest
        curvature = float(jax.grad(jax.grad(lambda out: outcomes.squared_error(out, jnp.float32(0))))(jnp.float32(1)))
        spread = np.eye(8) + curvature * (inputs / each_of(precision)) @ inputs.T / 8
        variance = residual @ np.linalg.solve(spread, residual) / 8
        scatter: Any = variance * spread
        return float(multivariate_normal.logpdf(residual, cov=scatter))

    def found(precision: float) -> float:
        strength = jnp.asarray(each_of(precision), jnp.float32)
        return float(evidence(model, rows, newton(model, rows, centre, strength), centre, strength))

    strengths = (0.01, 1.0, 200.0)
    differences = np.diff([density(s) for s in strengths])
    assert np.abs(differences).max() > 0.05
    np.testing.assert_allclose(np.diff([found(s) for s in strengths]), differences, rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_many_classes_are_fitted_with_one_matrix_of_features() -> None:
    """Where a matrix of all weights can be had too, both end at the same weights; padding has no say."""
    generator = np.random.default_rng(3)
    x = generator.uniform(-1, 1, size=(60, 5)).astype(np.float32)
    y = np.argmax(3 * x[:, :3] + generator.gumbel(size=(60, 3)), axis=1).astype(np.int32)
    model, mask = models.softmax(5, 3), jnp.arange(60) < 50
    centre = jax.tree.map(lambda leaf: leaf + 0.2, model.init(jax.random.key(0)))
    fits = {}
    for name, garbage in (("as it is", 0.0), ("with garbage in the padding", 1e6)):
        rows = Rows(jnp.asarray(x).at[50:].add(garbage), jnp.asarray(y), mask)
        fits[name] = bounded_newton(model, rows, centre, 0.03)
    exact = newton(model, Rows(jnp.asarray(x), jnp.asarray(y), mask), centre, 0.03, 10)
    for found in fits.values():
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-2)
