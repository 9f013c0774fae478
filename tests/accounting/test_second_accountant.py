"""Composed epsilons against a second accountant, written here from scratch, and against closed forms.

The privacy loss of one use is discretised by rounding to the nearest grid point, composed by powers of its Fourier
transform, and turned into delta by the hockey-stick formula. It shares no code with what it checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
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


PLANS = [(7.5715, 50 / 500, 400, 0.99971), (4.2265, 100 / 205, 200, 7.9985)]
"""The plans that the first pages show: noise multiplier, rate, uses, epsilon at delta 1e-5."""


@pytest.mark.parametrize(("z", "rate", "uses", "documented"), PLANS)
def test_plans_in_the_documents(z: float, rate: float, uses: int, documented: float) -> None:
    assert second_epsilon([(Cost("gaussian", z, rate), uses)], 1e-5) == pytest.approx(documented, rel=1e-3)


def test_participation_that_is_seen_in_the_documents() -> None:
    """Given how often a unit took part its releases are plain Gaussians; delta is the mean over that number."""
    z, rate, uses = 4.2265, 100 / 205, 200
    often = np.arange(1, uses + 1)

    def excess(epsilon: float) -> float:
        deltas = [plain_delta(math.sqrt(n) / z, epsilon) for n in often]
        return float(stats.binom.pmf(often, uses, rate) @ deltas) - 1e-5

    own = optimize.brentq(excess, 0.1, 60.0, xtol=1e-6)
    assert own == pytest.approx(12.365, abs=2e-3)
    assert composition.epsilon_if_coins_are_seen([(Cost("gaussian", z, rate), uses)], 1e-5) == pytest.approx(own, 1e-4)


@pytest.mark.parametrize(("steps", "uses"), [(1300, 1), (328, 30)])
def test_laplace_noise(steps: int, uses: int) -> None:
    """The largest loss has a chance of its own, so it is put onto a point of the grid above."""
    scale = 1 / (steps * 80 / 2**19)
    x = np.linspace(-40 * scale, 40 * scale + 1, 400_001)
    first, second = -np.abs(x) / scale, -np.abs(x - 1) / scale
    shape = np.exp(first) / np.exp(first).sum(), np.exp(second) / np.exp(second).sum()
    losses = ((first - second, shape[0]), (second - first, shape[1]))
    own = second_epsilon([], 1e-5, [(losses, uses)])
    found = composition.epsilon([(Cost("laplace", scale), uses)], 1e-5)
    assert own * (1 - 1e-3) <= found <= own * (1 + 5e-3) + 1e-4


@pytest.mark.parametrize("cost", [Cost("gaussian", 2.0), Cost("gaussian", 1.0, 0.05), Cost("laplace", 10.0)])
def test_the_odometer_by_integrals(cost: Cost) -> None:
    """Over several runs: Renyi divergences of every order, by integration, and Ville's inequality over the orders."""
    uses, delta = 12, 1e-5
    if cost.mechanism == "laplace":
        x = np.linspace(-60 * cost.noise_multiplier, 60 * cost.noise_multiplier, 800_001)
        p, q = (-np.abs(x - c) / cost.noise_multiplier - math.log(2 * cost.noise_multiplier) for c in (1, 0))
    else:
        x = np.linspace(-60, 400, 800_001)
        p, q = normal_mixture(x, cost.rate, 1.0, cost.noise_multiplier), stats.norm.logpdf(x, 0, cost.noise_multiplier)
    step = math.log(x[1] - x[0])

    def renyi(order: float) -> float:
        both = (float(np.logaddexp.reduce(order * a + (1 - order) * b)) + step for a, b in ((p, q), (q, p)))
        return max(both) / (order - 1)

    orders = (1.5, 2, 3, 4, 6, 8, 11, 16, 23, 32, 64, 128)
    own = min(uses * renyi(a) + math.log(len(orders) / delta) / (a - 1) for a in orders)
    assert composition.epsilon([(cost, uses)], delta, adaptive=True) == pytest.approx(own, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "rate", "z", "uses", "delta"), [(1000, 0.05, 1.5, 100, 1e-5), (139, 0.1, 1.2, 60, 1e-4)]
)
def test_a_law_of_full_batches_would_win_nothing(size: int, rate: float, z: float, uses: int, delta: float) -> None:
    """dp_accounting's truncated Poisson sampling is no tighter by more than one part in 5000.

    So the charge to delta stays: it holds whichever rows a full batch leaves out, and not only for random ones.
    """
    places = composition.capacity(size, rate, uses, delta)
    overflow = composition.overflow_probability(size, rate, places)
    charged = composition.epsilon([(Cost("gaussian", z, rate, delta=overflow), uses)], delta)
    law = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=size,
        sampling_probability=rate,
        truncated_batch_size=places,
        noise_multiplier=z,
        value_discretization_interval=1e-3,
    ).self_compose(uses)
    assert charged == pytest.approx(law.get_epsilon_for_delta(delta), rel=2e-4)


def test_what_has_no_account_is_refused() -> None:
    with pytest.raises(BudgetError, match="wishart"):
        composition.epsilon([(Cost("wishart_as_published", 1.0), 1)], 1e-5)
    with pytest.raises(BudgetError, match="relation"):
        composition.epsilon([(Cost("gaussian", 1.0), 1), (Cost("gaussian", 1.0, 1.0, "replace_one"), 1)], 1e-5)
