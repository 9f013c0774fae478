"""A silo's part before its masks: its norm in integers, and the law of its noise and of sums of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.exact_samplers import discrete_gaussian
from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure.contribution import as_numbers, bounded, noisy, on_grid
from tests.secure.worlds import agreement_of


def seeded(seed: int):
    return np.random.default_rng(seed).bytes


def law(scale: float, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """The discrete Gaussian, computed here anew."""
    cells = np.arange(-reach, reach + 1)
    weights = np.exp(-np.square(cells / scale) / 2)
    return cells, weights / weights.sum()


def p_value(draws: np.ndarray, cells: np.ndarray, chances: np.ndarray) -> float:
    """Chi-square, with cells of fewer than ten expected put together."""
    order = np.argsort(chances)
    groups = np.minimum(np.cumsum(chances[order] * draws.size) // 10, 1e9)
    of = dict(zip(cells[order].tolist(), groups.tolist(), strict=True))
    wanted: dict[float, float] = {}
    for cell, chance in zip(cells.tolist(), chances.tolist(), strict=True):
        wanted[of[cell]] = wanted.get(of[cell], 0.0) + chance
    found = dict.fromkeys(wanted, 0)
    for draw, count in zip(*np.unique(draws, return_counts=True), strict=True):
        found[of[int(draw)]] += int(count)
    total = sum(wanted.values())
    return float(stats.chisquare(list(found.values()), [draws.size * w / total for w in wanted.values()]).pvalue)


@pytest.mark.parametrize("scale", [0.8, 2.5, 11.0])
def test_noise_is_a_discrete_gaussian(scale: float) -> None:
    draws = discrete_gaussian(scale, 20_000, seeded(1))
    assert p_value(draws, *law(scale, 40 * math.ceil(scale))) > 1e-5


def test_sums_of_shares_are_one_discrete_gaussian() -> None:
    """Which is what simulation draws at once, and what is accounted for."""
    parts, scale = 4, 3.0
    draws = discrete_gaussian(scale, (parts, 25_000), seeded(2)).sum(axis=0)
    cells, chances = law(math.sqrt(parts) * scale, 150)
    assert p_value(draws, cells, chances) > 1e-5
    narrower = discrete_gaussian(0.93 * scale, (parts, 25_000), seeded(2)).sum(axis=0)
    assert p_value(narrower, cells, chances) < 1e-5, "a test that cannot fail is none"


def test_tails_of_wide_noise_are_as_heavy_as_they_must_be() -> None:
    scale, count = 20_000.0, 400_000
    draws = np.abs(discrete_gaussian(scale, count, seeded(3)) / scale)
    for at in (1.0, 2.0, 3.0, 4.0):
        chance = 2 * float(stats.norm.sf(at))
        found = int((draws > at).sum())
        assert stats.binomtest(found, count, chance).pvalue > 1e-5
    assert abs(np.square(draws).mean() - 1) < 6 * math.sqrt(2 / count)


def test_rounding_cannot_make_a_message_longer() -> None:
    """Each of 40 000 equal numbers rounds up: only the second clip, in integers, keeps the norm."""
    steps = on_grid(np.full(40_000, 1 / 200), 1.0)
    assert np.square(steps).sum() > GRID_STEPS**2
    assert 0.99 * GRID_STEPS**2 < np.square(bounded(steps)).sum() <= GRID_STEPS**2


@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_bounded(seed: int) -> None:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 400))
    message = generator.normal(size=size) * 10.0 ** generator.integers(-8, 9)
    steps = bounded(on_grid(message, float(generator.uniform(0.1, 10))))
    assert np.square(steps).sum() <= GRID_STEPS**2


def test_a_short_message_keeps_its_numbers() -> None:
    message = np.array([0.25, -0.5, 0.0])
    assert bounded(on_grid(message, 1.0)).tolist() == [GRID_STEPS // 4, -GRID_STEPS // 2, 0]
    assert as_numbers(bounded(on_grid(message, 1.0)).astype(np.uint32), 1.0) == pytest.approx(message)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_as_zero(bad: float) -> None:
    assert not on_grid(np.array([1.0, bad]), 1.0).any()


def test_huge_integers_do_not_overflow() -> None:
    steps = bounded(np.array([2**62, -(2**62), 2**31]))
    assert np.square(steps).sum() <= GRID_STEPS**2


def test_a_message_of_another_shape_is_refused() -> None:
    with pytest.raises(SecureError, match="length=7"):
        noisy(np.zeros(8), agreement_of())


def test_noise_is_sized_for_the_fewest_honest_survivors() -> None:
    """Of 5 silos 4 survive, 1 of them colludes: three shares must have the whole variance."""
    terms = agreement_of(length=60_000)
    noise = [noisy(np.zeros(60_000), terms, seeded(k)).astype(np.uint32).view(np.int32) for k in range(3)]
    assert np.sum(noise, axis=0).std() == pytest.approx(terms.deviation, rel=0.012)
