"""Noise in shares: what it costs, how much of it a budget needs, and what a statement says of it."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from scipy import optimize

from kinfolk.accounting import composition, planning
from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.accounting.composition import BudgetError
from kinfolk.accounting.ledger import SIMULATED
from kinfolk.accounting.noise_for_budget import Case, noise_multipliers
from kinfolk.accounting.statement import statement, text
from kinfolk.data.federation import from_rows
from kinfolk.privacy.gates import MIXTURE, SECOND_MOMENT, SQUARES, UPDATE
from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level
from kinfolk.privacy.noise_shares import LAW, NoiseShares, SecureError, law_gap, usual
from kinfolk.privacy.release import Cost
from kinfolk.training.simulate import SimulationState, simulate

DELTA = 1e-5


def by_definition(rho: float, delta: float) -> float:
    """Epsilon of rho-zCDP by the optimal order of the Renyi divergence alone, computed here anew (Canonne et al.)."""

    def at(log_order: float) -> float:
        a = 1 + math.exp(log_order)
        return a * rho + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)

    found: Any = optimize.minimize_scalar(at, bounds=(-4, 8), method="bounded")
    return float(found.fun)


@pytest.mark.parametrize(("z", "uses"), [(1.0, 1), (2.0, 20), (8.0, 20), (30.0, 100)])
def test_the_cost_is_zero_concentrated_privacy(z: float, uses: int) -> None:
    found = composition.epsilon([(Cost(LAW, z), uses)], DELTA)
    wanted = by_definition(uses / (2 * z * z), DELTA)
    assert wanted - 1e-9 <= found <= 1.01 * wanted
    assert found > composition.epsilon([(Cost("gaussian", z), uses)], DELTA)


def test_nothing_is_amplified_and_replacing_costs_twice_the_distance() -> None:
    plain = composition.epsilon([(Cost(LAW, 2.0), 3)], DELTA)
    assert composition.epsilon([(Cost(LAW, 2.0, rate=0.01), 3)], DELTA) == plain
    assert composition.epsilon([(Cost(LAW, 4.0, relation="replace_one"), 3)], DELTA) == pytest.approx(plain)
    assert composition.epsilon([(Cost(LAW, 4.0, group=2), 3)], DELTA) == pytest.approx(plain)
    assert composition.epsilon_if_coins_are_seen([(Cost(LAW, 2.0), 3)], DELTA) == plain


def test_it_composes_with_other_noise_and_over_several_runs() -> None:
    both = [(Cost(LAW, 2.0), 1), (Cost("gaussian", 2.0), 1)]
    assert composition.epsilon(both, DELTA) == pytest.approx(composition.epsilon([(Cost(LAW, 2.0), 2)], DELTA))
    assert composition.epsilon(both, DELTA, adaptive=True) >= composition.epsilon(both, DELTA)


@pytest.mark.parametrize(("epsilon", "excess"), [(8.0, 1.10), (1.0, 1.09), (0.5, 1.092)])
def test_noise_meets_the_budget_at_six_to_nine_percent_more(epsilon: float, excess: float) -> None:
    shared, trusted = noise_multipliers([Case(epsilon, DELTA, 20, mechanism=LAW), Case(epsilon, DELTA, 20)])
    assert composition.epsilon([(Cost(LAW, shared), 20)], DELTA) <= epsilon
    assert composition.epsilon([(Cost(LAW, 0.999 * shared), 20)], DELTA) > epsilon
    assert 1.05 < shared / trusted < excess


def test_sums_of_shares_are_one_law_far_below_what_is_added_for_it() -> None:
    numbers, uses = 1e9, 1e9
    assert law_gap(1000.0, 256) + math.log10(2 * numbers * uses) < math.log10(composition.LAW_GAP)


def inbox_of(level: PrivacyLevel, clients: int = 50) -> Any:
    uses = {kind: np.zeros((20, 1), int) for kind in (UPDATE, MIXTURE, SECOND_MOMENT, SQUARES)}
    uses[UPDATE][:] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return terms_for(level, Population([str(k) for k in range(clients)], np.full(clients, 9)), uses).inbox


def test_what_trust_costs() -> None:
    """At equal epsilon: 1.67 times the variance for drop-outs and colluders, and the zCDP account's excess."""
    trusted = inbox_of(client_level(2.0, DELTA))
    secure = inbox_of(client_level(2.0, DELTA, aggregator="secure", colluding=10))
    local = inbox_of(client_level(2.0, DELTA, aggregator="local"))
    assert secure.excess == pytest.approx(50 / 30)
    assert secure.costs() == [Cost(LAW, float(secure.noise_multiplier))]
    assert local.costs() == trusted.costs()
    assert local.excess == 50
    more = float(secure.noise_multiplier) * math.sqrt(secure.excess) / float(trusted.noise_multiplier)
    assert 1.29 * 1.06 < more < 1.29 * 1.10


def test_adaptive_clips_share_their_noise_too() -> None:
    inbox = inbox_of(client_level(2.0, DELTA, aggregator="secure", colluding=10, clip_quantile=0.5))
    assert (inbox.excess, inbox.costs()[0].mechanism) == (50 / 30, LAW)


def test_what_is_usual() -> None:
    assert usual(50, None, None) == NoiseShares(50, 40, 10)
    assert usual(4, None, None) == NoiseShares(4, 3, 0)
    assert usual(4, None, 1) == NoiseShares(4, 3, 1)
    assert usual(3, None, None) == NoiseShares(3, 2, 0)
    assert client_level(1.0, aggregator="secure").settled(50).survivors == 40
    assert client_level(1.0).settled(50) == client_level(1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"aggregator": "nobody"},
        {"colluding": 2},
        {"survivors": 5},
        {"aggregator": "local", "colluding": 1},
        {"aggregator": "secure", "cohort": 5.0},
        {"aggregator": "secure", "noise": "laplace"},
        {"aggregator": "secure", "noise_bands": 2},
        {"aggregator": "secure", "colluding": -1},
    ],
)
def test_levels_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"aggregator|colluding"):
        client_level(1.0, **options)


def test_example_level_has_no_aggregator_to_trust() -> None:
    with pytest.raises(ValueError, match="level='client'"):
        example_level(1.0, aggregator="secure")


def test_shares_that_are_too_narrow_are_refused() -> None:
    with pytest.raises(BudgetError, match="grid steps"):
        inbox_of(client_level(None, DELTA, noise_multiplier=0.05, aggregator="secure"))


def test_too_many_colluders_are_refused() -> None:
    with pytest.raises(SecureError, match="at most 48"):
        inbox_of(client_level(1.0, DELTA, aggregator="secure", colluding=49))


def test_a_plan_shows_the_excess() -> None:
    found = planning.plan("client", units=50, uses=20, epsilon=2.0, delta=DELTA, colluding=10)
    assert (found.survivors, found.colluding) == (40, 10)
    assert found.epsilon <= 2.0
    assert found.noise_multiplier_of_the_sum == pytest.approx(found.noise_multiplier * math.sqrt(5 / 3))
    trusted = planning.plan("client", units=50, uses=20, epsilon=found.epsilon, delta=DELTA)
    assert found.noise_multiplier_if_trusted == pytest.approx(trusted.noise_multiplier)
    spent = planning.plan(
        "client", units=50, uses=20, noise_multiplier=found.noise_multiplier, delta=DELTA, colluding=10
    )
    assert spent.epsilon == found.epsilon
    for wrong in ({"units": None, "epsilon": 1.0, "noise_multiplier": 1.0}, {"sample": 5.0, "epsilon": 1.0}):
        with pytest.raises(BudgetError, match="colluding"):
            planning.plan("client", **{"units": 50, "uses": 20, "colluding": 10, **wrong})
    assert replace(found).noise_multiplier_by_theorem_1 is not None


def weights_of(state: SimulationState) -> np.ndarray:
    return np.asarray(max(jax.tree.leaves(state.shared), key=np.size))


@pytest.mark.slow
def test_a_simulation_adds_what_all_shares_have_together_and_states_two_numbers() -> None:
    """The released mean of clients that send nothing is the noise itself, within 2 % of what the plan states."""
    level = client_level(2.0, DELTA, aggregator="secure", colluding=2)
    generator = np.random.default_rng(0)
    width, clients, rounds = 5_000, 20, 4
    x = generator.normal(size=(clients, width)).astype(np.float32)
    data = from_rows(x, np.zeros(clients, np.float32), np.arange(clients).astype(str), test_fraction=0.0, name="quiet")
    method = simulate(data, "fedavg", level, rounds=rounds, options={"step_size": 1e-6})
    state = method.init(0)
    seen = [weights_of(state)]
    for _ in range(rounds):
        state = method.step(state)
        seen.append(weights_of(state))
    noise = np.diff(np.stack(seen), axis=0).ravel() * clients
    planned = planning.plan("client", units=clients, uses=rounds, epsilon=2.0, delta=DELTA, colluding=2)
    assert planned.noise_multiplier_of_the_sum is not None
    assert noise.std() == pytest.approx(planned.noise_multiplier_of_the_sum, rel=0.02)
    assert method.epsilon() == pytest.approx(2.0, rel=1e-3)
    account = method.job.account
    said = statement(
        account.privacy,
        account.lines("run", range(rounds)),
        account.deltas(),
        data="quiet",
        noise=SIMULATED,
        program=[],
        scaling="",
        scaling_is_private=True,
    )
    assert "shared_noise" in said
    shared = said["shared_noise"]
    assert (shared["survivors"], shared["colluding"]) == (16, 2)
    assert shared["epsilon_of_observers"] < said["epsilon"] <= 2.0
    words = text(said)
    assert "Against the aggregator with up to 2 clients: epsilon 2 (simulated)" in words
    assert "no guarantee" not in words
    assert said["view"].startswith("the aggregator together with up to 2 clients")
