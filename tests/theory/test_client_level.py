"""Theorems 1 and 2 of Hu, Wu and Smith: where noise is enough, where not, and what fixed cohorts give away."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.privacy.mechanisms import Cost
from kinfolk.theory import client_level as theory


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
def test_theorem_1_without_sampling(delta: float) -> None:
    """Enough by the exact account, replace-one included, up to a limit that the statement leaves out."""
    log, rounds, clients = math.log(1 / delta), 40, 100
    for share in (0.01, 0.3, 2.0):
        noise = theory.noise_on_mean(share * log, delta, clip=0.7, rounds=rounds, clients=clients)
        shift = 2 * 0.7 * math.sqrt(rounds) / (clients * noise)
        assert theory.gaussian_delta(shift, share * log) < delta
    last = theory.largest_epsilon(delta)
    assert 2.5 * log < last < 4.1 * log
    assert theory.gaussian_delta(1.01 * last / (2 * math.sqrt(log)), 1.01 * last) > delta
    with pytest.raises(ValueError, match="must lie between 0 and 2 log"):
        theory.noise_on_mean(2.1 * log, delta, clip=1.0, rounds=1, clients=1)


def test_exact_delta_is_the_accountants() -> None:
    for noise, epsilon in ((3.0, 0.5), (1.0, 2.0), (0.5, 9.0)):
        delta = theory.gaussian_delta(1 / noise, epsilon)
        assert composition.epsilon([(Cost("gaussian", noise), 1)], delta) == pytest.approx(epsilon, rel=1e-3)
    assert theory.gaussian_delta(0.0, 1.0) == 0


@pytest.mark.parametrize("constants", [(1.0, 1.0), (1.0, 2.0), (10.0, 10.0)])
def test_theorem_1_with_cohorts_has_no_constants(constants: tuple[float, float]) -> None:
    found = theory.counterexample(*constants)
    first, second = constants
    assert found.epsilon < first * found.rate**2 * found.rounds
    noise = theory.noise_with_cohorts(found.epsilon, found.delta, rate=found.rate, rounds=found.rounds, second=second)
    assert found.noise_multiplier == pytest.approx(noise)
    assert found.delta_at_least() > 0.5 > found.delta


def test_the_lower_bound_is_one() -> None:
    """Never above what the accountant says, and seen in simulation."""
    cohorts = theory.Cohorts(rate=0.3, rounds=30, epsilon=2.0, delta=1e-5, noise_multiplier=0.8)
    least = cohorts.delta_at_least()
    assert composition.epsilon([(Cost("gaussian", 0.8, 0.3), 30)], least) >= 2.0
    generator, shape = np.random.default_rng(0), (60_000, 30)
    outs = (generator.random(shape) < 0.3) + 0.8 * generator.normal(size=shape)
    empty = 0.8 * generator.normal(size=shape)
    counts = [(part > 0.5).sum(axis=1) for part in (outs, empty)]
    gaps = [(counts[0] >= k).mean() - math.exp(2.0) * (counts[1] >= k).mean() for k in range(31)]
    assert max(gaps) == pytest.approx(least, abs=0.01)


def test_fixed_cohorts_give_participation_away() -> None:
    """An account for hidden coins, against who knows the cohorts: one in a hundred, and the paper's 100 of 205."""
    for rate, rounds, noise, delta, true in ((0.01, 1000, 1.0, 1e-5, 0.716), (100 / 205, 50, 6.0, 1 / 205, 0.037)):
        promised = composition.epsilon([(Cost("gaussian", noise, rate), rounds)], delta)
        known = theory.Cohorts(rate, rounds, promised, delta, noise)
        assert known.known_cohort_delta() == pytest.approx(true, rel=0.02)
        assert true > 7 * delta
    everybody = theory.Cohorts(1.0, rounds, promised, delta, noise)
    assert everybody.known_cohort_delta() == pytest.approx(theory.gaussian_delta(math.sqrt(rounds) / noise, promised))


def test_the_personal_models_of_the_others_name_the_cohort() -> None:
    """Algorithm 1: a model moves in exactly the rounds its client is in, so q - 1 moved ones mean that I was there."""
    generator, clients, size = np.random.default_rng(1), 12, 5
    for _ in range(50):
        before, chosen = generator.normal(size=clients), generator.choice(clients, size, replace=False)
        after = before.copy()
        after[chosen] += 0.1 * generator.normal(size=size)
        assert (size - (after[1:] != before[1:]).sum() == 1) == (0 in chosen)


def test_billboard_lemma() -> None:
    """Others' models are functions of what is published and of their own data: no test does better on them."""
    generator, runs, epsilon = np.random.default_rng(2), 200_000, 1.0
    shared = [generator.normal(size=runs) + shift for shift in (0.0, 0.8)]
    own = (shared[0] * 0.3 + 2.0 > 2.1, shared[1] * 0.3 + 2.0 > 2.1)
    for event in ([part.mean() for part in own], [(part > 1.2).mean() for part in shared]):
        assert event[1] - math.exp(epsilon) * event[0] <= theory.gaussian_delta(0.8, epsilon) + 0.01
