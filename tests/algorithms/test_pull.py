"""Where training comes to rest, against closed forms: in every step or once a round, for 1, 5, 20 and 100 local steps.

Clients have quadratic losses `1/2 (w - a_k)^T H_k (w - a_k)`; there are no batches and there is no noise. Numbers of
steps and strengths are axes of one small program.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax import Array

from kinfolk import models, trees
from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.mocha import relation_precision
from kinfolk.algorithms.pull import PULLS
from kinfolk.algorithms.relations import laplacian, omega_of
from kinfolk.privacy.gates import Inbox
from kinfolk.privacy.levels import Level
from kinfolk.privacy.mechanisms import ExactSum, Sampling
from kinfolk.privacy.release import new_meter
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training import recipes
from kinfolk.training.build import as_array, build_algorithm
from kinfolk.training.experiment import Experiment
from kinfolk.types import Algorithm
from kinfolk.verify.registry_check import check_small
from tests.small import six_schools

STEPS = (1, 5, 20, 100)
STRENGTHS = (0.0, 1.0, 3.0, 10.0, np.inf)
STEP = 0.5
WEIGHTS = 3


@trees.register
@dataclass(frozen=True)
class Quadratic:
    """What algorithms see of a data gate, before a loss of this curvature and minimum."""

    bend: Any
    minimum: Any
    steps: Any
    round: Any
    most_steps: int = field(metadata={"static": True})

    def gradient(self, params: Array, active: Any) -> tuple[Array, Quadratic]:
        return jnp.where(active, self.bend @ (params - self.minimum), 0), self

    def choose(self, candidates: Array, active: Any) -> tuple[Array, Quadratic]:
        return jnp.int32(0), self


@lru_cache
def losses(clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures between 0.6 and 1.4, and minima."""
    generator = np.random.default_rng(5)
    turned = np.linalg.qr(generator.normal(size=(clients, WEIGHTS, WEIGHTS)))[0]
    bends = np.einsum("kij,kj,klj->kil", turned, generator.uniform(0.6, 1.4, (clients, WEIGHTS)), turned)
    return bends, generator.normal(1, 1, (clients, WEIGHTS))


@partial(jax.jit, static_argnames=("clients", "most_steps", "rounds", "rate"))
def trained(
    algorithm: Algorithm, steps: Array, *, clients: int, most_steps: int, rounds: int, rate: float
) -> tuple[Array, Any]:
    """All clients' models after some rounds, and the shared state; each client takes part with probability `rate`."""
    bends, minima = (jnp.asarray(part, jnp.float32) for part in losses(clients))
    slots, mechanism = jnp.arange(clients, dtype=jnp.int32), ExactSum(Sampling(jnp.float32(rate)), sampled_here=False)
    kinds, ones = ("update", "mixture"), jnp.ones(clients, jnp.float32)

    def one_round(number: Array, state: Any) -> Any:
        shared, personal = state

        def of_client(own: Any, bend: Array, minimum: Array) -> Any:
            return algorithm.client(shared, own, Quadratic(bend, minimum, steps, number, most_steps))[:2]  # type: ignore

        messages, after = jax.vmap(of_client)(personal, bends, minima)
        present = jax.random.uniform(jax.random.fold_in(jax.random.key(1), number), (clients,)) < rate
        meter = new_meter(jax.random.key(0), kinds)
        inbox = Inbox(messages, ones, slots, present, meter, mechanism, rate * ones, number, True)
        return algorithm.server(shared, inbox)[0], trees.choose_rows(present, after, personal)

    shared = algorithm.init(jnp.zeros(WEIGHTS), clients)
    personal = jax.vmap(lambda slot: algorithm.init_client(shared, slot))(slots)
    personal = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape[1:])), personal)
    shared, personal = jax.lax.fori_loop(0, rounds, one_round, (shared, personal))
    return jax.vmap(partial(algorithm.model, shared))(personal), shared


def at_rest(
    algorithm: Algorithm,
    strengths: tuple[float, ...] = STRENGTHS,
    steps: tuple[int, ...] = STEPS,
    clients: int = 4,
    rounds: int = 60,
    rate: float = 1.0,
) -> tuple[np.ndarray, Any]:
    """All clients' models (strengths x steps x clients x weights) after many rounds, and the shared state."""
    run = partial(trained, clients=clients, most_steps=max(steps), rounds=rounds, rate=rate)
    each = lambda strength, number: run(replace(as_array(algorithm), strength=strength), number)  # type: ignore  # noqa: E731
    over = jax.jit(jax.vmap(jax.vmap(each, (None, 0)), (0, None)))
    found, shared = over(jnp.array(strengths, jnp.float32), jnp.array(steps, jnp.int32))
    return np.asarray(found, float), shared


def build(name: str, **options: Any) -> Algorithm:
    return REGISTRY[name].build(step_size=STEP, **options)


def optimum(bends: np.ndarray, minima: np.ndarray, strength: float | np.ndarray) -> np.ndarray:
    """Minimises the sum over k of `1/2 (w_k - a_k)^T H_k (w_k - a_k) + strength/2 |w_k - mean|^2`."""
    clients, weights = minima.shape
    if strength > 1e12:
        mean = np.linalg.solve(bends.sum(axis=0), np.einsum("kij,kj->i", bends, minima))
        return np.tile(mean, (clients, 1))
    apart = np.kron(np.eye(clients) - 1 / clients, np.eye(weights)) * strength
    losses = np.zeros_like(apart)
    for k in range(clients):
        losses[k * weights : (k + 1) * weights, k * weights : (k + 1) * weights] = bends[k]
    return np.linalg.solve(losses + apart, losses @ minima.ravel()).reshape(clients, weights)


def left_after(bends: np.ndarray, steps: int) -> np.ndarray:
    """(1 - step H)^E: what plain steps leave of the distance to a minimum."""
    return np.array([np.linalg.matrix_power(np.eye(len(bend)) - STEP * bend, steps) for bend in bends])


def by_round(bends: np.ndarray, minima: np.ndarray, strength: float, steps: int) -> np.ndarray:
    """Where a pull before the steps rests: the formula of `algorithms/pull.py`, and the steps after it."""
    left = left_after(bends, steps)
    pulled = optimum(np.eye(len(bends[0])) - left, minima, (1 + STEP * strength) ** steps - 1)
    return minima + np.einsum("kij,kj->ki", left, pulled - minima)


def objective(bends: np.ndarray, minima: np.ndarray, strength: float, found: np.ndarray) -> float:
    away, apart = found - minima, found - found.mean(axis=0)
    return float(np.einsum("ki,kij,kj->", away, bends, away) / 2 + strength / 2 * (apart**2).sum())


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


@pytest.mark.slow
def test_joint_in_cohorts_moves_each_model_by_its_own_increment() -> None:
    found, _ = at_rest(build("joint", pull="step"), (1.0, 3.0), (5,), 30, 300, 1 / 3)
    bends, minima = losses(30)
    for number, strength in enumerate((1.0, 3.0)):
        np.testing.assert_allclose(found[number, 0], optimum(bends, minima, strength), atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("pull", ["step", "round"])
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


@pytest.mark.slow
@pytest.mark.parametrize("pull", ["step", "round"])
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


@pytest.mark.slow
@pytest.mark.parametrize("signs", [[[1, 1, 1, 1], [1, 1, 1, 1]], [[1, -1, 1, 1], [1, 1, -1, -1]]])
def test_overlapping_groups_minimise_what_the_docstring_says(signs: list[list[int]]) -> None:
    """Also where clients are the opposite of a group."""
    relation = np.array([[1, 1, 2, 0], [0, 1, 1, 3]], np.float32) * np.array(signs, np.float32)
    found, groups = at_rest(build("relation_regularized", pull="step", relation=relation), (1.0, 3.0), rounds=200)
    bends, minima = losses(4)
    for number, strength in enumerate((1.0, 3.0)):
        for place in range(len(STEPS)):
            centres = (relation / np.abs(relation).sum(axis=0)).T @ np.asarray(groups[number, place], float)
            away = found[number, place] - centres
            slopes = np.einsum("kij,kj->ki", bends, found[number, place] - minima)
            np.testing.assert_allclose(slopes + strength * away, 0, atol=2e-3)
            np.testing.assert_allclose(relation @ away, 0, atol=2e-3)


PATH = np.array([[0, 1, 0, 0], [1, 0, 2, 0], [0, 2, 0, 0.5], [0, 0, 0.5, 0]], np.float32)
OPPOSITES = np.array([[0, -1, 1, 0], [-1, 0, -0.5, 0], [1, -0.5, 0, 0], [0, 0, 0, 0]], np.float32)


NOISY = np.random.default_rng(3).normal(size=(4, 4))
OMEGAS = {
    "a path": laplacian(PATH),
    "opposites, and a client without neighbours": laplacian(OPPOSITES),
    "all neighbours": laplacian(np.ones((4, 4)) - np.eye(4)),
    "mean regularisation": np.eye(4) - 1 / 4,
    "neighbours, and all models small": laplacian(PATH) + 0.5 * np.eye(4),
    "one contrast, in which most of a row is off the diagonal": np.outer([1, -2, 1, 0], [1, -2, 1, 0]),
    "the inverse of a covariance": np.linalg.inv(NOISY @ NOISY.T + 0.3 * np.eye(4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", OMEGAS)
def test_omega_minimises_the_papers_objective(what: str) -> None:
    """`sum of losses + strength/2 tr(W Omega W^T)`; a graph's Laplacian with its signs; who has no edge is alone."""
    ids = tuple("abcd")
    omega = omega_of((OMEGAS[what] + OMEGAS[what].T) / 2, ids)
    found, _ = at_rest(build("relation_regularized", pull="step", omega=omega), (1.0, 3.0), rounds=600)
    bends, minima = losses(4)
    for number, strength in enumerate((1.0, 3.0)):
        left = scipy.linalg.block_diag(*bends) + strength * np.kron(omega / np.diag(omega).mean(), np.eye(WEIGHTS))
        best = np.linalg.solve(left, np.einsum("kij,kj->ki", bends, minima).ravel()).reshape(4, WEIGHTS)
        for own in found[number]:
            np.testing.assert_allclose(own, best, atol=2e-3)


@pytest.mark.slow
def test_a_graph_in_cohorts_and_without_a_pull() -> None:
    """Who has many neighbours is near the optimum also if a third takes part; nobody is pulled with strength 0."""
    full = np.ones((30, 30), np.float32) - np.eye(30, dtype=np.float32)
    found, _ = at_rest(
        build("relation_regularized", pull="step", omega=laplacian(full)), (0.0, 1.0), (5,), 30, 600, 1 / 3
    )
    bends, minima = losses(30)
    np.testing.assert_allclose(found[0, 0], minima, atol=2e-3)
    left = np.asarray(scipy.linalg.block_diag(*bends)) + np.kron(np.eye(30) - full / 29, np.eye(WEIGHTS))
    best = np.linalg.solve(left, np.einsum("kij,kj->ki", bends, minima).ravel()).reshape(30, WEIGHTS)
    assert np.abs(found[1, 0] - best).mean() < 0.25 * np.abs(minima - best).mean()


@pytest.mark.slow
def test_a_graph_with_infinite_strength_averages_neighbours() -> None:
    """One connected graph: all end near one model, as federated averaging with few small steps does."""
    full = np.ones((4, 4), np.float32) - np.eye(4, dtype=np.float32)
    found, _ = at_rest(build("relation_regularized", pull="step", omega=laplacian(full)), (np.inf,), (1,), rounds=400)
    bends, minima = losses(4)
    mean = optimum(bends, minima, np.inf)[0]
    spread = np.abs(minima - mean).mean()
    assert np.abs(found[0, 0] - mean).mean() < 0.35 * spread


@pytest.mark.slow
@pytest.mark.parametrize("pull", ["step", "round"])
def test_mocha_rests_where_its_docstring_says(pull: str) -> None:
    """In every step: where the objective has no slope. Once a round: where a round by its formula changes nothing."""
    strengths = (0.3, 1.0)
    found, _ = at_rest(build("mocha", pull=pull), strengths, rounds=200)
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
