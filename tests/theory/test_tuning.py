"""The cost of tuning: check values, dp_accounting as a second opinion, and the distribution of the number of trials."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.privacy.mechanisms import Cost
from kinfolk.theory import tuning


@pytest.mark.parametrize(
    ("shape", "noise"), [(-0.5, 23.78), (0, 27.04), (0.5, 30.19), (1, 33.22), (2, 39.02), (5, 51.78)]
)
def test_noise_of_the_table(shape: float, noise: float) -> None:
    """Epsilon 0.25, delta 1e-5, ten trials on average; the table used dp_accounting's list of orders."""
    orders = composition.DEFAULT_ORDERS
    assert tuning.noise_for(0.25, 1e-5, mean=10, shape=shape, orders=orders) == pytest.approx(noise, abs=0.006)
    best = tuning.noise_for(0.25, 1e-5, mean=10, shape=shape)
    assert 0.97 * noise < best <= noise


@pytest.mark.parametrize(("shape", "expected"), [(tuning.POISSON, 4.33), (1.0, 4.10), (0.0, 3.52)])
def test_check_values(shape: float, expected: float) -> None:
    """DP-SGD with rate 0.01, noise 1, 1000 steps: 2.10 by Renyi orders; tuned over ten trials on average."""
    charges = [(Cost("gaussian", 1.0, 0.01), 1000)]
    found = composition.epsilon_of_the_best(charges, 1e-5, mean=10, shape=shape)
    assert found == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0, tuning.POISSON])
def test_two_implementations_agree(shape: float) -> None:
    cost = Cost("gaussian", 8.0)
    theirs = composition.epsilon_of_the_best([(cost, 3)], 1e-6, mean=7, shape=shape)
    curve = tuning.gaussian_curve(8.0, 3)
    ours = tuning.epsilon(
        tuning.selected(curve, mean=7, shape=shape, orders=composition.ORDERS), 1e-6, composition.ORDERS
    )
    assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 3.0, tuning.POISSON])
def test_drawn_numbers_have_the_declared_mean(shape: float) -> None:
    generator = np.random.default_rng(0)
    drawn = np.array([tuning.draw_trials(generator, mean=6.0, shape=shape) for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(6.0, abs=5 * drawn.std() / math.sqrt(len(drawn)))
    assert drawn.min() == (0 if shape == tuning.POISSON else 1)


def test_geometric_probabilities() -> None:
    generator = np.random.default_rng(1)
    drawn = np.array([tuning.draw_trials(generator, mean=4.0, shape=1.0) for _ in range(20_000)])
    for count in (1, 2, 3):
        assert np.mean(drawn == count) == pytest.approx(0.25 * 0.75 ** (count - 1), abs=0.015)


def test_more_trials_cost_more_and_one_is_refused() -> None:
    curve = tuning.gaussian_curve(3.0)
    epsilons = [tuning.epsilon(tuning.selected(curve, mean=mean, shape=1.0), 1e-5) for mean in (2, 5, 50)]
    assert tuning.epsilon(curve, 1e-5) < epsilons[0] < epsilons[1] < epsilons[2]
    with pytest.raises(ValueError, match="mean=1"):
        tuning.gamma_for(1.0, 0.0)


def test_delta_and_epsilon_are_inverse() -> None:
    curve = tuning.gaussian_curve(2.0, 4)
    assert tuning.delta(curve, tuning.epsilon(curve, 1e-6)) == pytest.approx(1e-6, rel=0.02)


@pytest.mark.parametrize("orders", [None, composition.ORDERS, (7.0,)])
def test_lemma_4_is_a_little_more(orders: tuning.Orders) -> None:
    """Exactly, at one order; by the best order for Gaussian noise `a^2 / 2 + a sqrt(2 log(1/delta))`, a its shift."""
    for shift, at in ((0.1, 1e-5), (1.0, 1e-2), (3.0, 1e-8)):
        curve = tuning.gaussian_curve(1 / shift)
        printed = tuning.printed_epsilon(curve, at, orders)
        if orders is None:
            by_hand = shift**2 / 2 + shift * math.sqrt(2 * math.log(1 / at))
        elif len(orders) == 1:
            by_hand = shift**2 / 2 * 7.0 + math.log(1 / at) / 6.0
        else:
            by_hand = min(shift**2 / 2 * a + math.log(1 / at) / (a - 1) for a in orders)
        assert printed == pytest.approx(by_hand, rel=1e-6)
        assert 0.5 * printed < tuning.epsilon(curve, at, orders) < printed
