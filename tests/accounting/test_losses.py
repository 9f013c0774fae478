"""Losses on a grid against dp_accounting's own composition, against closed forms, and calibrations that use them."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from kinfolk.accounting import composition, losses, pairs
from kinfolk.accounting.noise_for_budget import TOLERANCE, Case, noise_multipliers
from kinfolk.privacy.release import Cost

Paid = tuple[tuple[Cost, int], ...]


def gaussian(z: float, rate: float = 1.0, relation: str = "zero_out") -> Cost:
    return Cost("gaussian", z, rate, relation)


CASES: list[tuple[Paid, float]] = [
    (((gaussian(1.0, 0.01), 1000),), 1e-5),
    (((gaussian(0.586, 0.01), 200),), 1e-5),
    (((gaussian(5.0, 100 / 205), 400),), 1 / 205),
    (((gaussian(2.0, 0.1, "replace_one"), 100),), 1e-5),
    (((gaussian(0.7, 0.3, "replace_one"), 7),), 1e-3),
    (((replace(gaussian(1.0, 0.1), group=0, parts=1), 100),), 1e-5),
    (((gaussian(1.0, 0.1), 402), (gaussian(2.0, 0.1), 50)), 1e-5),
    (((gaussian(1.2, 0.5), 3), (gaussian(2.0), 4)), 1e-6),
    (((gaussian(1.0, 0.1), 402), (Cost("choice", 20.0), 20)), 1e-5),
    (((Cost("choice", 10.0), 20), (Cost("choice", 3.0), 2)), 1e-5),
    (((gaussian(5.0, 0.2), 400), (Cost("laplace", 1.0), 1)), 1e-5),
    (((Cost("laplace", 20.0, relation="replace_one"), 30), (replace(Cost("laplace", 3.0), group=2), 1)), 1e-3),
    (((Cost("choice", 10.0), 20), (Cost("laplace", 0.3), 1)), 1e-5),
    (((gaussian(0.06, 0.13), 1),), 1e-5),
    (((gaussian(1.0, 1e-5), 10_000),), 1e-6),
    (((gaussian(0.3, 1e-4), 1),), 1e-3),
]


@pytest.mark.parametrize(("paid", "delta"), CASES)
def test_epsilons_are_those_of_dp_accounting(paid: Paid, delta: float) -> None:
    grid = composition._grid(paid, delta)
    assert all(losses.known(cost) for cost, _ in paid)
    theirs = composition._by_dp_accounting(paid, delta)
    assert losses.epsilon(paid, grid, delta) == pytest.approx(theirs, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("z", "uses", "delta"), [(50.0, 10_000, 1e-9), (20.0, 3000, 1e-8), (5.0, 300, 1e-5), (1.0, 50, 1e-5)]
)
@pytest.mark.parametrize("grid", [2**-9, 2**-13])
def test_no_epsilon_is_below_the_closed_form(z: float, uses: int, delta: float, grid: float) -> None:
    """On a fine grid rounding is larger than pessimism, and what is set aside for it is larger still."""
    paid = ((gaussian(z), uses),)
    found, exact = losses.epsilon(paid, grid, delta), composition._plain_gaussian(paid, delta)
    assert exact * (1 - 1e-9) <= found <= exact + uses * grid**2 / 2 + 2e-4 * exact


def test_a_delta_that_rounding_could_use_up_has_no_epsilon() -> None:
    assert losses.epsilon(((gaussian(100.0), 10_000),), 2**-10, 1e-12) == math.inf


def test_what_has_no_law_here_is_left_to_dp_accounting() -> None:
    assert not losses.known(Cost("laplace", 0.01))
    assert not losses.known(Cost("laplace", 1.0, rate=0.5))
    assert not losses.known(replace(gaussian(1.0, 0.1), group=3))
    assert not losses.known(gaussian(0.01, 0.5))
    assert losses.known(replace(gaussian(1.0), group=3))
    assert losses.known(replace(gaussian(1.0, 0.1, "replace_one"), group=3)), "charged without sampling"


@pytest.mark.parametrize("forgotten", ["_added", "_connected"])
def test_a_direction_or_the_pessimism_left_out_is_noticed(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: only the unit's removal is looked at with its sign turned; probabilities are rounded down."""
    paid, delta = ((gaussian(1.0, 0.2), 20),), 1e-5
    whole = losses.epsilon(paid, 2**-9, delta)
    if forgotten == "_added":
        monkeypatch.setattr(losses, "_removed", losses._added)
    else:
        connected = losses._connected
        monkeypatch.setattr(losses, "_connected", lambda first, deltas, grid: connected(first - 1, deltas, grid))
    assert losses.epsilon(paid, 2**-9, delta) < whole * (1 - 1e-3)


def test_a_calibration_that_dp_accounting_does_not_confirm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every epsilon is a thousandth too small."""
    real = losses.epsilon
    monkeypatch.setattr(losses, "epsilon", lambda *args: real(*args) * 0.999)
    composition._pld.cache_clear()
    with pytest.raises(composition.BudgetError, match="and dp_accounting has"):
        noise_multipliers([Case(1.0, 1e-5, 50, 0.1), Case(0.5, 1e-5, 50, 0.1)])
    composition._pld.cache_clear()


def test_many_silos_with_different_budgets_are_calibrated_exactly_with_few_evaluations() -> None:
    """Every multiplier is verified by the account, hardly above the smallest, and dp_accounting is asked once."""
    draw = np.random.default_rng(0)
    sizes, budgets = draw.integers(60, 2000, 40), draw.uniform(0.5, 8, 40)
    cases = [
        Case(float(budget), composition.default_delta(int(n)), 20 * int(n // 32), 32 / int(n))
        for n, budget in zip(sizes, budgets, strict=True)
    ]
    with (
        mock.patch.object(pairs, "loss", wraps=pairs.loss) as library,
        mock.patch.object(losses, "epsilon", wraps=losses.epsilon) as asked,
    ):
        found = noise_multipliers(cases)
    assert asked.call_count <= 3 * len(cases)
    assert library.call_count == 1
    for case, z in zip(cases, found, strict=True):
        assert case.spent(z) <= case.epsilon
    for case, z in list(zip(cases, found, strict=True))[::8]:
        assert case.spent(z * (1 - 2 * TOLERANCE)) > case.epsilon
