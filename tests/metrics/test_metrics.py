"""Metrics of tables: right without noise, and intervals that hold the truth, small; the study has the whole table."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from kinfolk.metrics import misses, scores
from kinfolk.metrics.intervals import measured
from kinfolk.metrics.noisy_table import NoisyTable, plausible

DISTANCE = 1.19
"""Between scores of the two outcomes, in standard deviations: an AUC of 0.8."""


def rows(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Log odds that are right, and what came out."""
    yes = generator.random(count) < 0.5
    return np.where(yes, 1, -1) * DISTANCE**2 / 2 + DISTANCE * generator.standard_normal(count), yes.astype(int)


def table_of(score: np.ndarray, yes: np.ndarray, ends: np.ndarray) -> np.ndarray:
    table = np.zeros((len(ends) + 1, 2))
    np.add.at(table, (np.searchsorted(ends, score, side="right"), yes), 1)
    return table


def test_metrics_of_a_large_table_without_noise_are_those_of_its_rows() -> None:
    score, yes = rows(np.random.default_rng(0), 200_000)
    ends = scores.edges(16)
    found = {
        one.name: one for one in measured(NoisyTable(table_of(score, yes, ends), len(yes), 0.0), scores.measures(ends))
    }
    chance = 1 / (1 + np.exp(-score))
    assert found["AUC"].value == pytest.approx(norm.cdf(DISTANCE / 2**0.5), abs=0.003)
    assert found["accuracy"].value == pytest.approx(((score >= 0) == yes).mean(), abs=1e-3)
    assert found["Brier score"].value == pytest.approx(((yes - chance) ** 2).mean(), abs=0.002)
    assert found["calibration slope"].value == pytest.approx(1, abs=0.06)
    assert found["calibration intercept"].value == pytest.approx(0, abs=0.02)
    assert found["sensitivity"].value == pytest.approx((score[yes == 1] >= 0).mean(), abs=1e-3)


def test_misses_give_the_mean_absolute_error_exactly_and_the_root_nearly() -> None:
    miss = np.random.default_rng(0).normal(0.02, 0.2, 50_000).clip(-2, 2)
    at = misses.nodes(2.0)
    right = np.searchsorted(at, miss, side="right").clip(1, len(at) - 1)
    share = (miss - at[right - 1]) / (at[right] - at[right - 1])
    table = np.bincount(right, share, len(at)) + np.bincount(right - 1, 1 - share, len(at))
    found = {name: one(table[None], scores.GUESSES[0])[0] for name, one in misses.measures_of_numbers(at, 10).items()}
    assert found["MAE"] == pytest.approx(10 * np.abs(miss).mean(), rel=1e-9)
    assert found["RMSE"] == pytest.approx(10 * np.sqrt((miss**2).mean()), rel=0.03)
    assert found["mean of outcome minus prediction"] == pytest.approx(10 * miss.mean(), rel=1e-6)


def test_a_plausible_table_counts_everybody_and_nobody_twice() -> None:
    generator = np.random.default_rng(1)
    cells = generator.normal(3, 10, (50, 12))
    found = plausible(cells, 40.0)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 40)
    again = plausible(found, 40.0)
    np.testing.assert_allclose(again, found, atol=1e-9)
    nearer = plausible(cells + 5, 40.0)  # the same noise everywhere is no noise
    np.testing.assert_allclose(nearer, found, atol=1e-9)


def test_the_error_of_an_auc_is_within_the_aim_and_intervals_hold() -> None:
    """Root mean square error by noise and bins: .010 at 1000 rows and epsilon 0.5. The study has 1000 trials."""
    generator, ends = np.random.default_rng(2), scores.edges(scores.bins_for(1000, 0.5))
    auc = {"AUC": scores.measures(ends)["AUC"]}
    off, held = [], []
    for _ in range(60):
        score, yes = rows(generator, 1000)
        ranks = np.argsort(np.argsort(score))[yes == 1]
        exact = (ranks.sum() - len(ranks) * (len(ranks) - 1) / 2) / (len(ranks) * (1000 - len(ranks)))
        table = table_of(score, yes, ends)
        (found,) = measured(NoisyTable(table + generator.laplace(0, 2, table.shape), 1000, 2.0), auc)
        off.append(found.value - exact)
        held.append(found.low <= norm.cdf(DISTANCE / 2**0.5) <= found.high)
    assert np.sqrt(np.mean(np.square(off))) < 0.010
    assert np.mean(held) >= 0.9


def test_more_noise_makes_wider_intervals_and_fewer_bins() -> None:
    score, yes = rows(np.random.default_rng(3), 1000)
    widths = []
    for epsilon in (0.2, 2.0):
        ends = scores.edges(scores.bins_for(1000, epsilon))
        noise = np.random.default_rng(4).laplace(0, 1 / epsilon, (len(ends) + 1, 2))
        table = NoisyTable(table_of(score, yes, ends) + noise, 1000, 1 / epsilon)
        (found,) = measured(table, {"AUC": scores.measures(ends)["AUC"]})
        widths.append(found.high - found.low)
    assert widths[0] > widths[1]
    assert scores.bins_for(1000, 0.1) < scores.bins_for(100_000, 1)
    assert 0.0 in scores.edges(8, centre=-1.7)


def test_a_slope_that_bins_hardly_tell_has_an_interval_that_says_so() -> None:
    """Scores ten times too near to 0 lie in two bins on each side; forty times too near, in one."""
    generator, ends = np.random.default_rng(3), scores.edges(8)
    slope, held = {"calibration slope": scores.measures(ends)["calibration slope"]}, 0
    for _ in range(20):
        score, yes = rows(generator, 300)
        cells = table_of(0.1 * score, yes, ends) + generator.laplace(0, 1, (len(ends) + 1, 2))
        (found,) = measured(NoisyTable(cells, 300, 1.0), slope)
        held += found.low <= 10 <= found.high
    assert held >= 18
    score, yes = rows(generator, 300)
    (found,) = measured(NoisyTable(table_of(0.025 * score, yes, ends), 300, 1.0), slope)
    assert found.high - found.low > 30


def test_noise_in_shares_is_drawn_again_as_normal_noise() -> None:
    table = NoisyTable(np.full(4, 1e6), 4e6, 50.0, parties=4, law="normal")
    noise = table._noise(np.random.default_rng(0), (20_000,))
    assert noise.std() == pytest.approx(100, rel=0.03)
    assert (np.abs(noise) > 300).mean() == pytest.approx(0.0027, abs=0.0012)
    assert NoisyTable(np.zeros((2, 3)), 10, 2.0, law="normal").part(0)[1] == pytest.approx(2 * 3**0.5)
