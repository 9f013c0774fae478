"""Private choices: distribution, sensitivity, cost, and budgets that they exhaust."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from kinfolk import models, trees
from kinfolk.accounting.composition import BudgetError, epsilon
from kinfolk.data import registry
from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.sets.catalogue import BuiltIn
from kinfolk.deploy.round_account import round_meter
from kinfolk.engines import resident
from kinfolk.privacy import exact_noise
from kinfolk.privacy.choice import NoisyMin
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import DataGate
from kinfolk.privacy.levels import client_level, example_level
from kinfolk.privacy.mechanisms import Cost, GaussianSum
from kinfolk.privacy.noise_tape import fresh_keys
from kinfolk.privacy.release import PrivacyError, Tape, new_meter
from kinfolk.training import loop, prepare
from kinfolk.training.build import as_sweep
from kinfolk.training.experiment import Experiment, Phase, Training
from kinfolk.training.noise_tape import checked_for_release, tape_bytes, with_fresh_noise
from kinfolk.types import Rows


def choices(scores: np.ndarray, noise: float, runs: int = 200_000, bound: float = 1.0) -> np.ndarray:
    """How often each candidate is chosen, when `scores` (units x candidates) are the units' scores."""
    mechanism = NoisyMin(jnp.float32(bound), jnp.float32(noise))
    units, mask = jnp.asarray(scores, jnp.float32), jnp.ones(len(scores), bool)

    def choose(key: jax.Array) -> jax.Array:
        meter = new_meter(key, ("choice",))
        return mechanism("choice", meter, lambda _, unit: unit, (), units, mask)[0]

    picks = jax.jit(jax.vmap(choose))(jax.random.split(jax.random.key(1), runs))
    return np.bincount(np.asarray(picks), minlength=scores.shape[1]) / runs


def test_choices_follow_the_exponential_mechanism() -> None:
    scores = np.array([[0.2, 0.9, 0.4], [0.1, 0.3, 0.8]])
    expected = np.exp(-scores.sum(axis=0) / 0.5)
    np.testing.assert_allclose(choices(scores, 0.5), expected / expected.sum(), atol=0.005)


ODD = [np.nan, *(pytest.param(odd, marks=pytest.mark.slow) for odd in (np.inf, -np.inf, 1e30, -5.0))]
"""Scores that nobody should send."""


@pytest.mark.parametrize("odd", ODD)
def test_one_unit_moves_a_choice_by_no_more_than_its_epsilon(odd: float) -> None:
    """Scores are cut to [0, bound], whatever they are; noise of scale bound / epsilon then gives pure epsilon."""
    scores = np.array([[0.5, 0.6], [0.2, 0.1], [odd, 0.0]])
    with_unit, without = choices(scores, 1 / 0.8), choices(scores[:2], 1 / 0.8)
    assert np.abs(np.log(with_unit / without)).max() <= 0.8 * 1.02


@pytest.mark.slow
def test_the_worst_neighbour_uses_the_whole_epsilon() -> None:
    """The cost is not overstated by much: with many candidates one unit can move a choice by almost epsilon."""
    many = np.zeros((1, 200))
    many[0, 0] = 1.0
    moved = np.log(choices(np.zeros((1, 200)), 1.0)[0] / choices(many, 1.0)[0])
    assert 0.8 < moved < 1.1


def clusters() -> Federation:
    """Two kinds of clients, with opposite slopes."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, size=(8 * 60, 2)).astype(np.float32)
    who = np.repeat(np.arange(8), 60)
    y = np.where(who % 2 == 0, 1, -1) * (x[:, 0] + x[:, 1]) + 0.1 * generator.normal(size=len(x))
    return from_rows(x, y.astype(np.float32), [f"c{k}" for k in who], test_fraction=0.2)


def experiment(**changes: object) -> Experiment:
    options = {"choosing_rounds": 5, "step_size": 0.3, "spread": 0.3}
    first = Experiment(
        seed=1,
        training=Training(batch_size=None, epochs=2),
        privacy=example_level(20.0, 1e-4, choice_epsilon=1.0, choice_bound=4.0),
        phases=(Phase("ifca", 30, options),),
    )
    return replace(first, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_clusters_are_found_and_choices_are_in_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "synthetic_schools", BuiltIn(lambda: clusters()))
    run = loop.run(experiment(), tmp_path)
    with np.load(run.public / "models.npz") as file:
        chosen, ids = np.sign(file["[0]['weights']"][:, 0, 0]), file["ids"]  # the clusters' slopes are opposite
    even = {int(c) for c, name in zip(chosen, ids, strict=True) if int(name[1]) % 2 == 0}
    odd = {int(c) for c, name in zip(chosen, ids, strict=True) if int(name[1]) % 2 == 1}
    assert len(even) == len(odd) == 1
    assert even != odd
    averaged = loop.run(experiment(phases=(Phase("fedavg", 30, {"step_size": 0.3}),)), tmp_path)
    assert run.metrics()[-1]["error"] < 0.5 * averaged.metrics()[-1]["error"]
    party = run.statement()["parties"][0]
    assert party["releases"] == {"choice": 5, "gradient": 60}
    assert party["epsilon"] == pytest.approx(20.0, rel=2e-3)


def test_choosing_too_often_is_refused_with_what_would_do() -> None:
    data = clusters()
    greedy = experiment(
        privacy=example_level(1.0, 1e-4, choice_epsilon=1.0), phases=(Phase("ifca", 30, {"choosing_rounds": 30}),)
    )
    with pytest.raises(BudgetError, match=r"30 private choices alone cost .* at most \d rounds"):
        prepare.prepare(greedy, [data])


def test_choices_are_free_at_client_level() -> None:
    job = prepare.prepare(experiment(privacy=client_level(5.0, 1e-2)), [clusters()])
    assert set(job.account.costs()) == {"update", "mixture", "second_moment", "squares"}
    assert job.account.uses["update"].sum() == 30


def exact_choices(scores: np.ndarray, noise: float, runs: int, bound: float = 1.0) -> np.ndarray:
    """The same with exact noise."""
    mechanism = NoisyMin(jnp.float32(bound), jnp.float32(noise))
    units, mask = jnp.asarray(scores, jnp.float32), jnp.ones(len(scores), bool)
    numbers = exact_noise.integers(mechanism, np.array(noise), (runs, exact_noise.width("choice", 1)))

    def choose(integers: jax.Array) -> jax.Array:
        meter = replace(new_meter(jax.random.key(0), ("choice",)), tape=Tape({"choice": integers[None]}, "noise"))
        return mechanism("choice", meter, lambda _, unit: unit, (), units, mask)[0]

    picks = jax.jit(jax.vmap(choose))(jnp.asarray(numbers))
    return np.bincount(np.asarray(picks), minlength=scores.shape[1]) / runs


@pytest.mark.slow
def test_exact_choices_follow_the_exponential_mechanism() -> None:
    scores = np.array([[0.25, 0.875, 0.5, np.nan], [0.125, 0.25, 0.75, 0.5]])
    expected = np.exp(-np.nan_to_num(scores, nan=1.0).sum(axis=0) / 0.5)
    found, runs = exact_choices(scores, 0.5, 20_000), 20_000
    assert chisquare(runs * found, runs * expected / expected.sum()).pvalue > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD)
def test_one_unit_moves_an_exact_choice_by_no_more_than_its_epsilon(odd: float) -> None:
    scores = np.array([[0.5, 0.6], [0.2, 0.1], [odd, 0.0]])
    with_unit, without = (exact_choices(s, 1 / 0.8, 10_000) for s in (scores, scores[:2]))
    assert np.abs(np.log(with_unit / without)).max() <= 0.8 + 0.08


def test_without_a_proposal_left_the_choice_does_not_depend_on_data() -> None:
    mechanism = NoisyMin(jnp.float32(1), jnp.float32(1e-3))
    integers = jnp.zeros((1, exact_noise.width("choice", 1)), jnp.int32).at[:, : exact_noise.TRIALS].set(2)
    meter = replace(new_meter(jax.random.key(0), ("choice",)), tape=Tape({"choice": integers}, "noise"))
    scores = jnp.array([[1.0, 0.0, 0.5]])  # the last is proposed all the time, and is not good enough
    best, meter = mechanism("choice", meter, lambda _, unit: unit, (), scores, jnp.ones(1, bool))
    assert int(best) == 0
    past, _ = mechanism("choice", meter, lambda _, unit: unit, (), scores, jnp.ones(1, bool))
    assert int(past) == -1  # the tape has ended
    many = jnp.zeros((1, 17))
    with pytest.raises(PrivacyError, match="at most 16 candidates"):
        mechanism("choice", meter, lambda _, unit: unit, (), many, jnp.ones(1, bool))


@pytest.mark.slow
def test_a_release_with_private_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "synthetic_schools", BuiltIn(lambda: clusters()))
    run = loop.run(experiment(seed=None), tmp_path)
    party = run.statement()["parties"][0]
    assert party["releases"] == {"choice": 5, "gradient": 60}
    assert party["epsilon"] <= 20.0
    averaged = loop.run(experiment(phases=(Phase("fedavg", 30, {"step_size": 0.3}),)), tmp_path)
    assert run.metrics()[-1]["error"] < 0.5 * averaged.metrics()[-1]["error"]


@pytest.mark.slow
def test_what_a_release_with_choices_needs() -> None:
    """Also where a choice is in the program and never made; and what its noise takes is counted."""
    never = experiment(seed=None, phases=(Phase("ifca", 4, {"choosing_rounds": 0}),))
    checked_for_release(prepare.prepare(never, [clusters()]), 2)
    job = prepare.prepare(experiment(seed=None), [clusters()])
    assert tape_bytes(job) == 8 * 4 * (2 * exact_noise.TRIALS + 2 * 3)  # a choice, and two gradients of three weights
    tiny = experiment(seed=None, privacy=example_level(20.0, 1e-4, choice_epsilon=3e-5))
    with pytest.raises(PrivacyError, match="larger choice_epsilon"):
        checked_for_release(prepare.prepare(tiny, [clusters()]), 2)


def test_the_noise_of_a_release_is_each_mechanism_own() -> None:
    """Drawn for a run, and for a round of a federation."""
    job = prepare.prepare(experiment(seed=None), [clusters()])
    state = resident.start_all(job.plan, as_sweep(job.algorithms[0]), jax.random.key(0)[None])
    drawn = with_fresh_noise(job, state, 5, range(5)).meters.tape
    data, choice = (trees.row(part, slice(0, 1)) for part in job.terms.own)
    first = {kind: counts[:, :1] for kind, counts in job.account.uses.items()}
    one = replace(
        job.account,
        parties=job.ids[:1],
        units=job.account.units[:1],
        uses=first,
        terms=replace(job.terms, data=data, choice=choice),
    )
    own = round_meter(one, new_meter(fresh_keys(), one.level.kinds), {"choice": 1, "gradient": 400}, 0)
    assert drawn is not None
    assert own.tape is not None
    for tape in (drawn, own.tape):
        thresholds = np.asarray(tape.values["choice"])[..., exact_noise.TRIALS :]
        assert thresholds.mean() == pytest.approx(
            exact_noise.SCORE_STEPS * job.terms.choice.costs()[0].noise_multiplier, rel=0.2
        )
    noise = np.asarray(own.tape.values["gradient"])
    assert noise.std() == pytest.approx(GRID_STEPS * job.terms.data.costs()[0].noise_multiplier, rel=0.2)
    assert np.asarray(drawn.values["gradient"]).std() == pytest.approx(noise.std(), rel=0.3)


def test_the_account_of_a_choice() -> None:
    assert epsilon([(Cost("choice", 2.0), 1)], 1e-12) == pytest.approx(0.5, abs=0.01)
    assert epsilon([(Cost("choice", 2.0, relation="replace_one"), 1)], 1e-12) == pytest.approx(1.0, abs=0.01)


def test_a_choice_by_errors_counts_wrong_answers() -> None:
    """The first candidate is nearly always right, and terribly sure when it is not: more loss, fewer errors."""
    model = models.logistic(1)
    x, y = jnp.array([[1.0], [1.0], [1.0], [-1.0]]), jnp.array([1, 1, 1, 1])
    sure, unsure = ({"weights": jnp.array([[w]]), "bias": jnp.zeros(1)} for w in (50.0, -0.1))
    candidates = jax.tree.map(lambda a, b: jnp.stack([a, b]), (sure,), (unsure,))

    def chosen(score: str) -> int:
        rows = Rows(x, y, jnp.ones(4, bool))
        meter, chooser = new_meter(jax.random.key(0), ("choice",)), NoisyMin(1e6, 1e-9, score=score)
        numbers = (jnp.float32(4), jnp.int32(1), jnp.int32(0))
        gate = DataGate(rows, meter, GaussianSum(1.0, 1.0), chooser, *numbers, 1, model)
        return int(gate.choose(candidates)[0])

    assert chosen("error") == 0
    assert chosen("loss") == 1
