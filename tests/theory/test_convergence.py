"""The bounds hold, and have the shape they should, on strongly convex problems that can be solved exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinfolk.theory.client_level import noise_on_mean
from kinfolk.theory.convergence import Descent

CLIENTS, DIMENSIONS, ROUNDS = 12, 6, 60
GENERATOR = np.random.default_rng(0)
CURVATURE = GENERATOR.uniform(0.5, 2.0, size=(CLIENTS, DIMENSIONS))
BEST = GENERATOR.normal(size=(CLIENTS, DIMENSIONS))
DESCENT = Descent(strength=3.0, smoothness=2.0, dimensions=DIMENSIONS, noise=0.05, convexity=0.5)


def envelope(shared: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """F and its gradient for quadratic losses `curvature/2 (v - best)^2`, for many shared models at once."""
    pull = strength * CURVATURE / (strength + CURVATURE)
    away = shared[:, None, :] - BEST
    return 0.5 * (pull * away**2).sum(axis=-1).mean(axis=-1), (pull * away).mean(axis=1)


def trained(descent: Descent, runs: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Mean gap to the best value, and mean squared gradient, after every round: exact local solutions, then noise."""
    generator = np.random.default_rng(1)
    pull = descent.strength * CURVATURE / (descent.strength + CURVATURE)
    least = envelope(((pull * BEST).sum(axis=0) / pull.sum(axis=0))[None], descent.strength)[0][0]
    shared, gaps, slopes = np.full((runs, DIMENSIONS), 2.0), [], []
    for _ in range(ROUNDS + 1):
        value, slope = envelope(shared, descent.strength)
        gaps.append(value.mean() - least)
        slopes.append((slope**2).sum(axis=-1).mean())
        own = (CURVATURE * BEST + descent.strength * shared[:, None, :]) / (CURVATURE + descent.strength)
        shared = own.mean(axis=1) + descent.noise * generator.normal(size=shared.shape)
    return np.array(gaps), np.array(slopes)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_strongly_convex_bound_holds_in_every_round(noise: float) -> None:
    descent = replace(DESCENT, noise=noise)
    gaps, _ = trained(descent)
    bounds = np.array([descent.gap_after(gaps[0], t) for t in range(ROUNDS + 1)])
    assert (gaps <= 1.02 * bounds + 1e-9).all()
    if noise:
        assert gaps[-1] > 0.1 * descent.floor  # not an empty bound: within ten times


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_gradient_bound_holds(noise: float) -> None:
    descent = replace(DESCENT, noise=noise)
    gaps, slopes = trained(descent)
    for rounds in (1, 5, 20, ROUNDS):
        assert slopes[:rounds].mean() <= 1.02 * descent.mean_squared_gradient(gaps[0], rounds)


def test_decay_is_geometric_and_floor_goes_with_the_noise_squared() -> None:
    gaps, _ = trained(replace(DESCENT, noise=0.0))
    rates = gaps[6:30] / gaps[5:29]
    assert (rates <= DESCENT.contraction + 1e-9).all()
    assert rates.std() < 0.05
    floors = [trained(replace(DESCENT, noise=noise))[0][-20:].mean() for noise in (0.05, 0.1)]
    assert floors[1] / floors[0] == pytest.approx(4.0, rel=0.1)


def test_floor_falls_with_clients_and_epsilon() -> None:
    """With the paper's noise the floor is proportional to d T / (epsilon m)^2."""

    def floor(epsilon: float, clients: int) -> float:
        noise = noise_on_mean(epsilon, 1e-5, clip=1.0, rounds=50, clients=clients)
        return replace(DESCENT, noise=noise).floor

    assert floor(1.0, 100) / floor(2.0, 100) == pytest.approx(4.0)
    assert floor(1.0, 100) / floor(1.0, 300) == pytest.approx(9.0)
    with pytest.raises(ValueError, match="epsilon=50"):
        floor(50.0, 100)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="convexity=0"):
        replace(DESCENT, convexity=0.0).gap_after(1.0, 3)
    with pytest.raises(ValueError, match="strength=-1"):
        replace(DESCENT, strength=-1.0)
