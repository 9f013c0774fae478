"""Tuning by repetition: within the budget, with private scores, and only the winner leaves."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.cli import main
from kinfolk.data import registry
from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.sets.catalogue import BuiltIn
from kinfolk.privacy.levels import client_level, example_level
from kinfolk.privacy.mechanisms import GaussianSum
from kinfolk.privacy.release import PrivacyError
from kinfolk.theory import tuning
from kinfolk.toml import ConfigError
from kinfolk.training import prepare
from kinfolk.training.experiment import Experiment, Phase, Training
from kinfolk.training.tune import Tuning, Winner, calibrated, expectation, scoring, split, tune

pytestmark = pytest.mark.slow

EXPERIMENT = Experiment(
    seed=0,
    privacy=example_level(5.0, 1e-3),
    training=Training(None),
    phases=(Phase("mean_regularized", 4, {"step_size": 0.3}),),
)
STRENGTHS = Tuning({"strength": (0.1, 10.0)}, trials=4.0)


def federation() -> Federation:
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, size=(4 * 50, 2)).astype(np.float32)
    y = (x @ np.array([0.5, -0.5]) + 0.1 * generator.normal(size=200)).astype(np.float32)
    return from_rows(x, y, np.repeat(list("abcd"), 50), name="tiny")


def test_the_winner_costs_no_more_than_the_budget() -> None:
    winner = tune(EXPERIMENT, STRENGTHS, federation())
    assert winner.options in [{"strength": 0.1}, {"strength": 10.0}]
    assert all(4.9 < epsilon <= 5.0 for epsilon in winner.epsilons.values())
    assert "trials" not in {f.name for f in fields(Winner)}
    assert winner.warning is not None
    assert "auto" in winner.warning


def test_a_trial_is_noisier_than_a_single_training() -> None:
    training, _ = split(federation(), 0.2, 0)
    job = prepare.prepare(EXPERIMENT, [training])
    tuned, scorer, epsilons = calibrated(job, STRENGTHS)
    assert isinstance(job.terms.data, GaussianSum)
    assert isinstance(tuned.terms.data, GaussianSum)
    assert (tuned.terms.data.noise_multiplier > 1.3 * job.terms.data.noise_multiplier).all()
    # the account by hand: training and score of one trial, then the selection
    cost, score = tuned.terms.data.costs()[0], scorer.costs()[0]
    found = composition.epsilon_of_the_best([(cost, 4), (score, 1)], 1e-3, mean=4.0, shape=0.0)
    assert found == pytest.approx(epsilons["a"], rel=1e-6)
    curve = lambda a: 4 * a / (2 * cost.noise_multiplier**2) + a / (2 * score.noise_multiplier**2)  # noqa: E731
    ours = tuning.epsilon(tuning.selected(curve, mean=4.0, shape=0.0), 1e-3)
    assert ours == pytest.approx(found, rel=0.01)


def test_scores_are_cut_and_noisy() -> None:
    training, validation = split(federation(), 0.2, 0)
    job, scorer, _ = calibrated(prepare.prepare(EXPERIMENT, [training]), STRENGTHS)
    models = jax.vmap(job.plan.model.init)(jax.random.split(jax.random.key(0), 4))
    huge = jax.tree.map(lambda leaf: leaf + 1e6, models)
    astray = jax.tree.map(lambda leaf: leaf + jnp.nan, models)

    score_of = scoring(job.plan.model)

    def scores(models: object, mechanism: GaussianSum) -> np.ndarray:
        return np.array([score_of(mechanism, models, validation, jax.random.key(k)) for k in range(30)])

    quiet = replace(scorer, noise_multiplier=np.full(4, 1e-6, np.float32))
    assert scores(huge, quiet).max() <= 1 + 1e-4
    np.testing.assert_allclose(scores(astray, quiet), 1.0, atol=1e-4)
    assert scores(models, quiet).mean() < 0.5
    rows = np.asarray(validation.mask).sum(axis=1)
    expected = np.sqrt(np.sum((scorer.noise_multiplier / rows) ** 2)) / 4
    assert scores(models, scorer).std() == pytest.approx(expected, rel=0.5)


def test_rows_of_a_score_are_not_trained_on() -> None:
    data = federation()
    training, validation = split(data, 0.2, 0)
    assert training.ids == data.ids
    trained = {tuple(row) for k in range(4) for row in training.train.x[k, : training.train.sizes[k]]}
    scored = {tuple(row) for k in range(4) for row in np.asarray(validation.x)[k][np.asarray(validation.mask)[k]]}
    assert not trained & scored
    assert len(trained) + len(scored) == data.train.sizes.sum()


def test_refusals() -> None:
    with pytest.raises(PrivacyError, match="give a seed"):
        tune(replace(EXPERIMENT, seed=None), STRENGTHS)
    with pytest.raises(ConfigError, match="level='client'"):
        tune(replace(EXPERIMENT, privacy=client_level(1.0)), STRENGTHS)
    with pytest.raises(ConfigError, match="one noise for all rounds"):
        tune(replace(EXPERIMENT, privacy=example_level(1.0, 1e-3, noise_factor=0.8)), STRENGTHS)
    with pytest.raises(ConfigError, match="private choices"):
        tune(replace(EXPERIMENT, phases=(Phase("ifca", 3, {"choosing_rounds": 2}),)), STRENGTHS, federation())
    with pytest.raises(ConfigError, match="distribution='uniform'"):
        Tuning({"strength": (1.0,)}, distribution="uniform")
    with pytest.raises(ConfigError, match="nothing to choose from"):
        Tuning({})


def test_expectation_needs_no_data() -> None:
    training, _ = split(federation(), 0.2, 0)
    job = prepare.prepare(replace(EXPERIMENT, privacy=example_level(0.5, 1e-3)), [training])
    text = expectation(job, Tuning({"step_size": (0.1, 0.3)}, trials=50.0, distribution="geometric"))
    assert text is not None
    assert "not tuning is expected to be better" in text


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "synthetic_schools", BuiltIn(federation))

    def call(words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["kinfolk", *words.split()])
        with pytest.raises(SystemExit) as stop:
            main.main()
        return int(stop.value.code or 0), capsys.readouterr().out

    words = "tune --option step_size=0.1,0.3 --rounds 2 --trials 2 --epsilon 5 --delta 1e-3 --batch-size 0"
    code, out = call(f"{words} --seed 1 --json")
    answer = json.loads(out)
    assert code == 0
    assert answer["epsilon"] <= 5
    assert answer["options"]["step_size"] in (0.1, 0.3)
    assert "epsilon, tuning included" in call(f"{words} --seed 1")[1]
    assert json.loads(call(f"{words} --json")[1])["error"]["kind"] == "PrivacyError"
