"""Mechanisms that change from round to round: schedules, adaptive clipping, correlated noise."""

import itertools
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.ledger import read_lines
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.privacy import clipping, correlated_noise
from kinfolk.privacy.levels import client_level, example_level
from kinfolk.privacy.mechanisms import AdaptiveSum, ExactSum, Sampling
from kinfolk.privacy.release import Cost, PrivacyError, new_meter
from kinfolk.training import loop
from kinfolk.training.experiment import Experiment, Phase
from kinfolk.training.prepare import prepare

ROWS = clipping.rows(lambda _, unit: unit)


def adaptive(clip: float = 1.0, noise: float = 1e-6, expected: float = 100.0, quantile: float = 0.5) -> AdaptiveSum:
    values = (jnp.float32(v) for v in (quantile, expected, 0.2))
    return AdaptiveSum(jnp.float32(clip), jnp.float32(noise), Sampling(), jnp.float32(0), *values)


# --- schedules


@pytest.mark.slow
def test_noise_shares_are_accounted_round_by_round(tmp_path: Path) -> None:
    """Different noise in every round: the ledger holds each, and together they cost the budget."""
    level = client_level(epsilon=4, delta=1e-3, noise_power=0.4, clip_factor=0.9)
    experiment = Experiment(seed=0, privacy=level, phases=(Phase("fedavg", 6),))
    job = prepare(experiment)
    run = loop.run(experiment, tmp_path)
    noise = [line.cost.noise_multiplier for line in read_lines(run.public / "ledger.jsonl")]
    assert len(noise) == 6
    np.testing.assert_allclose(np.array(noise) / noise[0], (np.arange(6) + 1.0) ** -0.4, rtol=1e-6)
    assert run.statement()["epsilon"] == pytest.approx(4, rel=1e-3)
    assert run.statement()["epsilon"] <= 4
    terms = job.terms.at(3)
    assert not isinstance(terms.inbox, ExactSum)
    assert float(terms.inbox.noise_multiplier) == pytest.approx(noise[3], rel=1e-7)
    assert float(terms.inbox.clip) == pytest.approx(0.9**3, rel=1e-6)
    assert float(job.terms.at(99).inbox.clip) == pytest.approx(0.9**5, rel=1e-6), "the last round's goes on"  # type: ignore[union-attr]


def test_shares_of_unequal_rounds_add_inverse_variances() -> None:
    even = Case(2.0, 1e-5, 10)
    uneven = replace(even, factors=((0.5, 5), (2.0, 5)))
    (z,) = noise_for_budget.noise_multipliers([even])
    (other,) = noise_for_budget.noise_multipliers([uneven])
    assert other == pytest.approx(z * np.sqrt((5 / 0.25 + 5 / 4) / 10), rel=1e-4)
    sampled = replace(uneven, rate=0.1)
    (third,) = noise_for_budget.noise_multipliers([sampled])
    assert 0.998 * 2 <= sampled.spent(third) <= 2.0


@pytest.mark.slow
def test_a_release_with_a_schedule_draws_noise_of_each_rounds_size(tmp_path: Path) -> None:
    """The noise on the tape must be that of the round: the mean moves by noise alone when nobody has a say."""
    level = client_level(epsilon=0.05, delta=1e-3, noise_factor=0.25)
    run = loop.run(Experiment(privacy=level, phases=(Phase("fedavg", 4),)), tmp_path)
    steps = [np.load(run.public / "shared" / f"{n:06d}.npz") for n in range(1, 5)]
    sizes = [np.abs(b["[0]['weights']"] - a["[0]['weights']"]).mean() for a, b in itertools.pairwise(steps)]
    assert sizes[0] > 4 * sizes[2], "16 times is expected; the mean of 8 weights strays by a third"
    assert run.statement()["epsilon"] <= 0.05


# --- adaptive clipping


@pytest.mark.slow
def test_the_clip_finds_the_quantile() -> None:
    units = jnp.asarray(np.random.default_rng(0).lognormal(2, 0.5, (100, 1)).astype(np.float32))
    mechanism, meter = adaptive(clip=0.1), new_meter(jax.random.key(0), ("sum",))
    total = jnp.zeros(1)
    for _ in range(120):
        total, meter = mechanism("sum", meter, ROWS, (), units, jnp.ones(100, bool))
    clip = float(mechanism.clip * meter.memory)
    assert np.mean(np.asarray(units) <= clip) == pytest.approx(0.5, abs=0.06)
    np.testing.assert_allclose(total, np.minimum(np.asarray(units), clip).sum(), rtol=0.05)


@pytest.mark.parametrize("contribution", [[0.0, 0.0], [0.3, 0.4], [1e9, 0.0], [np.nan, 1.0], [np.inf, -np.inf]])
def test_one_unit_moves_sum_and_count_together_by_at_most_the_reach(contribution: list[float]) -> None:
    """In units of their own noise, so that the two together cost what one release at the stated multiplier costs."""
    noise, clip = 1.3, 0.7
    mechanism = adaptive(clip, noise, expected=4.0)
    units = jnp.array([[0.1, 0.2], [3.0, -4.0], contribution], jnp.float32)
    (total, count), (total_without, count_without) = (
        clipping.with_count(ROWS).exact(
            ((), jnp.float32(clip), jnp.float32(1)), units, jnp.array([1, 1, last], jnp.float32)
        )
        for last in (1, 0)
    )
    count_noise, sum_noise = noises_of(mechanism)
    distance = np.sum(((total - total_without) / sum_noise) ** 2) + ((count - count_without) / count_noise) ** 2
    assert np.sqrt(distance) <= (1 + 1e-5) / noise
    assert abs(count - count_without) == 0.5


def noises_of(mechanism: AdaptiveSum) -> tuple[float, float]:
    """Standard deviations of the noise on the count and on the sum, by the paper's formula."""
    count = float(mechanism.count_noise)
    return count, float(mechanism.clip / np.sqrt(mechanism.noise_multiplier**-2 - (2 * count) ** -2))


@pytest.mark.slow
def test_adaptive_noise_has_the_size_that_is_paid_for() -> None:
    mechanism, units = adaptive(0.7, 1.3, expected=4.0), jnp.array([[0.1, 0.2], [3.0, -4.0]], jnp.float32)

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        total, meter = mechanism("sum", new_meter(key, ("sum",)), ROWS, (), units, jnp.ones(2, bool))
        return total, meter.memory

    totals, memories = jax.vmap(one)(jax.random.split(jax.random.key(0), 4000))
    _, sum_noise = noises_of(mechanism)
    np.testing.assert_allclose(totals.std(axis=0), sum_noise, rtol=0.06)
    expected = np.array([0.1, 0.2]) + 0.7 * np.array([0.6, -0.8])
    np.testing.assert_allclose(totals.mean(axis=0), expected, atol=5 * sum_noise / np.sqrt(4000))
    assert np.log(memories).std() > 0, "the count is noisy too"


@pytest.mark.slow
def test_adaptive_clipping_costs_what_fixed_clipping_costs_and_passes_the_checks(tmp_path: Path) -> None:
    level = client_level(epsilon=4, delta=1e-3, clip=20.0)
    fixed = Experiment(seed=0, privacy=level, phases=(Phase("fedavg", 8),))
    moving = replace(fixed, privacy=replace(level, clip_quantile=0.5))
    one, other = loop.run(fixed, tmp_path), loop.run(moving, tmp_path)
    assert one.statement()["epsilon"] == other.statement()["epsilon"]
    assert other.metrics()[-1]["error"] < one.metrics()[-1]["error"], "the clip was far too wide"
    job = prepare(moving)
    for check in job.checks:
        check.require()
    released = loop.run(replace(moving, seed=None), tmp_path)
    assert released.statement()["epsilon"] <= 4


# --- correlated noise


@pytest.mark.slow
def test_sensitivity_of_turns_agrees_with_jax_privacy_and_the_known_value() -> None:
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
    coefficients = correlated_noise.strategy(128, 8)
    assert np.linalg.norm(coefficients) == pytest.approx(1, rel=1e-5)
    assert correlated_noise.sensitivity(coefficients, 64, 16) ** 2 == pytest.approx(4.0, rel=1e-3)
    for steps, period in ((20, 3), (33, 8), (10, 1), (7, 9)):
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            theirs = toeplitz.minsep_sensitivity_squared(jnp.asarray(coefficients), min_sep=period, n=steps)
        assert correlated_noise.sensitivity(coefficients, steps, period) ** 2 == pytest.approx(float(theirs), rel=1e-3)


@pytest.mark.slow
def test_the_noise_is_the_inverse_strategy_applied_to_independent_noise() -> None:
    pytest.importorskip("jax_privacy")
    steps, coefficients = 6, correlated_noise.strategy(6, 3)
    inverse = correlated_noise.inverse(coefficients, steps)
    matrix = np.array([[coefficients[i - j] if 0 <= i - j < 3 else 0 for j in range(steps)] for i in range(steps)])
    np.testing.assert_allclose(
        matrix @ np.array([[inverse[i - j] if i >= j else 0 for j in range(steps)] for i in range(steps)]),
        np.eye(steps),
        atol=1e-9,
    )
    mechanism = correlated_noise.CorrelatedSum(
        jnp.float32(2),
        jnp.float32(1.5),
        correlated_noise.Turns(jnp.float32(1)),
        jnp.asarray(inverse, jnp.float32),
        jnp.float32(1),
        jnp.float32(steps),
    )

    def one(key: jax.Array) -> jax.Array:
        meter, seen = new_meter(key, ("sum",)), []
        for _ in range(steps):
            total, meter = mechanism("sum", meter, ROWS, (), jnp.zeros((2, 1)), jnp.ones(2, bool))
            seen.append(total[0])
        return jnp.stack(seen)

    noise = np.asarray(jax.vmap(one)(jax.random.split(jax.random.key(0), 4000)))
    whitened = noise @ matrix.T / 3.0
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(steps), atol=0.12)


def test_a_step_beyond_the_account_is_not_a_number() -> None:
    mechanism = correlated_noise.CorrelatedSum(
        jnp.float32(1),
        jnp.float32(1),
        correlated_noise.Turns(jnp.float32(1)),
        jnp.ones(3),
        jnp.float32(1),
        jnp.float32(1),
    )
    meter = new_meter(jax.random.key(0), ("sum",))
    first, meter = mechanism("sum", meter, ROWS, (), jnp.zeros((2, 1)), jnp.ones(2, bool))
    second, _ = mechanism("sum", meter, ROWS, (), jnp.zeros((2, 1)), jnp.ones(2, bool))
    assert np.isfinite(first).all()
    assert np.isnan(second).all()


def test_units_take_turns() -> None:
    turns = correlated_noise.Turns(jnp.float32(3))
    seen = np.stack([np.asarray(turns.present(jnp.int32(t), jnp.ones(7, bool))) for t in range(6)])
    assert (seen.sum(axis=0) == 2).all()
    assert (seen[:3] == seen[3:]).all()
    assert np.allclose(seen.mean(axis=0), turns.rate)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["example", "client"])
def test_a_run_with_correlated_noise_pays_once_at_the_start(unit: str, tmp_path: Path) -> None:
    pytest.importorskip("jax_privacy")
    make = example_level if unit == "example" else client_level
    cohort = {} if unit == "example" else {"cohort": 15.0}
    level = make(epsilon=3, delta=1e-4, noise_bands=4, **cohort)
    experiment = Experiment(seed=0, privacy=level, phases=(Phase("fedavg", 8),))
    run = loop.run(experiment, tmp_path)
    assert run.statement()["epsilon"] == pytest.approx(3, rel=1e-3)
    assert run.statement()["epsilon"] <= 3
    lines = read_lines(run.public / "ledger.jsonl")
    party = lines[0].party
    first = composition.epsilon(composition.by_run([(x.run, x.cost, x.uses) for x in lines[:1]]), 1e-4)
    everything = [(x.run, x.cost, x.uses) for x in lines if x.party == party]
    assert first == pytest.approx(composition.epsilon(composition.by_run(everything), 1e-4))
    with pytest.raises(PrivacyError, match="no exact noise yet"):
        loop.run(replace(experiment, seed=None), tmp_path)


def test_two_half_finished_runs_with_correlated_noise_pay_twice() -> None:
    cost = Cost("gaussian", 2.0, covers=10)
    once = composition.epsilon(composition.by_run([("a", cost, 4)]), 1e-5)
    twice = composition.epsilon(composition.by_run([("a", cost, 4), ("b", cost, 4)]), 1e-5)
    assert once == composition.epsilon([(Cost("gaussian", 2.0), 1)], 1e-5)
    assert twice == composition.epsilon([(Cost("gaussian", 2.0), 2)], 1e-5)


@pytest.mark.slow
def test_what_does_not_go_together_is_refused() -> None:
    for options in ({"noise_bands": 0}, {"noise_bands": 2, "noise_power": 1.0}, {"clip_quantile": 1.5}):
        with pytest.raises(ValueError, match=next(iter(options))):
            client_level(epsilon=1, **options)
    with pytest.raises(ValueError, match="level='client'"):
        example_level(epsilon=1, clip_quantile=0.5)
    with pytest.raises(composition.BudgetError, match="one release in every round"):
        prepare(
            Experiment(
                seed=0,
                privacy=client_level(epsilon=1, delta=1e-3, noise_bands=2, cohort=10.0),
                phases=(Phase("fine_tune", 4, {"shared_rounds": 2}),),
            )
        )
