"""Few releases for yes or no: budgets, what gradients say about weights, clients that go with their size, a run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models
from kinfolk.algorithms import binary_posterior
from kinfolk.algorithms.binary_posterior import Evidence
from kinfolk.algorithms.few_releases_binary import FewReleasesBinary, _normal
from kinfolk.algorithms.schedules import noise_factors
from kinfolk.data.federation import Federation, from_rows
from kinfolk.privacy.levels import Level, example_level
from kinfolk.training.experiment import Training
from kinfolk.training.simulate import simulate
from kinfolk.verify.registry_check import check_small

FEATURES = 3
TRUTH = np.array([0.5, 2.0, -1.0, 1.5])


def test_every_round_has_its_part_of_the_budget() -> None:
    method = FewReleasesBinary()
    planned = noise_factors([method], [range(16)])
    assert sum(1 / factor**2 for factor in planned[: method.rounds]) == pytest.approx(method.rounds)
    assert planned[2] == planned[13] < planned[1] < planned[0]
    assert planned[14] == 1


def test_it_is_for_logistic_models() -> None:
    with pytest.raises(ValueError, match="logistic models"):
        check_small(FewReleasesBinary(), Level.EXAMPLE, models.linear(3), 3)


@pytest.mark.parametrize("features", [1, 64, 65, 150])
def test_draws_are_numbers_with_any_count_of_features(features: int) -> None:
    """More than 64 features are not independent in 128 draws that come in pairs of opposite ones."""
    draws = np.asarray(_normal(features), float)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.square(draws).mean(axis=0), 1, atol=1e-3)
    together = draws.T @ draws / len(draws)
    apart = together - np.diag(np.diag(together))
    assert np.abs(apart).max() < (1e-3 if features <= 64 else 0.7)


def shown(generator: np.random.Generator, truth: np.ndarray, rows: int, clip: float) -> Evidence:
    """One gradient at weights of 0, without noise, of a client with so many rows."""
    draws = np.concatenate([np.ones((8192, 1)), generator.normal(0, 0.6, (8192, FEATURES))], axis=1)
    x = np.concatenate([np.ones((rows, 1)), generator.normal(0, 0.6, (rows, FEATURES))], axis=1)
    y = generator.random(rows) < 1 / (1 + np.exp(-x @ truth))
    each = (y - 0.5)[:, None] * x
    each = each * np.minimum(1, clip / np.linalg.norm(each, axis=1, keepdims=True))
    at = jnp.zeros(FEATURES + 1, jnp.float32)
    pushed = binary_posterior.pushes(jnp.asarray(draws, jnp.float32), at, jnp.float32(clip))
    found = (draws, each.mean(axis=0), pushed, 1e-6, rows, at)
    return Evidence(*(jnp.asarray(leaf, jnp.float32) for leaf in found))


@pytest.mark.slow
@pytest.mark.parametrize("clip", [9.0, 0.4])
def test_weights_are_found_through_clipping(clip: float) -> None:
    """A clip that cuts nearly every row changes nothing: what it does to a gradient is part of what is expected."""
    generator = np.random.default_rng(0)
    clients = [shown(generator, TRUTH, 20_000, clip) for _ in range(6)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
    fit = jax.jit(binary_posterior.fitted)
    prior = binary_posterior.first_prior(FEATURES + 1)
    for _ in range(3):
        prior, found = fit(together, prior)
        np.testing.assert_allclose(np.asarray(found), np.tile(TRUTH, (6, 1)), atol=0.35)
    nobody = binary_posterior.centre_of(prior, jnp.float32(0))
    np.testing.assert_allclose(np.asarray(nobody), TRUTH, atol=0.3)


@pytest.mark.slow
def test_weights_that_go_with_size_are_seen_and_chance_is_not() -> None:
    generator = np.random.default_rng(1)
    sizes = np.round(np.geomspace(500, 8000, 12)).astype(int)
    for by_size in (0.0, 1.0):
        clients = []
        for place, rows in zip(np.linspace(-1, 1, 12), sizes, strict=True):
            clients.append(shown(generator, TRUTH + by_size * place * np.array([0, 1, 1, -1]), int(rows), 9.0))
        together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
        prior = binary_posterior.first_prior(FEATURES + 1)
        for _ in range(3):
            prior, _ = jax.jit(binary_posterior.fitted)(together, prior)
        change = np.asarray(prior.by_size)
        assert np.abs(change[1:]).min() > 0.3 if by_size else np.abs(change).max() < 0.15


def federation() -> Federation:
    """Clients that differ in their constant."""
    generator = np.random.default_rng(5)
    clients, rows = 12, 120
    x = generator.uniform(-1, 1, (clients * rows, FEATURES)).astype(np.float32)
    own = np.repeat(generator.normal(0, 1.5, clients), rows)
    y = (generator.logistic(size=len(x)) < own + x @ [3, -2, 1]).astype(np.int32)
    return from_rows(x, y, np.repeat([f"c{k:02d}" for k in range(clients)], rows), test_fraction=0.2, outcome="binary")


@pytest.mark.slow
def test_a_run_learns_what_clients_share_and_what_is_their_own() -> None:
    level = example_level(epsilon=3.0)
    losses = {}
    for method, rounds in (("few_releases_binary", 14), ("fedavg", 60)):
        made = simulate(federation(), method, level, rounds=rounds, training=Training(None))
        state = made.step(made.init(0), rounds)
        assert 2.99 < made.epsilon(state) <= 3
        losses[method] = float(np.mean(made.evaluate(state)["loss"]))
    assert losses["few_releases_binary"] < 0.5  # a constant of one's own has 0.58
    assert losses["few_releases_binary"] < losses["fedavg"]
