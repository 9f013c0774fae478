"""The laws of one draw, beside what they are by integration of densities and beside figures computed elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from kinfolk.accounting import composition, pairs
from kinfolk.privacy.release import Cost

DELTA = 1e-5


def gaussian(z: float = 1.0, rate: float = 1.0, **more: object) -> Cost:
    return Cost("gaussian", z, rate, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (gaussian(rate=0.1), 7.05),
        (gaussian(rate=0.1, relation="replace_one"), 10.52),
        (gaussian(rate=0.1, group=0, parts=1), 10.52),
        (gaussian(rate=0.1, group=2), 16.2),
        (gaussian(rate=0.1, group=1, parts=1), composition.epsilon([(gaussian(1 / 3), 100)], DELTA)),
        (gaussian(rate=0.1, group=2, relation="replace_one"), composition.epsilon([(gaussian(1 / 4), 100)], DELTA)),
    ],
)
def test_hundred_sampled_uses(cost: Cost, expected: float) -> None:
    assert composition.epsilon([(cost, 100)], DELTA) == pytest.approx(expected, rel=2e-3)


def test_each_line_has_its_own_distance() -> None:
    paid = [(gaussian(z=4.0), 1), (gaussian(z=4.0, group=10), 1)]
    total = composition.epsilon([(gaussian(4 / math.sqrt(101)), 1)], DELTA)
    assert composition.epsilon(paid, DELTA) == pytest.approx(total, rel=1e-6)


GRID = np.linspace(-40, 60, 200_001)


def density(cost: Cost, side: int) -> np.ndarray:
    """The two laws on the grid, written out once more."""
    z, q = cost.noise_multiplier, cost.rate
    if pairs.replaces(cost):
        return (1 - q) * normal(0, z) + q * normal(side, z)
    if side < 0:
        return normal(0, z)
    chances = stats.binom.pmf(np.arange(cost.group + 1), cost.group, q)
    return sum((chance * normal(n, z) for n, chance in enumerate(chances)), np.zeros_like(GRID))


def normal(place: float, z: float) -> np.ndarray:
    return np.exp(-(((GRID - place) / z) ** 2) / 2) / (z * math.sqrt(2 * math.pi))


def integral(values: np.ndarray) -> float:
    return float(values.sum() * (GRID[1] - GRID[0]))


SAMPLED = [gaussian(1.3, 0.2, group=3), gaussian(0.8, 0.05, group=0, parts=1), gaussian(2.0, 0.5, group=1)]


@pytest.mark.parametrize("order", [1.5, 3.0, 6.0])
@pytest.mark.parametrize("cost", SAMPLED)
def test_renyi_is_that_of_the_pair(cost: Cost, order: float) -> None:
    def of(side: int) -> float:
        first, second = density(cost, side), density(cost, -side)
        there = (first > 0) & (second > 0)
        logs = order * np.log(first[there]) + (1 - order) * np.log(second[there])
        return math.log(np.exp(logs).sum() * (GRID[1] - GRID[0])) / (order - 1)

    assert pairs.renyi(cost, order) == pytest.approx(max(of(1), of(-1)), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("cost", SAMPLED)
def test_loss_distribution_is_no_less_than_the_pair(cost: Cost) -> None:
    law = pairs.loss(cost, 1e-3)
    for epsilon in (0.1, 0.5, 1.0):
        stated = law.get_delta_for_epsilon(epsilon)
        sides = (integral(np.maximum(0, density(cost, s) - math.exp(epsilon) * density(cost, -s))) for s in (1, -1))
        true = max(sides)
        assert true * (1 - 1e-6) <= stated <= true * 1.01


def test_odometer_and_loss_distribution_refuse_the_same_and_agree() -> None:
    for cost in SAMPLED:
        tight = composition.epsilon([(cost, 10)], DELTA)
        assert tight < composition.epsilon([(cost, 10)], DELTA, adaptive=True) < 2 * tight + 1


def test_overflow_counts_for_every_unit_that_is_met() -> None:
    alone, group = (gaussian(2.0, 0.1, delta=4e-6, group=n) for n in (1, 3))
    assert math.isfinite(composition.epsilon([(alone, 1)], DELTA))
    assert math.isinf(composition.epsilon([(group, 1)], DELTA))


@pytest.mark.slow
def test_seen_participation_is_never_amplified() -> None:
    sampled, laplace = gaussian(1.0, 0.1), Cost("laplace", 50.0)
    seen = composition.epsilon_if_coins_are_seen([(sampled, 10), (laplace, 1)], DELTA)
    assert seen >= composition.epsilon([(gaussian(1.0), 10), (laplace, 1)], DELTA) - 1e-9
    several = composition.epsilon_if_coins_are_seen([(sampled, 50), (gaussian(1.0, 0.2, group=2), 50)], DELTA)
    assert several == pytest.approx(composition.epsilon([(gaussian(1.0), 50), (gaussian(0.5), 50)], DELTA))
    over_runs = composition.epsilon_if_coins_are_seen([(sampled, 100)], DELTA, adaptive=True)
    assert over_runs >= composition.epsilon([(sampled, 100)], DELTA, adaptive=True)
