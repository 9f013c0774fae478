"""Figure 7 of Liu et al.: mean estimation, error against how much clients differ, with the free estimator added."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kinfolk.theory import mean_estimation as theory
from kinfolk.theory.tuning import noise_for

CLIENTS, EXAMPLES, SIGMA, EPSILON, DELTA = 20, 200, 0.4, 0.25, 1e-5
TRIALS, SHAPE = 10, 0.0


def free_error(problem: theory.Problem, runs: int = 4000, seed: int = 0) -> float:
    """Mean squared error when tau^2 is estimated from the released means themselves (DerSimonian-Laird): simulated."""
    generator = np.random.default_rng(seed)
    truth = problem.tau * generator.normal(size=(runs, problem.clients))
    estimates = truth + math.sqrt(problem.variance) * generator.normal(size=truth.shape)
    variances = np.full(problem.clients, problem.variance)
    found = [theory.shrunk(row, variances, theory.der_simonian_laird(row, variances)) for row in estimates]
    return float(np.mean((np.array(found) - truth) ** 2))


def mean_estimation() -> list[dict[str, Any]]:
    """One row per tau: errors of training alone, averaging, the best strength, tuning for it, and the free one."""
    noise = noise_for(EPSILON, DELTA)
    tuned_noise = noise_for(EPSILON, DELTA, mean=TRIALS, shape=SHAPE)
    rows = []
    for tau in (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5):
        problem = theory.Problem(CLIENTS, EXAMPLES, SIGMA, tau, noise)
        tuned = theory.Problem(CLIENTS, EXAMPLES, SIGMA, tau, tuned_noise)
        rows.append(
            {
                "tau": tau,
                "local": problem.error(0.0),
                "averaging": problem.error(math.inf),
                "best": problem.best_error,
                "tuned": tuned.best_error,
                "free": free_error(problem),
                "free_ratio": free_error(problem) / problem.best_error,
                "tuned_ratio": tuned.best_error / problem.best_error,
            }
        )
    return rows
