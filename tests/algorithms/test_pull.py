"""Where training comes to rest, against closed forms: in every step or once a round, for 1 to 100 local steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models
from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.mocha import relation_precision
from kinfolk.algorithms.pull import PULLS
from kinfolk.privacy.levels import Level
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training import recipes
from kinfolk.training.build import as_array, build_algorithm
from kinfolk.training.experiment import Experiment
from kinfolk.verify.registry_check import check_small
from tests.algorithms.quadratics import (
    STEP,
    STEPS,
    STRENGTHS,
    WEIGHTS,
    at_rest,
    build,
    by_round,
    left_after,
    losses,
    objective,
    optimum,
)
from tests.small import six_schools

either = pytest.mark.parametrize("pull", ["step", pytest.param("round", marks=pytest.mark.slow)])
"""Either pull; the second in the full run."""


def expected(pull: str) -> np.ndarray:
    """Where mean regularisation rests, for all strengths and numbers of steps."""
    bends, minima = losses(4)
    if pull == "round":
        return np.array([[by_round(bends, minima, s, steps) for steps in STEPS] for s in STRENGTHS])
    best = [[optimum(bends, minima, strength)] * len(STEPS) for strength in STRENGTHS[:-1]]
    averaged = [optimum(np.eye(WEIGHTS) - left_after(bends, steps), minima, np.inf) for steps in STEPS]
    return np.array([*best, averaged])


def test_a_pull_in_every_step_minimises_the_objective() -> None:
    """And with infinite strength everybody has the model of federated averaging."""
    found, _ = at_rest(build("mean_regularized", pull="step"))
    np.testing.assert_allclose(found, expected("step"), atol=2e-4)


def test_a_pull_once_a_round_minimises_something_else() -> None:
    """Its own formula; for several steps that is far from the objective, and nearly training alone for many."""
    found, _ = at_rest(build("mean_regularized", pull="round"))
    np.testing.assert_allclose(found, expected("round"), atol=2e-4)
    bends, minima = losses(4)
    best = objective(bends, minima, 3.0, optimum(bends, minima, 3.0))
    assert objective(bends, minima, 3.0, found[2, 2]) > 1.5 * best
    np.testing.assert_allclose(found[2, 3], minima, atol=1e-2)


def test_increments_of_a_cohort_add_up_to_the_mean_of_all() -> None:
    """30 clients, of whom 10 are expected in a round: divided by the cohort's weight, increments would diverge."""
    strengths = (1.0, 3.0, 10.0)
    algorithm = build("mean_regularized", pull="step", rule="increment")
    found, shared = at_rest(algorithm, strengths, (5,), 30, 300, 1 / 3)
    bends, minima = losses(30)
    for number, strength in enumerate(strengths):
        best = optimum(bends, minima, strength)
        np.testing.assert_allclose(found[number, 0], best, atol=2e-3)
        np.testing.assert_allclose(shared[number, 0], best.mean(axis=0), atol=2e-3)


def test_joint_in_cohorts_moves_each_model_by_its_own_increment() -> None:
    found, _ = at_rest(build("joint", pull="step"), (1.0, 3.0), (5,), 30, 300, 1 / 3)
    bends, minima = losses(30)
    for number, strength in enumerate((1.0, 3.0)):
        np.testing.assert_allclose(found[number, 0], optimum(bends, minima, strength), atol=2e-3)


@either
def test_ditto(pull: str) -> None:
    """The shared model is federated averaging's; a client's model is pulled to it and does not pull back."""
    found, _ = at_rest(build("ditto", pull=pull), STRENGTHS[:-1])
    bends, minima = losses(4)
    for number, strength in enumerate(STRENGTHS[:-1]):
        for steps, models_of in zip(STEPS, found[number], strict=True):
            left = left_after(bends, steps)
            shared = optimum(np.eye(WEIGHTS) - left, minima, np.inf)[0]
            own = bends if pull == "step" else np.eye(WEIGHTS) - left
            factor = strength if pull == "step" else (1 + STEP * strength) ** steps - 1
            right = np.einsum("kij,kj->ki", own, minima) + factor * shared
            best = np.linalg.solve(own + factor * np.eye(WEIGHTS), right[..., None])[..., 0]
            if pull == "round":
                best = minima + np.einsum("kij,kj->ki", left, best - minima)
            np.testing.assert_allclose(models_of, best, atol=5e-4)


@either
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("relation_regularized", {}),
        ("ifca", {"clusters": 1, "choosing_rounds": 0, "spread": 0.0}),
        ("joint", {}),
    ],
)
def test_one_group_is_mean_regularisation(name: str, options: dict[str, Any], pull: str) -> None:
    found, _ = at_rest(build(name, pull=pull, **options))
    np.testing.assert_allclose(found, expected(pull), atol=5e-4)


@either
def test_mocha_rests_where_its_docstring_says(pull: str) -> None:
    """In every step: where the objective has no slope. Once a round: where a round by its formula changes nothing."""
    strengths = (0.3, 1.0)
    found, _ = at_rest(build("mocha", pull=pull), strengths, rounds=80)
    bends, minima = losses(4)
    for number, strength in enumerate(strengths):
        for steps, own in zip(STEPS, found[number], strict=True):
            relations = np.asarray(relation_precision(jnp.asarray(own, jnp.float32), 1.0), float)
            if pull == "step":
                left = np.einsum("kij,kj->ki", bends, own - minima) + strength * relations @ own
            else:
                strong = np.diag(relations)[:, None]
                centres = own - relations @ own / strong
                start = centres + (own - centres) / (1 + STEP * strength * strong) ** steps
                left = minima + np.einsum("kij,kj->ki", left_after(bends, steps), start - minima) - own
            np.testing.assert_allclose(left, 0, atol=2e-3)


@either
def test_clusters_that_were_chosen_rest_at_their_own_minima(pull: str) -> None:
    """Two clusters, chosen in the first 5 rounds; then each is mean regularisation, or, in the end, training alone."""
    steps, bends_minima = (1, 5, 20), losses(6, apart=8.0)
    algorithm = build("ifca", pull=pull, clusters=2, choosing_rounds=5)
    found, _ = at_rest(algorithm, (1.0,), steps, clients=6, rounds=80, apart=8.0)
    for own, number in zip(found[0], steps, strict=True):
        for cluster in (slice(0, None, 2), slice(1, None, 2)):
            bends, minima = (part[cluster] for part in bends_minima)
            best = optimum(bends, minima, 1.0) if pull == "step" else by_round(bends, minima, 1.0, number)
            np.testing.assert_allclose(own[cluster], best, atol=1e-3)
    alone, _ = at_rest(replace(algorithm, alone_from=20.0), (1.0,), steps, clients=6, rounds=80, apart=8.0)  # type: ignore
    np.testing.assert_allclose(alone[0], np.broadcast_to(bends_minima[1], alone[0].shape), atol=1e-3)


def test_mocha_has_no_infinite_strength() -> None:
    """Its centre is no average: with an infinite pull everybody's model would go to 0."""
    for strength in (np.inf, {"start": np.inf}):
        with pytest.raises(ConfigError, match=r"strength=inf must be at least 0 and at most .*: 0 is training alone"):
            build("mocha", strength=strength)


PULLING = [name for name, entry in REGISTRY.items() if "pull" in entry.options()]


def test_these_methods_pull_and_refuse_what_is_no_pull() -> None:
    known = {"mean_regularized", "mean_regularized_auto", "ditto", "mocha", "ifca", "relation_regularized", "joint"}
    assert set(PULLING) == known
    for name in PULLING:
        with pytest.raises(ValueError, match="pull='often' is not one of"):
            REGISTRY[name].build(pull="often")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == PULLING[0] else pytest.mark.slow) for name in PULLING]
)
def test_either_pull_releases_the_same_and_leaks_nothing(name: str) -> None:
    for level in (level for level in REGISTRY[name].levels if Level(level).private):
        step, by_round = (
            check_small(as_array(REGISTRY[name].build(pull=pull)), Level(level), models.linear(3), 3) for pull in PULLS
        )
        assert step.violations == by_round.violations == ()
        assert step.releases == by_round.releases


def test_the_option_comes_through_every_door(command: Any) -> None:
    text = 'seed = 0\n[[phases]]\nmethod = "ditto"\noptions.pull = "step"\n'
    experiment = from_toml(text, Experiment)
    assert from_toml(to_toml(experiment), Experiment) == experiment
    assert build_algorithm(experiment.phases[0], "none").pull == "step"  # type: ignore[attr-defined]
    (phase,) = recipes.recommend(six_schools(), pull="round").phases
    assert (phase.method, phase.options["pull"]) == ("mean_regularized", "round")
    assert recipes.Given(pull="step").only_for("fedavg").pull is None
    with pytest.raises(ConfigError, match="local has no option 'pull'"):
        build_algorithm(recipes.recommend(six_schools(), method="local", pull="step").phases[0], "none")
    code, _, err = command("train", "--pull", "often", "--seed", 0)
    assert code == 1
    assert "pull='often' is not one of ('step', 'round')" in " ".join(err.split())
    code, _, err = command("compare", "--pull", "often", "--method", "mean_regularized")
    assert "pull='often'" in err


@pytest.mark.slow
def test_an_estimator_takes_it() -> None:
    pytest.importorskip("sklearn")
    from kinfolk.estimators import PersonalizedRegressor
    from kinfolk.privacy.levels import none

    generator = np.random.default_rng(0)
    x, clients = generator.uniform(-1, 1, (60, 2)), np.repeat(["a", "b", "c"], 20)
    fitted = PersonalizedRegressor(privacy=none(), pull="step", strength=2.0, rounds=3, random_state=0)
    fitted.fit(x, x.sum(axis=1), clients=clients)
    assert fitted.experiment_.phases[0].options["pull"] == "step"
    assert np.isfinite(fitted.predict(x, clients=clients)).all()
