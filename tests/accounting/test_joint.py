"""Accounts of somebody at several parties, against closed forms and against dp_accounting composed by hand."""

from __future__ import annotations

from itertools import combinations

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from kinfolk.accounting import composition, joint
from kinfolk.accounting.composition import BudgetError, Charge
from kinfolk.accounting.ledger import RELEASED, Line
from kinfolk.accounting.statement import Book, statement
from kinfolk.privacy.levels import example_level
from kinfolk.privacy.release import Cost

DELTA = 1e-5
SAMPLED = ((1.0, 0.05, 60), (0.8, 0.02, 200), (2.0, 0.3, 40), (1.5, 0.1, 10), (1.2, 0.08, 90))
"""Noise, rate, uses."""


def silos(count: int = 5) -> list[list[Charge]]:
    return [[(Cost("gaussian", z, q), uses)] for z, q, uses in SAMPLED[:count]]


def by_hand(some: tuple[int, ...], delta: float = DELTA) -> float:
    """Epsilon of these silos' releases, each as dp_accounting knows it."""
    total = pld.identity(1e-4)
    for k in some:
        z, q, uses = SAMPLED[k]
        once = pld.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=1e-4)
        total = total.compose(once.self_compose(uses))
    return float(total.get_epsilon_for_delta(delta))


def exact_delta(mu: float, epsilon: float) -> float:
    """Of one Gaussian release, from its definition."""
    return float(stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_squares_of_plain_gaussians_add_up(count: int) -> None:
    noise, uses = np.array([3.0, 9.0, 4.0, 5.0]), np.array([2, 40, 1, 5])
    squares = uses / noise**2
    mu = float(np.sqrt(np.sort(squares)[-count:].sum()))
    own = [[(Cost("gaussian", z), int(n))] for z, n in zip(noise, uses, strict=True)]
    found = joint.epsilon(own, count, DELTA)
    assert exact_delta(mu, found) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_the_dearest_sampled_silos_are_found_and_composed(count: int) -> None:
    truth = max(by_hand(some) for some in combinations(range(5), count))
    found = joint.epsilon(silos(), count, DELTA)
    assert truth * (1 - 1e-4) <= found <= truth * 1.002
    alone = sorted(composition.epsilon(own, DELTA) for own in silos())
    assert max(alone) < found < sum(alone[-count:])


def test_too_many_choices_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    each = joint.epsilon(silos(), 2, DELTA)
    monkeypatch.setattr(joint, "MANY", 1)
    bound = joint.epsilon(silos(), 2, DELTA)
    assert each < bound < 1.25 * each
    pairs = [composition.epsilon([*a, *b], DELTA, adaptive=True) for a, b in combinations(silos(), 2)]
    assert max(pairs) * (1 - 1e-9) <= joint.epsilon(silos(), 2, DELTA, adaptive=True) < 1.05 * max(pairs)


def test_the_bound_takes_each_orders_dearest() -> None:
    """One silo is dearest by small orders, another by large ones: neither order's sum may be left out."""
    heavy, light = [(Cost("gaussian", 0.6, 0.003), 400)], [(Cost("gaussian", 3.0), 12)]
    low, high = (np.array(composition.renyi(composition.counted(own))) for own in (heavy, light))
    assert low[0] < high[0]
    assert low[-1] > high[-1]
    both = joint._of_all_choices([composition.counted(own) for own in (heavy, light)], 1, DELTA, False)
    assert both >= max(composition.from_renyi(own.tolist(), DELTA, adaptive=False) for own in (low, high))


def test_full_batches_count_at_every_silo(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [[(Cost("gaussian", 1.0, 0.05, delta=2e-8), 60)]] * 3
    assert joint.epsilon(own, 3, DELTA) == composition.epsilon([(own[0][0][0], 180)], DELTA)
    assert joint.epsilon(own, 3, DELTA) > joint.epsilon([[(Cost("gaussian", 1.0, 0.05), 60)]] * 3, 3, DELTA)
    assert joint.epsilon(own, 3, 3 * 1.2e-6 * 0.99) == np.inf
    monkeypatch.setattr(joint, "MANY", 0)
    assert joint.epsilon(own, 3, DELTA) > joint.epsilon([[(Cost("gaussian", 1.0, 0.05), 60)]] * 3, 3, DELTA)
    assert joint.epsilon(own, 3, 3 * 1.2e-6 * 0.99) == np.inf


def test_a_cost_that_covers_many_uses_is_paid_by_every_silo() -> None:
    """Two uses at each of two silos are two draws, though one draw would cover four."""
    covering = Cost("gaussian", 2.0, covers=4)
    found = joint.epsilon([[(covering, 2)]] * 2, 2, DELTA)
    assert found == gaussian_mechanism.get_epsilon_gaussian(2.0 / np.sqrt(2), DELTA)


def test_nobody_is_twice_at_one_silo() -> None:
    """One dear silo among cheap ones counts once."""
    dear, cheap = [(Cost("gaussian", 0.7, 0.1), 50)], [(Cost("gaussian", 5.0, 0.1), 50)]
    found = joint.epsilon([cheap, dear, cheap], 2, DELTA)
    assert found == composition.epsilon([*dear, *cheap], DELTA)
    assert found < composition.epsilon([*dear, *dear], DELTA)


def test_relations_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    other = [*silos(1), [(Cost("gaussian", 1.0, 0.1, relation="replace_one"), 3)]]
    for most in (joint.MANY, 0):
        monkeypatch.setattr(joint, "MANY", most)
        with pytest.raises(BudgetError, match="different neighbour relations"):
            joint.epsilon(other, 2, DELTA)


@pytest.mark.parametrize("chooses", [False, True])
def test_budgets_together_cover_what_is_calibrated_to_each(chooses: bool) -> None:
    """The limit is that of plain Gaussians; sampled ones, and choices beside them, come to less."""
    for cost, uses in ((Cost("gaussian", 1.0, 0.05), 60), (Cost("gaussian", 1.0, 0.9), 5), (Cost("gaussian", 3.0), 9)):
        own = [(cost, uses), *([(Cost("choice", 40.0), 10)] if chooses else [])]
        limit, delta = joint.budget([(composition.epsilon(own, DELTA), DELTA)] * 3, 3)
        assert delta == DELTA
        assert joint.epsilon([own] * 3, 3, DELTA) <= limit * (1 + 1e-9)


def test_unequal_budgets_take_the_dearest_and_the_largest_delta() -> None:
    epsilon, delta = joint.budget([(1.0, 1e-5), (3.0, 1e-6), (0.1, 1e-5)], 2)
    first, second = (1 / gaussian_mechanism.get_sigma_gaussian(*one) for one in ((1.0, 1e-5), (3.0, 1e-6)))
    assert exact_delta(float(np.hypot(first, second)), epsilon / joint.ROOM) == pytest.approx(1e-5, rel=1e-3)
    assert delta == 1e-5


def line(silo: str, run: str, cost: Cost, uses: int) -> Line:
    return Line(silo, "visits", "example", "gradient", cost, uses, run, (0, 1), RELEASED)


def stated(lines: list[Line], count: int) -> float:
    """Epsilon for a person at so many of the silos that have lines, each at DELTA."""
    deltas = dict.fromkeys(sorted({one.party for one in lines}), DELTA)
    level = example_level(1.0, DELTA, clients_per_person=count)
    facts = {"data": "visits", "noise": RELEASED, "program": ["0"], "scaling": "", "scaling_is_private": True}
    found = statement(level, lines, deltas, **facts)  # type: ignore[arg-type]
    person = found.get("person")
    assert person is not None
    assert person["delta"] == DELTA
    return person["epsilon"]


def test_the_statement_composes_what_silos_were_charged() -> None:
    lines = [line(str(k), "r", Cost("gaussian", z, q), uses) for k, (z, q, uses) in enumerate(SAMPLED)]
    assert stated(lines, 2) == pytest.approx(max(by_hand(some) for some in combinations(range(5), 2)), rel=2e-3)


def test_the_statement_composes_over_runs_by_the_odometer() -> None:
    cost = Cost("gaussian", 20.0)
    once = [line(silo, "one", cost, 9) for silo in "abc"]
    both = [*once, *(line(silo, "two", cost, 9) for silo in "abc")]
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(20.0), 36))
    assert stated(both, 2) >= accountant.get_epsilon(DELTA)
    assert stated(both, 2) == composition.epsilon([(cost, 36)], DELTA, adaptive=True)
    assert stated(once, 2) == composition.epsilon([(cost, 18)], DELTA)


def test_no_statement_gives_less_than_what_silos_were_charged() -> None:
    """Two private choices come to nearly 2, beyond the limit of 1.467: nobody known at two silos means no refusal."""
    lines = [line(silo, "r", Cost("choice", 1.0), 1) for silo in "ab"]
    together = joint.budget([(1.0, DELTA)] * 2, 2)
    book = Book({"a": 1.0, "b": 1.0}, 2, "0", (), (), "", 0.0, together)
    facts = {"data": "visits", "noise": RELEASED, "program": ["0"], "scaling": "", "scaling_is_private": True}
    level = example_level(1.0, DELTA, clients_per_person=2)
    found = statement(level, lines, dict.fromkeys("ab", DELTA), people=3, book=book, **facts)  # type: ignore[arg-type]
    person = found.get("person")
    assert person is not None
    assert person["epsilon"] == joint.epsilon([[(Cost("choice", 1.0), 1)]] * 2, 2, DELTA) > together[0]
