"""Algorithm 1 as the journal states it: its formal theorems, symbol for symbol, where they hold and where not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kinfolk.theory.increments import Printed, any_gradients
from tests.theory.test_increments import BEST, CLIENTS, CURVATURE, DIMENSIONS, middle, objective, slope


def test_the_journals_theorem_6_is_equation_29() -> None:
    """Symbol for symbol; and a factor m is between it and equation 31, with theorem 2's sigma and its T put in."""
    printed = Printed(1.5, 2.0, rate=0.5, dimensions=4, noise=0.3)
    lam, smooth, p, d, sigma, m, steps, rounds = 1.5, 2.0, 0.5, 4, 0.3, 7, 5, 10
    by_hand = 4 * (smooth + lam + lam / p**2) + 2 * lam / (steps * (smooth * p**2 + lam * p**2 + 2 * lam))
    by_hand = by_hand * 6.0 / rounds + 3 * (smooth + lam + lam / p**2) * (1.0 + 2.5) / rounds
    by_hand += 3 * (smooth * d * lam + d * lam**2 + d * lam**2 / p**2) / (m * steps) * sigma**2
    found = printed.journal_mean_squared_gradient(6.0, [1.0, 2.5], steps=steps, clients=m, factor=3.0)
    assert found == pytest.approx(by_hand)
    clip, epsilon, log = 0.7, 0.5, 11.0
    sigma = clip * math.sqrt(m / (lam * d * clip**2) * log) / (epsilon * m)
    noisy = replace(printed, noise=sigma)
    noise = noisy.journal_mean_squared_gradient(0.0, [0.0], steps=steps, clients=m, factor=1.0)
    equation_31 = (smooth + lam + lam / p**2) / (m * steps) * log / epsilon**2
    assert noise * m == pytest.approx(equation_31)
    longer = noisy.mean_squared_gradient(0.0, [0.0], factor=1.0)
    assert longer == pytest.approx(equation_31 * steps), "the longer text's equations 8 and 10 agree"


def test_the_journals_theorem_6_is_empty_for_one_local_step_and_not_for_five() -> None:
    """For one it is above what any models have. For five, models at the optimum at communications only pass it."""
    for strength in (0.01, 0.3, 1.0, 30.0):
        for rate in (0.05, 0.5, 1.0):
            printed = Printed(strength, 1.0, rate=rate)
            for gap, largest in ((1.0, [0.0]), (0.0, [1.0]), (2.0, [0.5, 3.0])):
                bound = printed.journal_mean_squared_gradient(gap, largest, steps=1, clients=9, factor=2.0)
                assert bound >= any_gradients(1.0, strength, gap, largest)
    one = Printed(1.0, 1.0)
    models = np.where(np.arange(20) % 5 == 0, 0.0, 10.0)  # losses v^2/2, equal models: communications at 0, 5, 10, 15
    values, slopes = models**2 / 2, models**2
    claims = [
        one.journal_mean_squared_gradient(
            float(values[0]), list(np.append(values, 0.0)[steps::steps]), steps=steps, clients=9, factor=2.0
        )
        for steps in (1, 5)
    ]
    assert claims[0] >= slopes.mean() > 50
    assert claims[1] == 0


@pytest.mark.parametrize(("strength", "noise"), [(1.5, 0.0), (1.5, 0.3), (0.1, 0.3), (20.0, 0.05)])
def test_the_journals_theorem_6_holds_with_everybody(strength: float, noise: float) -> None:
    """Five local steps a round, its own step size, 2 for its O, and B alone: its noise part left out."""
    printed, generator = Printed(strength, 2.0), np.random.default_rng(4)
    models, shared = np.full((CLIENTS, DIMENSIONS), 2.0), np.full((1, DIMENSIONS), 2.0)
    gap, squares, largest = objective(models, shared, strength).mean(), [], []
    for _ in range(12):
        before = models
        for _ in range(5):
            now = slope(models, shared, strength)
            squares.append((now**2).sum(axis=-1).mean())
            models = models - printed.first_step(journal=True) * now
        shared = shared + middle(models - before) + noise * generator.normal(size=shared.shape)
        largest.append(float(objective(models, shared, strength).max()))
        claim = printed.journal_mean_squared_gradient(float(gap), largest, steps=5, clients=CLIENTS, factor=2.0)
        assert np.mean(squares) <= claim


def test_the_journals_theorem_6_is_wrong_with_cohorts_and_many_local_steps() -> None:
    """Half of ten equal clients drawn, losses v^2/2, start at 1: the others keep a gradient of 1 for the round."""
    printed, claims = Printed(1.0, 1.0, rate=0.5), []
    assert printed.stable(printed.first_step(journal=True))
    for steps in (1, 10, 1000, 100_000):
        drawn = (
            0.5 + 0.5 * (1 - 2 * printed.first_step(journal=True)) ** steps
        )  # it goes to 1/2, where both slopes meet
        shared = drawn  # 1 and the mean of the increments of those drawn
        largest = max(drawn**2 / 2 + (drawn - shared) ** 2 / 2, 1 / 2 + (1 - shared) ** 2 / 2)
        claims.append(
            printed.journal_mean_squared_gradient(0.5, [largest], steps=steps, clients=10, factor=100.0) / 0.5
        )
    assert claims[0] > claims[1] > 1 > claims[2] > 50 * claims[3], "half of the clients have a mean of 1"


@pytest.mark.parametrize("factor", [1.0, 1e3, 1e6])
def test_the_journals_informal_theorem_3_is_wrong_for_weak_pulls(factor: float) -> None:
    """Whatever is in O: equal clients with losses v^2/2 that start at 1 have a gradient of 1 in the first step."""
    rounds, strength = 10, 1e-3 / factor
    printed, models, squares = Printed(strength, 1.0), 1.0, []
    for _ in range(rounds):  # the shared model is their mean, so that nothing pulls
        squares.append(models**2)
        models -= printed.first_step(journal=True) * models
    claim = printed.journal_informal_squared_gradient(rounds, steps=1, largest=1 / 2, factor=factor)
    assert claim < 0.01 < 0.1 <= np.mean(squares)
    formal = printed.journal_mean_squared_gradient(1 / 2, [1 / 2] * rounds, steps=1, clients=9, factor=1.0)
    assert np.mean(squares) <= formal


def test_the_journals_informal_theorem_3_is_equations_9_and_11() -> None:
    """Symbol for symbol; with theorem 2's noise its last part is that of equation 10."""
    lam, d, sigma, m, clip, epsilon, log = 1.5, 4, 0.3, 7, 0.7, 0.5, 11.0
    printed = Printed(lam, 2.0, rate=0.5, dimensions=d, noise=sigma)
    by_hand = 3 * (lam / 20 + lam * 2.0 / 5 + d * lam * sigma**2 / 5)
    assert printed.journal_informal_squared_gradient(20, steps=5, largest=2.0, factor=3.0) == pytest.approx(by_hand)
    quiet = replace(printed, noise=0.0).journal_informal_squared_gradient(20, steps=5, largest=2.0, factor=3.0)
    assert quiet == pytest.approx(3 * (lam / 20 + lam * 2.0 / 5))
    rounds = m / (lam * d * clip**2)
    noisy = replace(printed, noise=clip * math.sqrt(rounds * log) / (epsilon * m))
    last = noisy.journal_informal_squared_gradient(20, steps=5, largest=0.0, factor=1.0) - lam / 20
    assert last == pytest.approx(log / (m * 5 * epsilon**2))


def test_the_journals_step_condition_and_corollary_8_symbol_for_symbol() -> None:
    """Theorem 7's step `c p / (L p^2 + s p^2 - 2 s)`, its condition from 1/2 to 1, and equation 121."""
    printed = Printed(0.5, 10.0, rate=0.8, convexity=1.0)
    step = 2.7 * 0.8 / (10.0 * 0.8**2 + 0.5 * 0.8**2 - 2 * 0.5)
    assert printed.second_step(2.7, journal=True) == pytest.approx(step)
    for constant in (2.5, 2.7, 2.9, 3.0, 3.2, 3.5):
        share = printed.second_step(constant, journal=True) * 0.8 * (constant - 2) * (1.0 + 0.5)
        assert printed.allowed(constant, journal=True) is (0.5 <= share <= 1)
    shares = [printed.second_step(c, journal=True) * 0.8 * (c - 2) * 1.5 for c in (2.9, 3.2, 3.9)]
    assert 0.3 < shares[0] < 0.5 < shares[1] < 1 < shares[2], "both sides of both limits"
    claim = Printed.journal_gap_after(7.0, 6, steps=3, largest=2.0)
    assert claim == pytest.approx(2**-6 * (7.0 - 2.0) + 2.0 / (1 - 2**-3))


@pytest.mark.parametrize("steps", [1, 3])
def test_the_journals_informal_theorem_5_is_equation_12(steps: int) -> None:
    """Symbol for symbol, with (13) for theorem 2's sigma and T of the order of m / (s d gamma^2); never below B."""
    lam, d, sigma, m, clip, epsilon, log = 1.5, 4, 0.3, 7, 0.7, 0.5, 11.0
    printed, kept = Printed(lam, 2.0, dimensions=d, noise=sigma), 2**steps / (2**steps - 1)
    found = printed.journal_noisy_gap_after(5.0, 6, steps=steps, largest=2.0, factor=3.0)
    assert found == pytest.approx(3 * (5.0 / 2**6 + kept * 2.0 + kept * d * lam * sigma**2))
    assert printed.journal_noisy_gap_after(0.0, steps, steps=steps, largest=2.0, factor=1.0) > 2.0
    noisy = replace(printed, noise=clip * math.sqrt(m / (lam * d * clip**2) * log) / (epsilon * m))
    equation_13 = kept / m * log / epsilon**2
    assert noisy.journal_noisy_gap_after(0.0, 6, steps=steps, largest=0.0, factor=1.0) == pytest.approx(equation_13)


def test_what_the_proof_of_theorem_5_puts_into_its_rate() -> None:
    """`L - 2` is the journal's `L p^2 + s p^2 - 2 s` for a strength of 1 and everybody; and it has the wrong sign.

    Of `m s h^2 = s eta^2 sum |gradient|^2` it takes `2 s eta^2 (mu + s) gap`, which is the least that it can be.
    """
    for strength, rate, agree in ((1.0, 1.0, True), (0.4, 1.0, False), (1.0, 0.6, False)):
        printed = Printed(strength, 5.0, rate=rate)
        same = printed.second_step(2.3) == pytest.approx(printed.second_step(2.3, journal=True))
        assert same is agree
    strength, convexity, smoothness = 1.5, CURVATURE.min(), CURVATURE.max()
    models, shared = np.random.default_rng(5).normal(size=(50, CLIENTS, DIMENSIONS)), np.zeros((1, DIMENSIONS))
    least_value = objective(CURVATURE * BEST / (CURVATURE + strength), shared, strength)
    gaps = (objective(models, shared, strength) - least_value).sum(axis=-1)
    squares = (slope(models, shared, strength) ** 2).sum(axis=(-1, -2))
    assert (squares > 1.2 * 2 * (convexity + strength) * gaps).all()
    assert (squares <= 2 * (smoothness + strength) * gaps).all()


def test_where_the_steps_of_theorems_3_and_6_are_too_large() -> None:
    """The journal's: only for L above 15 s, and p around a quarter. The longer text's: below a half and more."""
    for strength in (0.01, 0.06, 0.07, 1.0, 4.0):
        share = strength / (1.0 + strength)
        root = math.sqrt(max(0.0, 1 - 16 * share))
        for rate in np.linspace(0.003, 1, 150):
            printed = Printed(strength, 1.0, rate=float(rate))
            inside = 15 * strength < 1.0 and (1 - root) / 4 <= rate <= (1 + root) / 4
            assert printed.stable(printed.first_step(journal=True)) is not inside
            step = printed.first_step()
            assert (step > 0) is bool(rate**2 > share)
            too_large = step > 0 and rate <= (1 + math.sqrt(1 + 16 * share)) / 4
            assert printed.stable(step) is bool(step > 0 and not too_large)
    assert Printed(0.01, 1.0, rate=0.01).stable(Printed(0.01, 1.0, rate=0.01).first_step(journal=True))
    assert Printed(0.1, 1.0, rate=0.25).stable(Printed(0.1, 1.0, rate=0.25).first_step(journal=True))
