"""Theorem 1, equation 7 and proposition 3 of Liang et al.: what Wishart noise gives away, composition, groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kinfolk.theory import covariance_noise as theory
from kinfolk.theory.client_level import gaussian_delta


def test_sizes_of_both_noises() -> None:
    generator, size, deviation = np.random.default_rng(0), 60, 0.7
    symmetric = deviation * generator.normal(size=(20, size, size))
    symmetric = (symmetric + symmetric.transpose(0, 2, 1)) / 2
    symmetric[:, range(size), range(size)] = deviation * generator.normal(size=(20, size))
    largest = np.linalg.eigvalsh(symmetric)[:, -1].mean()
    assert largest == pytest.approx(theory.gaussian_spectral_norm(size, deviation), rel=0.1)
    scale = theory.published_scale(1.0, 0.5)
    normal = math.sqrt(scale) * generator.normal(size=(20, size + 1, size))
    wishart = np.linalg.eigvalsh(normal.transpose(0, 2, 1) @ normal)[:, -1].mean()
    assert wishart == pytest.approx(theory.wishart_spectral_norm(size, scale), rel=0.1)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_theorem_1_is_wrong(epsilon: float) -> None:
    """Without the client (a model along the first axis, norm K): how often no noise could give that with it."""
    generator = np.random.default_rng(1)
    normal = math.sqrt(theory.published_scale(1.0, epsilon)) * generator.normal(size=(20_000, 5, 4))
    noise = normal.transpose(0, 2, 1) @ normal
    noise[:, 0, 0] -= 1.0
    impossible = np.linalg.eigvalsh(noise)[:, 0] < 0
    assert impossible.mean() == pytest.approx(theory.published_delta(epsilon), abs=0.012)
    assert theory.published_delta([epsilon, 0.2]) == pytest.approx(1 - math.exp(-epsilon - 0.2))
    assert theory.published_delta(epsilon, printed_clip=2.0) == pytest.approx(theory.published_delta(epsilon))


@pytest.mark.parametrize("clip", [0.7, 3.0])
def test_the_scale_as_it_is_printed(clip: float) -> None:
    """Noise of scale 2K where its definition has K^2: `2K / (2 epsilon)`, for a model of norm K."""
    epsilon, generator = 0.5, np.random.default_rng(1)
    normal = math.sqrt(2 * clip / (2 * epsilon)) * generator.normal(size=(20_000, 5, 4))
    noise = normal.transpose(0, 2, 1) @ normal
    noise[:, 0, 0] -= clip**2
    impossible = (np.linalg.eigvalsh(noise)[:, 0] < 0).mean()
    assert impossible == pytest.approx(theory.published_delta(epsilon, printed_clip=clip), abs=0.012)
    assert abs(impossible - theory.published_delta(epsilon)) > 0.05


def given_away(change: np.ndarray, epsilon: float, runs: int) -> float:
    """How often the published noise takes a value that it cannot have once `change` is part of what is released."""
    size, generator = len(change), np.random.default_rng(2)
    normal = math.sqrt(theory.published_scale(1.0, epsilon)) * generator.normal(size=(runs, size + 1, size))
    return float((np.linalg.eigvalsh(normal.transpose(0, 2, 1) @ normal - change)[:, 0] < 0).mean())


@pytest.mark.parametrize(("clients", "share"), [(8, 0.21), (160, 0.63), (320, 0.76)])
def test_tasks_by_tasks_is_worse(clients: int, share: float) -> None:
    """`W^T W`, all models in one direction, epsilon 0.1: in so many runs the client is given away; 0.095 for `W W^T`.

    What it changes has two directions, and along two of them the inverse noise is as if there were no others.
    """
    change = theory.tasks_change(np.ones((clients, 1)), 0)
    assert np.linalg.norm(change) == pytest.approx(theory.tasks_sensitivity(clients, 1.0))
    values = np.linalg.eigvalsh(change)
    assert np.count_nonzero(np.abs(values) > 1e-9) == 2
    assert values[0] < -2 < 2 < values[-1]
    assert given_away(np.diag(values[[0, -1]]), 0.1, 40_000) == pytest.approx(share, abs=0.01)
    assert share > 2 * theory.published_delta(0.1)
    if clients == 8:
        assert given_away(change, 0.1, 8000) == pytest.approx(share, abs=0.02)


def test_tasks_sensitivity_is_the_largest() -> None:
    generator = np.random.default_rng(3)
    for _ in range(200):
        models = generator.normal(size=(6, 3))
        models /= np.maximum(1, np.linalg.norm(models, axis=1, keepdims=True))
        assert np.linalg.norm(theory.tasks_change(models, 2)) <= theory.tasks_sensitivity(6, 1.0)


def test_the_tasks_matrix_is_drowned_where_the_features_matrix_is_seen() -> None:
    """320 clients with models of rank 5, 30 features, sound noise at epsilon 1: how much of the directions is seen."""
    generator, noise = np.random.default_rng(5), 2.75
    models = generator.normal(size=(320, 5)) @ generator.normal(size=(5, 30))
    models /= np.linalg.norm(models, axis=1, keepdims=True)

    def seen(matrix: np.ndarray, sensitivity: float) -> float:
        true = np.linalg.eigh(matrix)[1][:, -5:]
        entries = noise * sensitivity * generator.normal(size=matrix.shape)
        found = np.linalg.eigh(matrix + (entries + entries.T) / 2)[1][:, -5:]
        return float(np.square(true.T @ found).sum() / 5)

    assert seen(models.T @ models, 1.0) > 0.9
    assert seen(models @ models.T, theory.tasks_sensitivity(320, 1.0)) < 0.1


def test_composition() -> None:
    """Below the plain sum for many small releases, the plain sum for one."""
    assert theory.published_epsilon(np.array([0.3]), 1e-5) == pytest.approx(0.3)
    many = np.full(400, 0.01)
    assert theory.published_epsilon(many, 1e-3) < 0.4 * many.sum()
    # randomised responses, the worst epsilon_t-private releases: their exact loss is within the bound
    kept = math.exp(0.01) / (1 + math.exp(0.01))
    generator = np.random.default_rng(4)
    loss = 0.01 * (2 * generator.binomial(400, kept, size=200_000) - 400)
    bound = theory.published_epsilon(many, 1e-3)
    assert np.maximum(0, 1 - np.exp(bound - loss)).mean() <= 1e-3


def test_composition_symbol_for_symbol() -> None:
    """Each of the three of equation 7 where it is the least; with delta 0 there is only the sum."""
    for epsilons, delta, which in (([0.3, 0.2], 1e-5, 0), ([0.1] * 90, 0.2, 1), ([0.1] * 90, 1e-5, 2)):
        drift = sum((math.exp(e) - 1) * e / (math.exp(e) + 1) for e in epsilons)
        squares = sum(e**2 for e in epsilons)
        three = [
            sum(epsilons),
            drift + math.sqrt(2 * squares * math.log(1 / delta)),
            drift + math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / delta)),
        ]
        assert three.index(min(three)) == which
        assert theory.published_epsilon(epsilons, delta) == pytest.approx(three[which])
        assert theory.published_epsilon(epsilons, 0.0) == pytest.approx(sum(epsilons))


@pytest.mark.parametrize("size", [1, 5, 30])
def test_proposition_3(size: int) -> None:
    epsilon, shift = 0.2, 0.1
    delta = gaussian_delta(shift, epsilon)
    exact = theory.group_delta(size, epsilon, delta)
    assert exact <= min(1.0, size * math.exp(size * epsilon) * delta)
    assert gaussian_delta(size * shift, size * epsilon) <= exact * (1 + 1e-9)
    assert theory.group_delta(size, 0.0, 1e-3) == pytest.approx(size * 1e-3)


def test_what_a_release_shows() -> None:
    assert theory.subspace_error(30, 320, 5, 2.75) < 0.05 < theory.subspace_error(30, 320, 5, 19.4)
    assert 0.1 < theory.smallest_epsilon(30, 320, 5, 5.4e-4) < 0.5
