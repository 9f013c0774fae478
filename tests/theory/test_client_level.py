"""Theorems 1 and 2 of Hu, Wu and Smith: where noise is enough, where not, and what fixed cohorts give away."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.algorithms.mean_regularized import RULES
from kinfolk.data.federation import Federation
from kinfolk.engines import resident
from kinfolk.engines.cohorts import draw_cohort
from kinfolk.engines.resident import State
from kinfolk.privacy.levels import client_level
from kinfolk.privacy.mechanisms import Cost
from kinfolk.theory import client_level as theory
from kinfolk.training import prepare
from kinfolk.training.build import as_sweep
from kinfolk.training.experiment import Experiment, Phase
from kinfolk.training.prepare import Job
from tests.small import six_schools


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
def test_theorem_1_without_sampling(delta: float) -> None:
    """Enough by the exact account, replace-one included, up to a limit that the statement leaves out."""
    log, rounds, clients = math.log(1 / delta), 40, 100
    for share in (0.01, 0.3, 2.0):
        noise = theory.noise_on_mean(share * log, delta, clip=0.7, rounds=rounds, clients=clients)
        shift = 2 * 0.7 * math.sqrt(rounds) / (clients * noise)
        assert theory.gaussian_delta(shift, share * log) < delta
    by_hand = 4 * 0.7 * math.sqrt(rounds * log) / (0.3 * log * clients)
    assert theory.noise_on_mean(0.3 * log, delta, clip=0.7, rounds=rounds, clients=clients) == pytest.approx(by_hand)
    last = theory.largest_epsilon(delta)
    assert 2.5 * log < last < 4.1 * log
    assert theory.gaussian_delta(1.01 * last / (2 * math.sqrt(log)), 1.01 * last) > delta
    with pytest.raises(ValueError, match=r"epsilon=.* must be above 0 and at most .*: the proof ends"):
        theory.noise_on_mean(2.1 * log, delta, clip=1.0, rounds=1, clients=1)


def test_no_noise_is_enough_for_nothing_and_none_for_everything() -> None:
    assert theory.published_multiplier(0.0, 1e-5, 3) == math.inf
    assert theory.published_multiplier(math.inf, 1e-5, 3) == 0
    for delta in (1e-300, 0.3, 0.9, 1 - 1e-12):
        last = theory.largest_epsilon(delta)
        assert theory.gaussian_delta(last / (2 * math.sqrt(math.log(1 / delta))), last) == pytest.approx(delta)


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


def test_a_counterexample_with_many_rounds_is_found_at_once() -> None:
    found = theory.counterexample(0.01, 1.0)
    assert found.rounds > 5e7
    assert found.delta_at_least() > found.delta
    with pytest.raises(ValueError, match=r"no counterexample with fewer than 1e\+09 rounds"):
        theory.counterexample(1e-6, 1.0)


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


CONSTANTS = [(1.0, 1.0), (0.1, 3.0), (0.01, 10.0), (50.0, 0.02), (1.0, 100.0), (300.0, 3.0)]


@pytest.mark.parametrize(("first", "second"), CONSTANTS)
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_theorem_2_has_no_constants_with_known_cohorts(first: float, second: float, delta: float) -> None:
    """Also where the noise multiplier is at least 1, which is what theorem 1 lacks."""
    found = theory.joint_counterexample(first, second, delta=delta)
    assert 0 < found.epsilon < first * found.rate**2 * found.rounds
    again = theory.noise_with_cohorts(found.epsilon, delta, rate=found.rate, rounds=found.rounds, second=second)
    assert found.noise_multiplier == again >= 1
    shift = found.epsilon / (second * math.sqrt(found.rate * math.log(1 / delta)))
    assert math.sqrt(found.rate * found.rounds) / found.noise_multiplier == pytest.approx(shift)
    assert shift > 2.9
    assert found.known_cohort_delta_at_least() > 0.3


def test_half_the_delta_at_the_mean_number_of_rounds_is_less_than_the_exact_one() -> None:
    for rate, rounds, noise in ((0.1, 40, 2.0), (0.01, 300, 1.0), (0.5, 7, 0.7), (0.003, 900, 1.5)):
        known = theory.Cohorts(rate, rounds, 1.0, 1e-5, noise)
        assert 0.3 * known.known_cohort_delta() < known.known_cohort_delta_at_least() < known.known_cohort_delta()
    broken = theory.joint_counterexample(1.0, 1.0)
    assert (broken.rounds, broken.epsilon) == (21632, 1.0)
    assert broken.noise_multiplier == pytest.approx(4.80, abs=0.01)
    assert broken.known_cohort_delta() == pytest.approx(0.78, abs=0.01)


def personal_of(state: State) -> np.ndarray:
    """Every client's state as a row of numbers."""
    leaves = [np.asarray(leaf)[0, 0] for leaf in jax.tree.leaves(state.personal)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def started(data: Federation, rule: str, **level: float) -> tuple[Job, State, Callable[..., State]]:
    """Algorithm 1 through the gates at client level: the job, the first state, and one round (state, number)."""
    phase = Phase("mean_regularized", 20, {"rule": rule, "strength": 0.5})
    privacy = client_level(4.0, allow_large_delta=True, **level)
    job = prepare.prepare(Experiment(seed=0, privacy=privacy, phases=(phase,)), [data])
    algorithm, terms = as_sweep(job.algorithms[0]), as_sweep(job.terms)

    def one(state: State, number: int) -> State:
        return resident.run_rounds(
            job.plan, algorithm, terms, job.clients, state, jnp.int32(number), jnp.int32(number + 1)
        )

    return job, resident.start_all(job.plan, algorithm, jax.random.key(0)[None]), one


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_personal_model_moves_in_exactly_the_rounds_of_its_client(rule: str) -> None:
    """So all others together see who else was there: of a cohort of fixed size, whether the last client was."""
    job, state, one_round = started(six_schools(seed=0), rule, cohort=3.0)
    sizes = set()
    for number in range(12):
        cohort = draw_cohort(job.terms.inbox.sampling, state.server.coins[0, 0], jnp.int32(number), 6)
        before, state = personal_of(state), one_round(state, number)
        moved = (personal_of(state) != before).any(axis=1)
        np.testing.assert_array_equal(moved, cohort.present)
        sizes.add(int(moved.sum()))
    assert len(sizes) > 2, "coins: here the others' models do not tell, as theorem 2 needs"


@pytest.mark.parametrize("rule", RULES)
def test_billboard_lemma(rule: str) -> None:
    """One client's data changed: given what is published the others' models are the same, bit for bit."""
    data = six_schools(seed=0)
    other = replace(data, train=replace(data.train, y=data.train.y * (np.arange(6) > 0)[:, None]))
    (_, mine, one_round), (_, theirs, other_round) = (started(found, rule) for found in (data, other))
    for number in range(4):
        published = jax.tree.map(jnp.copy, mine.shared)
        mine, theirs = one_round(mine, number), other_round(replace(theirs, shared=published), number)
        same = (personal_of(mine) == personal_of(theirs)).all(axis=1)
        np.testing.assert_array_equal(same, np.arange(6) > 0)
        equal = jax.tree.map(jnp.array_equal, mine.shared, theirs.shared)
        assert not all(jax.tree.leaves(equal)), "the client's data do reach what is published"
