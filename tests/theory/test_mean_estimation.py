"""Closed forms of mean estimation against simulation, and the tables that were to be reproduced."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kinfolk.theory import mean_estimation
from kinfolk.theory.client_level import gaussian_delta
from kinfolk.theory.tuning import noise_for

TABLE = mean_estimation.Problem(clients=20, examples=200, sigma=0.4, tau=0.08, noise=14.567)


def simulated(problem: mean_estimation.Problem, strength: float, runs: int = 40_000, seed: int = 0) -> float:
    """Mean squared error over all clients, from raw examples' means."""
    generator = np.random.default_rng(seed)
    truth = 0.3 + problem.tau * generator.normal(size=(runs, problem.clients))
    sampling = problem.sigma / math.sqrt(problem.examples) * generator.normal(size=truth.shape)
    private = problem.noise / problem.examples * generator.normal(size=truth.shape)
    return float(np.mean((mean_estimation.regularised(truth + sampling + private, strength) - truth) ** 2))


@pytest.mark.parametrize("tau", [0.03, 0.08, 0.2])
@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0, 1e9])
def test_error_at_a_strength(tau: float, strength: float) -> None:
    problem = replace(TABLE, tau=tau)
    assert simulated(problem, strength) == pytest.approx(problem.error(strength), rel=0.02)


def test_the_best_strength_is_the_best() -> None:
    problem = replace(TABLE, clients=7)
    around = [problem.error(problem.best_strength * factor) for factor in (0.8, 1.0, 1.25)]
    assert min(around) == around[1] == pytest.approx(problem.best_error, rel=1e-12)
    assert problem.error(0.0) - problem.best_error == pytest.approx(problem.gain_over_local, rel=1e-12)
    assert problem.error(math.inf) - problem.best_error == pytest.approx(problem.gain_over_averaging, rel=1e-12)
    assert problem.error(1e12) == pytest.approx(problem.error(math.inf))


def test_cost_of_privacy_is_the_difference_to_no_noise() -> None:
    for strength in (0.0, 0.7, math.inf):
        without = replace(TABLE, noise=0.0).error(strength)
        assert TABLE.error(strength) - without == pytest.approx(TABLE.cost_of_privacy(strength), rel=1e-12)


def test_own_share_is_what_regularising_does() -> None:
    estimates = np.array([1.0, 0.0, 0.0, 0.0])
    assert mean_estimation.regularised(estimates, 3.0)[0] == pytest.approx(mean_estimation.own_share(3.0, 4))


def test_the_posterior_is_where_the_truth_lies() -> None:
    """Lemma 6.2 by simulation, and theorem 6.3: its mean is what the best strength gives."""
    problem, generator = replace(TABLE, clients=5, tau=0.05), np.random.default_rng(3)
    truth = 0.3 + problem.tau * generator.normal(size=(40_000, 5))
    estimates = truth + math.sqrt(problem.variance) * generator.normal(size=truth.shape)
    middle, variance = problem.posterior(estimates)
    np.testing.assert_allclose(middle, mean_estimation.regularised(estimates, problem.best_strength), rtol=1e-9)
    assert variance == pytest.approx(problem.best_error, rel=1e-12)
    assert np.mean((truth - middle) ** 2) == pytest.approx(variance, rel=0.02)
    slope = np.polyfit((estimates - middle).ravel(), (truth - middle).ravel(), 1)[0]
    assert abs(slope) < 0.02, "nothing is left in the estimates"
    inside = np.abs(truth - middle) < 1.96 * math.sqrt(variance)
    assert inside.mean() == pytest.approx(0.95, abs=0.005)
    with pytest.raises(ValueError, match="4 clients along its last axis, not 5"):
        problem.posterior(estimates[:, :4])


def test_lemmas_are_given_the_estimates_and_not_the_examples() -> None:
    """Given the examples the noise says nothing; given the estimates the error differs, and lemma 6.7 is its mean."""
    problem, generator = replace(TABLE, clients=5, tau=0.05), np.random.default_rng(4)
    truth = 0.3 + problem.tau * generator.normal(size=(40_000, 5))
    means = truth + problem.sigma / math.sqrt(problem.examples) * generator.normal(size=truth.shape)
    estimates = means + problem.noise / problem.examples * generator.normal(size=truth.shape)
    given_examples, variance = replace(problem, noise=0.0).posterior(means)
    assert np.mean((truth - given_examples) ** 2) == pytest.approx(variance, rel=0.02)
    assert variance < 0.5 * problem.best_error, "lemma 6.2 as printed has the latter"
    left = (truth - given_examples).ravel()
    assert abs(np.corrcoef(left, (estimates - means).ravel())[0, 1]) < 0.01
    for strength in (0.0, 0.7, math.inf):
        given = problem.error_given(estimates, strength)
        assert given.mean() == pytest.approx(problem.error(strength), rel=0.02)
    off = np.abs(estimates[:, 0] - estimates.mean(axis=1))
    far = off > np.quantile(off, 0.9)
    error = (mean_estimation.regularised(estimates, math.inf) - truth)[far, 0] ** 2
    assert error.mean() == pytest.approx(problem.error_given(estimates, math.inf)[far, 0].mean(), rel=0.06)
    assert error.mean() > 1.2 * problem.error(math.inf)


def test_propositions_6_5_and_6_6_given_what_they_are_given() -> None:
    """Training alone: v, whatever the client's own examples are, for a flat centre. Averaging: another at each."""
    problem, generator = replace(TABLE, clients=5, tau=0.05), np.random.default_rng(5)
    truth = 30 * generator.normal(size=(60_000, 1)) + problem.tau * generator.normal(size=(60_000, 5))
    means = truth + problem.sigma / math.sqrt(problem.examples) * generator.normal(size=truth.shape)
    estimates = means + problem.noise / problem.examples * generator.normal(size=truth.shape)
    wrong = (estimates - truth)[np.argsort(means[:, 0]), 0] ** 2
    alone = wrong.reshape(6, -1).mean(axis=1)  # from the lowest means of examples to the highest
    np.testing.assert_allclose(alone - problem.best_error, problem.gain_over_local, rtol=0.1)
    gains = problem.error_given(estimates, math.inf) - problem.best_error
    assert gains.mean() == pytest.approx(problem.gain_over_averaging, rel=0.02)
    assert np.quantile(gains, 0.1) < 0.1 * problem.gain_over_averaging < 2 * gains.mean() < np.quantile(gains, 0.9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.25, 1e-5), (1.0, 1e-5), (0.9, 1e-2)])
def test_the_printed_noise_is_half_of_what_replacing_an_example_needs(epsilon: float, delta: float) -> None:
    noise = mean_estimation.printed_noise(0.7, epsilon, delta)
    assert noise == pytest.approx(0.7 * math.sqrt(2 * math.log(1.25 / delta)) / epsilon)
    assert gaussian_delta(0.7 / noise, epsilon) <= delta, "leaving an example out"
    assert gaussian_delta(2 * 0.7 / noise, epsilon) > 2 * delta, "replacing it, which is the paper's definition"
    with pytest.raises(ValueError, match=r"epsilon=1.5 must be above 0 and at most 1: it is proved up to 1"):
        mean_estimation.printed_noise(1.0, 1.5, delta)


def test_what_the_paper_says_about_both_ends() -> None:
    """One valley in the strength; the smaller of both gains is largest where v = tau^2; privacy costs up to K less."""
    errors = [TABLE.error(s) for s in np.geomspace(1e-3, 1e3, 200)]
    turns = np.diff(np.sign(np.diff(errors)))
    assert np.count_nonzero(turns) == 1
    noises = np.linspace(0.0, 60.0, 601)
    gains = [min(p.gain_over_local, p.gain_over_averaging) for p in (replace(TABLE, noise=z) for z in noises)]
    best = replace(TABLE, noise=float(noises[int(np.argmax(gains))]))
    assert best.variance == pytest.approx(best.tau**2, rel=0.02)
    assert TABLE.cost_of_privacy(0.0) / TABLE.cost_of_privacy(math.inf) == pytest.approx(TABLE.clients)


def test_edges() -> None:
    assert mean_estimation.Problem(3, 10, 0.0, 0.1).posterior(np.arange(3.0))[1] == 0
    assert mean_estimation.Problem(1, 10, 0.4, 0.1).posterior(np.ones(1))[1] == pytest.approx(0.016)
    assert replace(TABLE, tau=0.0).best_strength == math.inf
    assert mean_estimation.Problem(3, 10, 0.0, 0.1).best_error == 0
    assert replace(TABLE, tau=0.0).gain_over_averaging == 0
    with pytest.raises(ValueError, match="sigma=-1"):
        mean_estimation.Problem(3, 10, -1.0, 0.1)


@pytest.mark.parametrize(
    ("tau", "best", "averaging"), [(0.03, 0.00105, 0.00116), (0.08, 0.00327, 0.00639), (0.2, 0.00534, 0.0383)]
)
def test_the_published_setting(tau: float, best: float, averaging: float) -> None:
    """K 20, n 200, sigma 0.4, epsilon 0.25, delta 1e-5, clip 1; noise by Renyi orders."""
    noise = noise_for(0.25, 1e-5)
    assert noise == pytest.approx(14.567, abs=5e-4)
    problem = replace(TABLE, tau=tau, noise=noise)
    assert problem.error(0.0) == pytest.approx(0.00610, abs=1e-5)
    assert problem.best_error == pytest.approx(best, abs=1e-5)
    assert problem.error(math.inf) == pytest.approx(averaging, rel=5e-3)


VARIANCES = np.geomspace(0.001, 0.1, 12)


def world(between: float, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = math.sqrt(between) * generator.normal(size=(runs, len(VARIANCES)))
    return truth, truth + np.sqrt(VARIANCES) * generator.normal(size=truth.shape)


@pytest.mark.parametrize("between", [0.0005, 0.01, 0.2])
def test_silo_specific_error(between: float) -> None:
    truth, estimates = world(between, 60_000, 1)
    found = ((mean_estimation.shrunk(estimates, VARIANCES, between) - truth) ** 2).mean(axis=0)
    np.testing.assert_allclose(found, mean_estimation.shrunk_error(VARIANCES, between), rtol=0.03)
    one = [np.mean((mean_estimation.regularised(estimates, s) - truth) ** 2) for s in np.geomspace(1e-3, 1e3, 40)]
    assert found.mean() < 0.95 * min(one)


def test_equal_variances_are_the_paper() -> None:
    v, between = TABLE.variance, TABLE.tau**2
    assert mean_estimation.shrunk_error(np.full(20, v), between)[0] == pytest.approx(TABLE.best_error, rel=1e-9)
    assert mean_estimation.silo_strengths(np.array([v]), between)[0] == pytest.approx(TABLE.best_strength)
    assert np.isinf(mean_estimation.silo_strengths(VARIANCES, 0.0)).all()


@pytest.mark.parametrize("rule", [mean_estimation.der_simonian_laird, mean_estimation.paule_mandel])
@pytest.mark.parametrize("between", [0.0, 0.01, 0.2])
def test_between_variance(rule: object, between: float) -> None:
    """On average close to the truth; at 0 the cut at 0 leaves a little."""
    _, estimates = world(between, 400, 2)
    found = np.array([rule(row, VARIANCES) for row in estimates])  # type: ignore[operator]
    assert (found >= 0).all()
    assert found.mean() == pytest.approx(between, rel=0.12, abs=0.002)


def test_paule_mandel_varies_less_when_clients_differ_much() -> None:
    _, estimates = world(0.2, 400, 3)
    spreads = [
        np.std([rule(row, VARIANCES) for row in estimates])
        for rule in (mean_estimation.paule_mandel, mean_estimation.der_simonian_laird)
    ]
    assert spreads[0] < spreads[1]
