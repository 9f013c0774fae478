"""Check values, all computed with dp_accounting 0.6.0, and closed forms."""

from __future__ import annotations

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld

from kinfolk.accounting import composition
from kinfolk.accounting.composition import BudgetError, epsilon
from kinfolk.accounting.noise_for_budget import Case, noise_multipliers
from kinfolk.accounting.planning import plan
from kinfolk.privacy.mechanisms import Cost, coin_rate
from kinfolk.toml import ConfigError


def gaussian(z: float, rate: float = 1.0, relation: str = "zero_out", delta: float = 0.0) -> Cost:
    return Cost("gaussian", z, rate, relation, delta)


def test_poisson_sampled_gaussian() -> None:
    charges = [(gaussian(1.0, 0.01), 1000)]
    assert epsilon(charges, 1e-5) == pytest.approx(1.8282, abs=5e-4)
    assert composition._rdp(charges, 1e-5) == pytest.approx(2.1014, abs=5e-4)


def test_the_odometer_holds_for_orders_fixed_beforehand() -> None:
    """Plain Gaussians have Renyi divergence a / (2 z^2), so the odometer has a closed form."""
    found = epsilon([(gaussian(4.0), 10)], 1e-5, adaptive=True)
    orders = np.array(composition.ODOMETER_ORDERS)
    expected = (orders * 10 / 32 + np.log(len(orders) / 1e-5) / (orders - 1)).min()
    assert found == pytest.approx(expected, rel=1e-6)
    assert found > epsilon([(gaussian(4.0), 10)], 1e-5)


def test_relations() -> None:
    assert epsilon([(gaussian(2.0), 1)], 1e-5) == pytest.approx(1.993, abs=5e-4)
    assert epsilon([(gaussian(2.0, relation="replace_one"), 1)], 1e-5) == pytest.approx(4.377, abs=5e-4)


def test_replace_one_with_sampling_is_the_distance_two_value() -> None:
    found = epsilon([(gaussian(2.0, 0.1, "replace_one"), 100)], 1e-5)
    accountant = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 100)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert found > epsilon([(gaussian(2.0, 0.1), 100)], 1e-5)


@pytest.mark.parametrize(("budget", "z"), [(0.5, 2.382), (1, 1.415), (4, 0.735), (8, 0.586)])
def test_calibration(budget: float, z: float) -> None:
    (found,) = noise_multipliers([Case(budget, 1e-5, 1000, 0.01)])
    assert found == pytest.approx(z, abs=2e-3)
    assert epsilon([(gaussian(found, 0.01), 1000)], 1e-5) <= budget


def test_private_choices_compose_with_gradients() -> None:
    charges = [(gaussian(1.0, 0.01), 1000), (Cost("choice", 10.0), 20)]
    assert epsilon(charges, 1e-5) == pytest.approx(2.2945, abs=5e-4)


@pytest.mark.parametrize(
    ("clients", "z", "values"),
    [
        (400, 2, {100: 4.18, 400: 10.27, 600: 13.57}),
        (205, 5, {100: 2.56, 400: 6.39, 1000: 12.12}),
        (515, 2, {100: 3.15, 400: 7.52, 1000: 13.95}),
    ],
    ids=["StackOverflow", "FEMNIST", "CelebA"],
)
def test_settings_of_the_pmtl_paper(clients: int, z: float, values: dict[int, float]) -> None:
    for rounds, expected in values.items():
        answer = plan("client", units=clients, sample=100, uses=rounds, noise_multiplier=z, delta=1 / clients)
        assert answer.epsilon == pytest.approx(expected, abs=0.01)
        assert answer.warning is not None


def test_a_visible_cohort_costs_more() -> None:
    answer = plan("client", units=400, sample=100, uses=600, noise_multiplier=2, delta=1 / 400)
    assert answer.epsilon_if_participation_is_seen == pytest.approx(35.9, abs=0.1)
    always = plan("client", units=400, sample=400, uses=600, noise_multiplier=2, delta=1 / 400)
    assert always.epsilon_if_participation_is_seen == pytest.approx(always.epsilon, rel=1e-6)


@pytest.mark.parametrize("budget", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_without_sampling_the_noise_is_exact(budget: float, relation: str) -> None:
    (z,) = noise_multipliers([Case(budget, 1e-5, 64, relation=relation)])
    distance = 2 if relation == "replace_one" else 1
    exact = dp.get_sigma_gaussian(budget, 1e-5) * 8 * distance if hasattr(dp, "get_sigma_gaussian") else None
    accountant = pld.PLDAccountant()
    accountant.compose(dp.GaussianDpEvent(z / distance), 64)
    assert accountant.get_epsilon(1e-5) == pytest.approx(budget, rel=2e-3)
    assert exact is None or z == pytest.approx(exact, rel=1e-5)
    assert epsilon([(gaussian(z, relation=relation), 64)], 1e-5) <= budget


def test_unequal_rounds_share_inverse_variances() -> None:
    unequal = epsilon([(gaussian(2.0), 3), (gaussian(5.0), 10)], 1e-5)
    assert unequal == pytest.approx(epsilon([(gaussian(1 / math.sqrt(3 / 4 + 10 / 25)), 1)], 1e-5), rel=1e-9)


@pytest.mark.slow
def test_many_cases_are_solved_once_each_and_on_the_safe_side() -> None:
    sizes = np.arange(40, 200, 40)
    cases = [Case(3.0, 1e-3, 50 * int(n // 32), 32 / int(n)) for n in sizes for _ in range(3)]
    found = noise_multipliers(cases)
    for case, z in zip(cases[::3], found[::3], strict=True):
        fine = pld.PLDAccountant(value_discretization_interval=1e-4)
        fine.compose(dp.PoissonSampledDpEvent(case.rate, dp.GaussianDpEvent(z)), case.uses)
        assert fine.get_epsilon(case.delta) <= case.epsilon
        slack = pld.PLDAccountant(value_discretization_interval=1e-4)
        slack.compose(dp.PoissonSampledDpEvent(case.rate, dp.GaussianDpEvent(z * (1 - 1e-3))), case.uses)
        assert slack.get_epsilon(case.delta) > case.epsilon, "more than 1e-3 above the smallest"
    assert found[0] == found[1] == found[2]
    assert all(float(np.float32(z)) == z for z in found)


def test_short_distributions_compose_in_reasonable_time() -> None:
    """dp_accounting's own self-composition takes minutes here: see `_repeated`."""
    assert 2 < epsilon([(gaussian(7.6, 0.36), 402)], 1e-3) < 4


def test_overflow_comes_out_of_delta() -> None:
    leaky = gaussian(1.0, 0.01, delta=4e-9)
    assert epsilon([(leaky, 1000)], 1e-5) > epsilon([(gaussian(1.0, 0.01), 1000)], 1e-5)
    assert epsilon([(leaky, 1000)], 1e-6) == math.inf
    with pytest.raises(BudgetError, match="overflows"):
        noise_multipliers([Case(1.0, 1e-6, 1000, 0.01, overflow=4e-9)])


def test_capacity_overflows_rarely() -> None:
    capacity = composition.capacity(10_000, 0.01, 1000, 1e-5)
    assert 1000 * composition.overflow_probability(10_000, 0.01, capacity) <= 1e-8
    assert 1000 * composition.overflow_probability(10_000, 0.01, capacity - 2) > 1e-8
    assert composition.capacity(50, 1.0, 10, 1e-5) == 50


def test_impossible_budgets_say_what_is_possible() -> None:
    with pytest.raises(BudgetError, match="smallest epsilon for these settings"):
        noise_multipliers([Case(1e-6, 1e-5, 1000, 0.01)])
    with pytest.raises(BudgetError, match="epsilon=0 must be above 0"):
        noise_multipliers([Case(0, 1e-5, 1000)])
    with pytest.raises(BudgetError, match="delta=0"):
        noise_multipliers([Case(1, 0, 1000)])


def test_relations_are_never_mixed() -> None:
    with pytest.raises(BudgetError, match="never composed"):
        epsilon([(gaussian(1.0), 1), (gaussian(1.0, relation="replace_one"), 1)], 1e-5)


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 1e-6, 0.9999999])
def test_a_coins_rate_is_what_a_float32_uniform_does(rate: float) -> None:
    real = coin_rate(rate)
    assert rate <= real <= rate + 2**-23
    assert float(np.float32(real)) == real
    steps = np.arange(2**23, dtype=np.float64) / 2**23
    assert (steps < np.float32(real)).mean() == real
    assert (steps < np.float32(rate)).mean() <= real


def test_plan_refuses_what_it_cannot_answer() -> None:
    with pytest.raises(BudgetError, match="exactly one"):
        plan("example", units=100, uses=3)
    with pytest.raises(BudgetError, match="batch=200 is more than rows=100"):
        plan("example", units=100, sample=200, uses=3, epsilon=1)
    with pytest.raises(ConfigError, match="rows=0 must be at least 1"):
        plan("example", units=0, sample=2, uses=3, epsilon=1)


@pytest.mark.parametrize("missing", ["units", "sample", "uses"])
def test_plan_solves_for_each_number(missing: str) -> None:
    given = {"units": 1000, "sample": 50, "uses": 200, "noise_multiplier": 1.2}
    budget = plan("example", **given, delta=1e-5).epsilon  # type: ignore[arg-type]
    rest = {name: value for name, value in given.items() if name != missing}
    answer = plan("example", **rest, epsilon=budget * 1.0001, delta=1e-5)  # type: ignore[arg-type]
    assert getattr(answer, missing) == pytest.approx(given[missing], rel=0.01)


@pytest.mark.parametrize(
    ("budget", "delta", "uses", "rate"), [(3.0, 1e-5, 2, 0.13), (8.0, 1e-3, 1, 0.01), (1.0, 1e-3, 1, 1e-4)]
)
def test_few_releases_need_little_noise_and_still_get_enough(
    budget: float, delta: float, uses: int, rate: float
) -> None:
    (z,) = noise_multipliers([Case(budget, delta, uses, rate)])
    assert epsilon([(Cost("gaussian", z, rate), uses)], delta) <= budget
    assert z <= 0.0501 or epsilon([(Cost("gaussian", 0.99 * z, rate), uses)], delta) > budget


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, *(pytest.param(scale, marks=pytest.mark.slow) for scale in (3.0, 7.7, 20.0))])
def test_choices_among_gaussians_are_counted_quickly_and_hardly_rounded(scale: float) -> None:
    """Against a grid forty times as fine, which takes as much longer."""
    paid = ((Cost("gaussian", 1.0, 0.1), 402), (Cost("choice", scale), 20))
    fine = composition.privacy_loss_distribution.identity(value_discretization_interval=5e-5)
    for cost, uses in paid:
        fine = fine.compose(composition._repeated(cost, uses, 5e-5))
    assert composition._grid(paid, 1e-5) > 1e-3
    assert composition._pld(paid, 1e-5) == pytest.approx(fine.get_epsilon_for_delta(1e-5), rel=3e-4)
