"""Covariance sharing: through the gates like the functions for many repetitions; levels, people, baselines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.studies.covariance import baselines, schedules
from benchmarks.studies.covariance.one_shot import in_chunks, one_shot
from benchmarks.studies.covariance.tasks import Tasks, synthetic_tasks
from kinfolk import models
from kinfolk.accounting import composition, group_privacy
from kinfolk.algorithms.empirical_bayes import EmpiricalBayes
from kinfolk.data.federation import Federation, from_rows
from kinfolk.engines import resident
from kinfolk.engines.resident import State
from kinfolk.privacy.levels import Level, PrivacyLevel, client_level, example_level, none
from kinfolk.privacy.mechanisms import Cost
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from kinfolk.training import loop, prepare
from kinfolk.training.build import as_sweep
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import Job
from kinfolk.verify.covariance_iterative import WARNING, Iterative
from kinfolk.verify.registry_check import check_small

FULL = Training(batch_size=None)


def small(pattern: str = "low_rank", clients: int = 120) -> Tasks:
    return synthetic_tasks(pattern, 0, clients=clients, rows=12, features=12, rank=2, used=2, test_rows=20)


def federation(tasks: Tasks, outcome: str = "number") -> Federation:
    """Training rows first, test rows last, as `from_rows` would draw them."""
    clients, rows, size = tasks.x.shape
    y = (tasks.y > 0).astype(np.int32) if outcome == "binary" else tasks.y
    names = np.repeat([f"{k:04d}" for k in range(clients)], rows)
    return from_rows(tasks.x.reshape(-1, size), y.ravel(), names, test_fraction=0.0, name="tasks", outcome=outcome)


def finished(method: str, level: PrivacyLevel, data: Federation, rounds: int, **options: object) -> tuple[Job, State]:
    model = ModelChoice("logistic" if data.outcome == "binary" else "linear")
    experiment = Experiment(
        seed=0, model=model, training=FULL, privacy=level, phases=(Phase(method, rounds, dict(options)),)
    )
    job = prepare.prepare(experiment, [data])
    for check in job.checks:
        check.require()
    algorithm, terms = as_sweep(job.algorithms[0]), as_sweep(job.terms)
    state = resident.start_all(job.plan, algorithm, jax.random.key(0)[None])
    return job, resident.run_rounds(job.plan, algorithm, terms, job.clients, state, jnp.int32(0), jnp.int32(rounds))


def rows_of(data: Federation) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rows with the constant that the gates append."""
    x = np.concatenate([data.train.x, np.ones((*data.train.x.shape[:2], 1), np.float32)], axis=2)
    return jnp.asarray(x), jnp.asarray(data.train.y, jnp.float32), jnp.ones(x.shape[:2], bool)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "only_shared"), [("low_rank", False), ("group_sparse", False), ("group_sparse", True)]
)
def test_one_shot_through_the_gates_is_the_function_for_repetitions(pattern: str, only_shared: bool) -> None:
    data = federation(small(pattern))
    _, state = finished("empirical_bayes", none(), data, 2, pattern=pattern, only_shared=only_shared)
    _, expected = one_shot(jax.random.key(0), rows_of(data), 0.01, 0.0, pattern, only_shared=only_shared)
    np.testing.assert_allclose(np.asarray(state.personal)[0, 0, :, :, 0], expected, atol=2e-3)


def test_who_says_that_all_is_shared_had_better_be_right() -> None:
    """Better by a little where the other features are not used, worse by much where they are used a little."""
    gains = []
    for rest in (0.0, 0.1):
        tasks = synthetic_tasks("group_sparse", 3, clients=80, rest=rest)
        rows = jnp.asarray(tasks.x), jnp.asarray(tasks.y), jnp.ones(tasks.y.shape, bool)
        careful, bold = (
            tasks.error(np.asarray(one_shot(jax.random.key(0), rows, 0.01, 0.5, "group_sparse", only_shared=bold)[1]))
            for bold in (False, True)
        )
        gains.append(careful / bold)
    assert 1 < gains[0] < 1.1
    assert gains[1] < 0.95


@pytest.mark.parametrize("pattern", ["low_rank", "group_sparse"])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_iterations_through_the_gates_are_the_function_for_repetitions(pattern: str, ridge: float) -> None:
    """As many releases, from the ridge fits of the same penalty, which are what is released first."""
    data = federation(small(pattern))
    x, y, mask = rows_of(data)
    alone = baselines.ridge_alone(x, y, max(ridge * x.shape[1], 0.01))
    for accelerated in (True, False):
        full = {"strength": 0.02, "step_size": 1.0, "outliers": 0.03, "ridge": ridge, "condition": 0.05}
        full |= {"pattern": pattern, "accelerated": accelerated}
        job, end = finished("covariance_regularized", none(), data, 5, **full)
        whole = Iterative(clip=1e6, noise="none", **full).run(jax.random.key(0), x, y, mask, jnp.zeros(5), alone)  # type: ignore
        np.testing.assert_allclose(ended(job, end), whole, atol=2e-3)
        assert not ridge or np.abs(np.asarray(end.personal["own"])).max() > 0.01
    _, first = finished("covariance_regularized", none(), data, 1, **full)
    np.testing.assert_allclose(np.asarray(first.personal["model"])[0, 0, :, :, 0], alone, atol=2e-3)


@pytest.mark.parametrize("outcome", ["number", "binary"])
def test_iterations_begin_with_what_empirical_bayes_fits_alone(outcome: str) -> None:
    data = federation(small(), outcome)
    _, alone = finished("empirical_bayes", none(), data, 1)
    _, state = finished("covariance_regularized", none(), data, 1)
    np.testing.assert_allclose(state.personal["model"], alone.personal, atol=2e-3)


def test_iterations_are_those_of_the_paper() -> None:
    data = federation(small())
    x, y, _ = rows_of(data)
    _, state = finished("covariance_regularized", none(), data, 5, strength=0.02, step_size=2.0)
    moved = np.asarray(state.personal["model"])[0, 0, :, :, 0]
    np.testing.assert_allclose(_by_hand(np.asarray(x), np.asarray(y), 0.02, 2.0, 5), moved, atol=2e-3)


@pytest.mark.parametrize("pattern", ["low_rank", "group_sparse"])
def test_strong_noise_leaves_the_models_of_training_alone(pattern: str) -> None:
    """Proposition 1 of the paper; nothing is cut off, however many rounds there are."""
    data = federation(small(pattern))
    level = PrivacyLevel(Level.CLIENT, noise_multiplier=2500, delta=1e-4)
    _, alone = finished("empirical_bayes", none(), data, 1, ridge=0.1 * 12)
    for rounds in (1, 40):
        job, state = finished("covariance_regularized", level, data, rounds, pattern=pattern, ridge=0.1, step_size=1.0)
        expected = np.asarray(alone.personal)[0, 0, :, :, 0]
        assert np.linalg.norm(ended(job, state) - expected) < (0.15 if rounds == 1 else 0.05) * np.linalg.norm(expected)


def ended(job: Job, state: State) -> np.ndarray:
    """Every client's model at the end, features and a constant."""
    shared, everybody = (jax.tree.map(lambda leaf: leaf[0, 0], part) for part in (state.shared, state.personal))
    algorithm = jax.tree.map(lambda leaf: jnp.ravel(leaf)[0], job.algorithms[0])
    found = jax.vmap(algorithm.model, in_axes=(None, 0))(shared, everybody)[0]
    return np.concatenate([np.asarray(found["weights"])[:, :, 0], np.asarray(found["bias"])], axis=1)


def _by_hand(x: np.ndarray, y: np.ndarray, strength: float, step: float, rounds: int) -> np.ndarray:
    """The method of the paper in a few lines of numpy."""
    penalty = 0.01 * np.eye(x.shape[2])
    models = np.stack([np.linalg.solve(own.T @ own + penalty, own.T @ y) for own, y in zip(x, y, strict=True)])
    before = models
    for number in range(rounds - 1):
        values, vectors = np.linalg.eigh(models.T @ models)
        roots = np.sqrt(np.maximum(values, 1e-20))
        factor = np.where(values > 0, np.maximum(0, 1 - step * strength / roots), 0)
        shrunk = models @ (vectors * factor) @ vectors.T
        start = shrunk + number / (number + 3) * (shrunk - before)
        missed = np.einsum("mnd,md->mn", x, start) - y
        models, before = start - step * np.einsum("mnd,mn->md", x, missed) / x.shape[1], shrunk
    return models


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "noise"), [("low_rank", "gaussian"), ("group_sparse", "laplace")])
def test_sharing_helps_and_the_budget_is_kept(pattern: str, noise: str) -> None:
    tasks = small(pattern)
    data = federation(tasks)
    level = client_level(3.0, noise=noise)
    job, state = finished("empirical_bayes", level, data, 2, pattern=pattern)
    shared = np.asarray(state.personal)[0, 0, :, :-1, 0]
    alone = np.asarray(baselines.ridge_alone(jnp.asarray(tasks.x), jnp.asarray(tasks.y), 0.01))
    assert tasks.error(shared) < 0.8 * tasks.error(alone)
    counted = {kind: int(uses.sum()) for kind, uses in job.account.uses.items() if uses.sum()}
    assert counted == {"second_moment" if pattern == "low_rank" else "squares": 1}


@pytest.mark.slow
def test_logistic_models_learn_from_each_other() -> None:
    tasks = synthetic_tasks("group_sparse", 3, clients=150, rows=30, features=20, used=2, test_rows=60)
    data = federation(tasks, "binary")
    _, state = finished("empirical_bayes", client_level(5.0), data, 2, pattern="group_sparse", ridge=0.05)
    _, single = finished("empirical_bayes", none(), data, 1, pattern="group_sparse", ridge=0.05)

    def right(models: np.ndarray) -> float:
        scores = np.einsum("mnd,md->mn", tasks.test_x, models[:, :-1]) + models[:, -1:]
        return float(((scores > 0) == (tasks.test_y > 0)).mean())

    shared, alone = (right(np.asarray(s.personal)[0, 0, :, :, 0]) for s in (state, single))
    assert shared > alone + 0.02


@pytest.mark.fast
def test_closed_form_fits_are_refused_at_example_level_and_for_deep_models() -> None:
    data = federation(small())
    with pytest.raises(ConfigError, match="cannot run at level='example'"):
        finished("empirical_bayes", example_level(1.0), data, 2)
    found = check_small(EmpiricalBayes(), Level.EXAMPLE, models.linear(3), 3)
    assert any("show raw data" in text for text in found.violations)
    mlp = models.mlp(3, 1, (4,), "number")
    with pytest.raises(ValueError, match="linear models"):
        check_small(EmpiricalBayes(), Level.CLIENT, mlp, 3)


@pytest.mark.slow
def test_releases_use_exact_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(privacy=client_level(5.0), training=FULL, phases=(Phase("empirical_bayes", 2),))
    result = loop.run(experiment, tmp_path)
    assert result.statement()["epsilon"] <= 5
    assert result.statement()["parties"][0]["releases"]["second_moment"] == 1
    laplace = replace(
        experiment,
        privacy=client_level(5.0, noise="laplace"),
        phases=(Phase("empirical_bayes", 2, {"pattern": "group_sparse"}),),
    )
    monkeypatch.setenv("KINFOLK_LEDGERS", str(tmp_path / "other"))  # the budget of the first is spent
    statement = loop.run(laplace, tmp_path / "laplace").statement()
    assert statement["epsilon"] <= 5
    assert statement["parties"][0]["releases"]["squares"] == 1


@pytest.mark.slow
def test_people_in_several_clients_have_a_joint_account(tmp_path: Path) -> None:
    phases = (Phase("empirical_bayes", 2),)
    plain, joint = (
        loop.run(
            Experiment(seed=0, training=FULL, privacy=client_level(2.0, clients_per_person=g), phases=phases),
            tmp_path / str(g),
        )
        for g in (1, 3)
    )
    noise = [prepare.prepare(run.experiment()).terms.inbox.noise_multiplier for run in (plain, joint)]  # type: ignore[union-attr]
    assert noise[1] == pytest.approx(3 * noise[0], rel=1e-4)
    assert joint.statement()["epsilon"] == pytest.approx(2, rel=1e-3)
    assert "one person, whose data are all of up to 3 clients" in (joint.public / "statement.txt").read_text()
    local = Experiment(seed=0, privacy=example_level(1.0, clients_per_person=2), phases=(Phase("local", 1),))
    found = loop.run(local, tmp_path / "example")
    person = found.statement().get("person")
    assert person is not None
    assert 1.4 < person["epsilon"] < 1.62  # two Gaussian releases of epsilon 1: 1.465; by Renyi divergences 1.61
    assert "in each of up to 2 clients, whichever they are" in (found.public / "statement.txt").read_text()
    with pytest.raises(ValueError, match="leave the cohort out"):
        client_level(1.0, cohort=5.0, clients_per_person=2)


@pytest.mark.slow
def test_chunks_give_the_same_models() -> None:
    rows = rows_of(federation(small()))
    whole = one_shot(jax.random.key(0), rows, 0.01, 0.5)[1]
    parts = in_chunks(jax.random.key(0), 4, lambda n: tuple(part[30 * n : 30 * n + 30] for part in rows), 0.01, 0.5)  # type: ignore[arg-type,return-value]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=2e-3)


@pytest.mark.fast
def test_budgets_are_divided_and_composed_as_written() -> None:
    share = schedules.shares("growing", 10, power=0.4)
    assert share.sum() == pytest.approx(1)
    z = schedules.noise_multipliers(2.0, share)
    assert (1 / z**2).sum() == pytest.approx(1 / 4)
    assert (np.diff(z) < 0).all()
    assert schedules.published_epsilon(np.array([0.5]), 1e-5) == 0.5
    many = schedules.published_per_round(1.0, 1e-4, np.ones(100))
    assert schedules.published_epsilon(many, 1e-4) == pytest.approx(1)
    assert many[0] > 1 / 100
    with pytest.raises(ValueError, match="rule"):
        schedules.shares("odd", 3)


def test_baselines_reach_their_optimum() -> None:
    tasks = small(clients=40)
    x, y = jnp.asarray(tasks.x), jnp.asarray(tasks.y)
    alone = np.asarray(baselines.ridge_alone(x, y, 1e-3))
    shared = np.asarray(baselines.trace_norm(x, y, 0.3, rounds=600))
    assert tasks.error(shared) < 0.6 * tasks.error(alone)
    gradient = np.einsum("mnd,mn->md", x, y - np.einsum("mnd,md->mn", x, shared))
    assert np.linalg.norm(gradient, ord=2) == pytest.approx(0.3, rel=0.02)  # in the trace norm's subdifferential
    sparse = np.asarray(baselines.group_lasso(x, y, 0.5, rounds=600))
    gradient = np.einsum("mnd,mn->md", x, y - np.einsum("mnd,md->mn", x, sparse))
    assert np.linalg.norm(gradient, axis=0).max() <= 0.5 * 1.02
    single = np.asarray(baselines.lasso_alone(x, y, 0.1, rounds=2000))
    gradient = np.einsum("mnd,mn->md", x, y - np.einsum("mnd,md->mn", x, single))
    assert np.abs(gradient).max() <= 0.1 * 1.02
    related = np.asarray(baselines.relationship(jax.random.key(0), x, y, 0.01, 1e-3))
    assert tasks.error(related) < tasks.error(alone)
    noisy = np.asarray(baselines.relationship(jax.random.key(0), x, y, 0.01, 1e-3, noise=5.0))
    assert tasks.error(noisy) > tasks.error(related)
    once = np.asarray(baselines.relationship(jax.random.key(0), x, y, 0.0, 0.5, rounds=1))
    np.testing.assert_allclose(once, baselines.ridge_alone(x, y, 0.5), atol=1e-4)
    mean = np.asarray(baselines.averaged(jax.random.key(0), x, y, 0.1))
    np.testing.assert_allclose(mean[0], np.asarray(baselines.ridge_alone(x, y, 0.1)).mean(axis=0), atol=1e-5)


@pytest.mark.fast
def test_group_privacy() -> None:
    assert group_privacy.by_definition(0.1, 1e-9, 10) == pytest.approx((1.0, 10 * np.e * 1e-9))
    assert group_privacy.by_definition(2.0, 1e-6, 50)[1] == 1.0
    z = group_privacy.noise_for_client(1.0, 1e-5, 2, 20)
    assert group_privacy.epsilon_for_client(z, 2, 20, 1e-5) <= 1.0
    assert group_privacy.epsilon_for_client(z, 2, 1, 1e-5) < 0.1


@pytest.mark.fast
def test_an_example_moves_a_fit_no_further_than_its_noise_assumes() -> None:
    """Ridge regression, any one row replaced: the largest slope of the first fit, before and after, bounds it."""
    generator, ridge = np.random.default_rng(0), 0.3
    x = generator.normal(size=(50, 8, 4)).astype(np.float32)
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    y = generator.normal(size=(50, 8)).astype(np.float32)
    other_x, other_y = x.copy(), y.copy()
    other_x[:, 0], other_y[:, 0] = x[::-1, 1], -3 * y[::-1, 1]
    rows = [(jnp.asarray(a), jnp.asarray(b)) for a, b in ((x, y), (other_x, other_y))]
    fits = [np.asarray(baselines.ridge_alone(*pair, ridge)) for pair in rows]
    slope = np.max([baselines.slopes(*pair, jnp.asarray(fits[0])) for pair in rows], axis=0)
    moved, bound = np.linalg.norm(fits[0] - fits[1], axis=1), np.asarray(baselines.output_sensitivity(slope, ridge))
    assert (moved <= bound).all()
    assert (moved / bound).max() > 0.05


@pytest.mark.fast
def test_what_is_not_private_says_so() -> None:
    assert Iterative(noise="wishart_as_published").label == WARNING == "NOT PRIVATE"
    assert Iterative().label == ""
    z = schedules.noise_multipliers(2.0, schedules.shares("growing", 5, power=0.4))
    spent = composition.epsilon([(cost, 1) for cost in Iterative().costs(z.tolist())], 1e-5)
    assert spent == pytest.approx(composition.epsilon([(Cost("gaussian", 2.0), 1)], 1e-5), rel=1e-6)
    with pytest.raises(PrivacyError, match=WARNING):
        Iterative(noise="wishart_as_published").costs([0.1])
