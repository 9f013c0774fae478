"""Composed epsilons against a second accountant, written here from scratch, and against closed forms.

The privacy loss of one use is discretised by rounding to the nearest grid point, composed by powers of its Fourier
transform, and turned into delta by the hockey-stick formula. It shares no code with what it checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import optimize, special, stats

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.composition import BudgetError
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.privacy.mechanisms import Cost

Loss = tuple[np.ndarray, np.ndarray]
"""Values of the privacy loss, and their probabilities."""


def normal_mixture(x: np.ndarray, rate: float, centre: float, z: float) -> np.ndarray:
    """Log density of a sum's coordinate when the unit, of contribution `centre`, is sampled with `rate`."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(
            math.log1p(-rate) + stats.norm.logpdf(x, 0, z) if rate < 1 else np.full_like(x, -np.inf),
            math.log(rate) + stats.norm.logpdf(x, centre, z),
        )


def gaussian_losses(z: float, rate: float, relation: str) -> tuple[Loss, Loss]:
    """Losses of one use, in the two directions."""
    x = np.linspace(-12 * z - 1, 12 * z + 1, 400_001)
    first = normal_mixture(x, rate, 1.0, z)
    second = normal_mixture(x, rate, -1.0, z) if relation == "replace_one" else stats.norm.logpdf(x, 0, z)
    step = x[1] - x[0]
    return (first - second, np.exp(first) * step), (second - first, np.exp(second) * step)


def choice_losses(epsilon: float, largest: float) -> tuple[Loss, Loss]:
    """A private choice whose loss is `largest` or `largest - epsilon`: an exponential mechanism's range is epsilon."""
    values = np.array([largest, largest - epsilon])
    high = -math.expm1(epsilon - largest) / (math.exp(-largest) - math.exp(epsilon - largest))
    chances = np.array([high, 1 - high])
    return (values, chances), (-values, chances * np.exp(-values))


def composed(parts: Sequence[tuple[Loss, int]]) -> Loss:
    """The loss of all uses together, in one direction."""
    span, points = 40.0, 2**19
    step = 2 * span / points
    transform = np.ones(points // 2 + 1, complex)
    for (values, chances), uses in parts:
        places = np.rint(np.clip(values, -span, span - step) / step).astype(int) % points
        once = np.bincount(places, chances / chances.sum(), points)
        transform *= np.fft.rfft(once) ** uses
    total = np.fft.fftshift(np.fft.irfft(transform, points))
    return (np.arange(points) - points // 2) * step, total


def delta_of(loss: Loss, epsilon: float) -> float:
    values, chances = loss
    above = values > epsilon
    return float((chances[above] * -np.expm1(epsilon - values[above])).sum())


def second_epsilon(
    charges: Sequence[tuple[Cost, int]], delta: float, others: Sequence[tuple[tuple[Loss, Loss], int]] = ()
) -> float:
    parts = [(gaussian_losses(c.noise_multiplier, c.rate, c.relation), uses) for c, uses in charges]
    parts += others
    totals = [composed([(both[way], uses) for both, uses in parts]) for way in (0, 1)]

    def excess(epsilon: float) -> float:
        return max(delta_of(total, epsilon) for total in totals) - delta

    return float(optimize.brentq(excess, 0.0, 30.0, xtol=1e-4))  # type: ignore[arg-type]


def plain_delta(mu: float, epsilon: float) -> float:
    """Closed form for one Gaussian release whose sensitivity is `mu` standard deviations."""
    return float(special.ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu))


SAMPLED = [
    (1.0, 0.01, 1000, 1e-5, 1.8282),
    (2.382, 0.01, 1000, 1e-5, 0.5),
    (1.415, 0.01, 1000, 1e-5, 1.0),
    (0.735, 0.01, 1000, 1e-5, 4.0),
    (0.586, 0.01, 1000, 1e-5, 8.0),
    (2.0, 100 / 400, 100, 1 / 400, 4.18),
    (5.0, 100 / 205, 400, 1 / 205, 6.39),
    (2.0, 100 / 515, 100, 1 / 515, 3.15),
]
"""Noise multiplier, rate, uses, delta, and the epsilon that the documents give."""


@pytest.mark.parametrize(("z", "rate", "uses", "delta", "documented"), SAMPLED)
def test_sampled_gaussian(z: float, rate: float, uses: int, delta: float, documented: float) -> None:
    found = composition.epsilon([(Cost("gaussian", z, rate), uses)], delta)
    own = second_epsilon([(Cost("gaussian", z, rate), uses)], delta)
    assert found == pytest.approx(own, rel=3e-3)
    assert found >= own * (1 - 2e-4), "the account must err on the safe side"
    assert found == pytest.approx(documented, rel=3e-3, abs=5e-3)


def test_renyi_accounts_are_above_the_tight_value() -> None:
    charges = [(Cost("gaussian", 1.0, 0.01), 1000)]
    plain = composition._rdp(charges, 1e-5)
    assert plain == pytest.approx(2.1014, abs=2e-3)
    assert composition.epsilon(charges, 1e-5, adaptive=True) >= plain > second_epsilon(charges, 1e-5)


@pytest.mark.parametrize(("z", "uses", "delta"), [(2.0, 1, 1e-5), (1.0, 10, 1e-6), (30.0, 400, 1e-3)])
@pytest.mark.parametrize(("relation", "distance"), [("zero_out", 1), ("replace_one", 2)])
def test_without_sampling_the_closed_form(z: float, uses: int, delta: float, relation: str, distance: int) -> None:
    found = composition.epsilon([(Cost("gaussian", z, 1.0, relation), uses)], delta)
    assert plain_delta(distance * math.sqrt(uses) / z, found) == pytest.approx(delta, rel=1e-4)


def test_documented_gaussian_values_of_the_two_relations() -> None:
    assert composition.epsilon([(Cost("gaussian", 2.0), 1)], 1e-5) == pytest.approx(1.993, abs=1e-3)
    assert composition.epsilon([(Cost("gaussian", 2.0, 1.0, "replace_one"), 1)], 1e-5) == pytest.approx(4.377, abs=1e-3)


@pytest.mark.parametrize(("z", "rate", "uses"), [(1.0, 0.1, 10), (2.0, 0.3, 20)])
def test_sampled_replace_one(z: float, rate: float, uses: int) -> None:
    charges = [(Cost("gaussian", z, rate, "replace_one"), uses)]
    own = second_epsilon(charges, 1e-5)
    assert composition.epsilon(charges, 1e-5) == pytest.approx(own, rel=3e-3)
    assert composition.epsilon(charges, 1e-5, adaptive=True) > own
    assert own > second_epsilon([(Cost("gaussian", z, rate), uses)], 1e-5)


def test_private_choices_beside_sampled_noise() -> None:
    """Above every exponential mechanism of that range, below what any pure release would cost."""
    noise = [(Cost("gaussian", 1.0, 0.01), 1000)]
    found = composition.epsilon([*noise, (Cost("choice", 1 / 0.1), 20)], 1e-5)
    assert found == pytest.approx(2.2945, abs=6e-3)
    for largest in (0.02, 0.05, 0.08):
        assert second_epsilon(noise, 1e-5, [(choice_losses(0.1, largest), 20)]) <= found
    response = 1 / (1 + math.exp(-0.1))
    worst = np.array([0.1, -0.1]), np.array([response, 1 - response])
    assert found < second_epsilon(noise, 1e-5, [((worst, worst), 20)])


def test_unequal_rounds_share_inverse_variances() -> None:
    found = composition.epsilon([(Cost("gaussian", 2.0), 3), (Cost("gaussian", 5.0), 7)], 1e-5)
    assert plain_delta(math.sqrt(3 / 4 + 7 / 25), found) == pytest.approx(1e-5, rel=1e-4)


def test_overflow_comes_out_of_delta() -> None:
    overflow = 4e-7
    found = composition.epsilon([(Cost("gaussian", 3.0, delta=overflow), 10)], 1e-5)
    assert plain_delta(math.sqrt(10) / 3, found) == pytest.approx(1e-5 - 10 * overflow, rel=1e-4)
    assert composition.epsilon([(Cost("gaussian", 3.0, delta=2e-6), 10)], 1e-5) == math.inf


@pytest.mark.parametrize(("epsilon", "rate", "uses", "delta"), [(1.0, 0.05, 50, 1e-5), (3.0, 0.5, 6, 1e-2)])
def test_calibrated_noise_meets_its_budget_and_wastes_little(
    epsilon: float, rate: float, uses: int, delta: float
) -> None:
    (z,) = noise_for_budget.noise_multipliers([Case(epsilon, delta, uses, rate)])
    spent = second_epsilon([(Cost("gaussian", z, rate), uses)], delta)
    assert epsilon * (1 - 5e-3) <= spent <= epsilon * (1 + 5e-4)


def test_what_has_no_account_is_refused() -> None:
    with pytest.raises(BudgetError, match="wishart"):
        composition.epsilon([(Cost("wishart_as_published", 1.0), 1)], 1e-5)
    with pytest.raises(BudgetError, match="relation"):
        composition.epsilon([(Cost("gaussian", 1.0), 1), (Cost("gaussian", 1.0, 1.0, "replace_one"), 1)], 1e-5)
