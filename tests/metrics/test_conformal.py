"""Quantiles that hold: by simulation, plain and from noisy tables; the bound of the noise is one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kinfolk.metrics import conformal

EDGES = np.asarray(conformal.NUMBERS)
TRIALS = 400


def scores(generator: np.random.Generator, count: int) -> np.ndarray:
    return np.abs(generator.normal(0, 0.1, count))


def table_of(known: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(EDGES, known, side="left"), minlength=len(EDGES) + 1).astype(float)


@pytest.mark.parametrize(("count", "miss"), [(19, 0.1), (60, 0.2)])
def test_a_new_row_is_within_the_quantile_as_often_as_was_asked_for(count: int, miss: float) -> None:
    generator = np.random.default_rng(0)
    held = [np.mean(scores(generator, 50) <= conformal.quantile(scores(generator, count), miss)) for _ in range(TRIALS)]
    error = np.std(held) / TRIALS**0.5
    assert 1 - miss - 2 * error <= np.mean(held) <= 1 - miss + 1 / (count + 1) + 2 * error


def test_too_few_rows_hold_everything() -> None:
    assert conformal.quantile(np.zeros(8), 0.1) == math.inf
    assert conformal.quantile(np.zeros(9), 0.1) == 0


@pytest.mark.parametrize(("draws", "beta"), [(1, 0.01), (5, 0.001), (40, 0.05)])
def test_noise_stays_below_its_bound_and_near_it(draws: int, beta: float) -> None:
    total = np.random.default_rng(1).laplace(0, 2.0, (200_000, draws)).sum(axis=1)
    bound = conformal.noise_bound(2.0, draws, beta)
    assert np.mean(total > bound) <= beta
    assert bound < 2 * np.quantile(total, 1 - beta) + 4
    assert conformal.noise_bound(2.0, 0, beta) == 0


@pytest.mark.parametrize(("count", "parties", "miss"), [(300, 1, 0.1), (2000, 20, 0.1), (150, 1, 0.2)])
def test_a_private_quantile_holds_at_least_as_often(count: int, parties: int, miss: float) -> None:
    generator = np.random.default_rng(2)
    held, finite = [], 0
    for _ in range(TRIALS):
        cells = table_of(scores(generator, count)) + generator.laplace(0, 1.0, (parties, len(EDGES) + 1)).sum(axis=0)
        reach = conformal.private_quantile(cells, EDGES, count, scale=1.0, parties=parties, miss=miss)
        held.append(np.mean(scores(generator, 50) <= reach))
        finite += math.isfinite(reach)
    assert np.mean(held) >= 1 - miss - 2 * np.std(held) / TRIALS**0.5
    assert finite > 0.9 * TRIALS, "it tells something"


def test_without_the_bound_a_private_quantile_would_fail() -> None:
    """The planted bug: noise is not allowed for. Few rows and much noise show it."""
    generator, held = np.random.default_rng(3), []
    for _ in range(TRIALS):
        cells = table_of(scores(generator, 40)) + generator.laplace(0, 4.0, len(EDGES) + 1)
        reach = conformal.private_quantile(cells, EDGES, 40, scale=0.0, parties=1, miss=0.1)
        held.append(np.mean(scores(generator, 50) <= reach))
    assert np.mean(held) < 0.9 - 2 * np.std(held) / TRIALS**0.5
