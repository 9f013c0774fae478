"""Closed-form fits: against plain solves, leaving rows out for real, and densities written out."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kinfolk.algorithms.covariance_prior import (
    SHAPES,
    Prior,
    group_sparse_prior,
    isotropic,
    log_chances,
    low_rank_prior,
    spectra,
)
from kinfolk.algorithms.linear_gaussian import alone, as_logits, fits, solve


def rows(count: int, size: int, seed: int = 0, outputs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, size)).astype(np.float32)
    truth = generator.normal(size=(size, outputs))
    return x, (x @ truth + 0.3 * generator.normal(size=(count, outputs))).astype(np.float32)


def some_prior(size: int) -> Prior:
    basis, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(size, size)))
    spikes = np.stack([np.r_[[5.0, 2.0], np.zeros(size - 2)], np.r_[5.0, np.zeros(size - 1)]])
    return Prior(jnp.asarray(basis, jnp.float32), jnp.asarray(spikes, jnp.float32), jnp.array([0.5, 0.6]))


def covariances(prior: Prior) -> list[np.ndarray]:
    bulks, spikes = (np.asarray(part, np.float64) for part in spectra(prior))
    basis = np.asarray(prior.basis, np.float64)
    return [b * np.eye(len(basis)) + (basis * s) @ basis.T for b, s in zip(bulks, spikes, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(4, 6), (12, 5)], ids=["few rows", "many rows"])
def test_fits_left_out_residuals_and_evidence_are_what_they_say(count: int, size: int) -> None:
    """Both forms, with padding, against a direct computation for every candidate prior."""
    x, y = rows(count, size, outputs=2)
    ridge, prior = 0.1, some_prior(size)
    padded = [np.concatenate([part, np.full((2, part.shape[1]), 9, np.float32)]) for part in (x, y)]
    mask = np.arange(count + 2) < count
    found = fits(*(jnp.asarray(part) for part in (*padded, mask)), prior, ridge)  # type: ignore[arg-type]
    evidence = []
    for number, covariance in enumerate(covariances(prior)):
        covariance = covariance + 1e-9 * np.eye(size)

        def direct(x: np.ndarray, y: np.ndarray, covariance: np.ndarray = covariance) -> np.ndarray:
            return covariance @ x.T @ np.linalg.solve(x @ covariance @ x.T + ridge * np.eye(len(x)), y)

        np.testing.assert_allclose(found.models[number], direct(x, y), rtol=2e-3, atol=2e-3)
        for left in range(count):
            others = np.arange(count) != left
            missed = y[left] - x[left] @ direct(x[others], y[others])
            np.testing.assert_allclose(found.left_out[number, left], missed, rtol=5e-3, atol=5e-3)
        total = 0.0
        for column in y.T:
            gram = x @ covariance @ x.T / ridge + np.eye(count)
            variance = column @ np.linalg.solve(gram, column) / count
            total += stats.multivariate_normal(np.zeros(count), variance * gram).logpdf(column)
        evidence.append(total)
        assert not np.asarray(found.left_out[number, count:]).any()
    differences = np.asarray(found.evidence) - np.array(evidence)
    np.testing.assert_allclose(differences - differences[0], 0, atol=2e-2)


@pytest.mark.slow
def test_logistic_fits_are_stationary_and_left_out_predictions_are_close() -> None:
    x, y = rows(40, 4)
    labels = (y > 0).astype(np.float32)
    ridge, prior = 0.5, some_prior(4)
    mask = jnp.ones(40, bool)
    found = fits(jnp.asarray(x), jnp.asarray(labels), mask, prior, ridge, logistic=True)
    for number, covariance in list(enumerate(covariances(prior)))[:3]:  # those of full rank
        w = np.asarray(found.models[number, :, 0], np.float64)
        slope = x.T @ (1 / (1 + np.exp(-x @ w)) - labels[:, 0]) + ridge * np.linalg.solve(covariance, w)
        assert np.abs(slope).max() < 1e-3
    others = np.arange(40) != 7
    again = alone(jnp.asarray(x[others]), jnp.asarray(labels[others]), mask[1:], ridge, logistic=True)
    missed = labels[7, 0] - 1 / (1 + np.exp(-x[7] @ np.asarray(again.model)[:, 0]))
    assert float(found.left_out[0, 7, 0]) == pytest.approx(missed, abs=0.02)


@pytest.mark.slow
def test_the_self_check_falls_back_to_training_alone() -> None:
    """A prior for quite other directions is not used; one that fits is."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(40, 20)).astype(np.float32)
    truth = np.zeros(20)
    truth[:2] = 3.0, -2.0
    y = (x @ truth + 0.1 * generator.normal(size=40)).astype(np.float32)[:, None]
    args = (jnp.asarray(x), jnp.asarray(y), jnp.ones(40, bool))
    single = np.asarray(alone(*args, 0.05).model)
    spikes = np.zeros((2, 20), np.float32)
    spikes[0, :2], spikes[1, 15:] = 10, 10
    right, wrong = (Prior(jnp.eye(20), jnp.asarray(s)[None], jnp.array([0.1])) for s in spikes)
    helped, kept = (np.asarray(solve(*args, prior, 0.05).model) for prior in (right, wrong))
    assert np.linalg.norm(helped[:, 0] - truth) < 0.7 * np.linalg.norm(single[:, 0] - truth)
    assert np.linalg.norm(kept[:, 0] - truth) <= 1.05 * np.linalg.norm(single[:, 0] - truth)
    np.testing.assert_allclose(solve(*args, isotropic(20), 0.05).model, single, atol=1e-5)


@pytest.mark.slow
def test_least_squares_on_classes_gives_logits() -> None:
    """As they come, outputs near 0 and 1 leave a third class almost as likely as the right one."""
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.normal(size=(120, 2)), np.ones((120, 1))], axis=1).astype(np.float32)
    labels = np.argmax(x @ np.array([[3, -3, 0], [0, 0, 3], [0, 0, -1]]) + generator.gumbel(size=(120, 3)), axis=1)
    y, mask = jax.nn.one_hot(labels, 3), jnp.arange(120) < 80
    fit = alone(jnp.asarray(x), y, mask, 0.01)

    def unseen(model: jax.Array) -> float:
        return -float((y[80:] * jax.nn.log_softmax(x[80:] @ model)).sum(axis=1).mean())

    model = as_logits(fit, y, mask)
    assert unseen(model) < 0.7 * unseen(fit.model)
    np.testing.assert_array_equal(jnp.argmax(x @ model, axis=1), jnp.argmax(x @ fit.model, axis=1))
    alike = as_logits(replace(fit, left_out=fit.left_out.at[80:].set(9.0)), y, mask)
    np.testing.assert_array_equal(alike, model, err_msg="padding has a say")


def noise(size: int, deviation: float, seed: int) -> np.ndarray:
    entries = np.random.default_rng(seed).normal(size=(size, size)) * deviation
    return (entries + entries.T) / 2


def test_pure_noise_shows_nothing_and_strong_directions_are_found() -> None:
    size, deviation, clients = 20, 3.0, 400
    flat = clients / size * np.eye(size)
    low_rank = jax.jit(low_rank_prior)
    seen = [
        bool(low_rank(jnp.asarray(flat + noise(size, deviation, s), jnp.float32), deviation, clients).spikes[0].any())
        for s in range(200)
    ]
    assert sum(seen) <= 3
    signal = flat + np.diag(np.r_[[120.0, 80.0], np.zeros(size - 2)])
    found = low_rank(jnp.asarray(signal + noise(size, deviation, 1), jnp.float32), deviation, clients)
    assert (found.spikes > 0).sum(axis=1)[:3].tolist() == [2, 1, 2]
    assert np.abs(np.asarray(found.basis)[:2, :2]).max(axis=0).min() > 0.95
    assert float(found.spikes[0, 0]) == pytest.approx(120, rel=0.2)
    assert float(found.bulk[0]) == pytest.approx(20, rel=0.2)


def test_features_that_stand_out_are_found_under_either_noise() -> None:
    squares = np.full(30, 5.0, np.float32)
    squares[:4] = 80
    generator = np.random.default_rng(0)
    for laplace, draw in ((False, generator.normal), (True, generator.laplace)):
        found = group_sparse_prior(jnp.asarray(squares + 8 * draw(size=30), jnp.float32), 8.0, 320, laplace)
        assert np.flatnonzero(np.asarray(found.spikes[0]))[:4].tolist() == [0, 1, 2, 3]
        assert int((found.spikes[0] > 0).sum()) <= 6
        assert np.flatnonzero(np.asarray(found.spikes[3])).tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_candidate_priors_have_the_variance_they_say_and_begin_with_the_isotropic_one() -> None:
    bulks, spikes = spectra(some_prior(6))
    variances = [1.0] + 2 * [variance for _, variance in SHAPES]
    np.testing.assert_allclose(bulks + spikes.sum(axis=1) / 6, variances, rtol=1e-5)
    assert (float(bulks[0]), float(jnp.abs(spikes[0]).max())) == (1, 0)
    np.testing.assert_array_equal(spectra(isotropic(6))[0], 1)
    chances = np.exp(log_chances(some_prior(6)))
    split = [chances[:1], chances[1 : len(SHAPES) + 1], chances[len(SHAPES) + 1 :]]
    np.testing.assert_allclose([part.sum() for part in split], 1, rtol=1e-5)
