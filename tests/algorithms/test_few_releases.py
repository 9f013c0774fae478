"""Few releases: where targets lie, what moments and gradients say, budgets, and a whole run."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models, trees
from kinfolk.accounting import composition
from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.accounting.noise_for_budget import times
from kinfolk.algorithms import feature_shape, linear_posterior, target_range
from kinfolk.algorithms.feature_shape import Moments
from kinfolk.algorithms.few_releases import FewReleases
from kinfolk.algorithms.linear_posterior import Evidence
from kinfolk.algorithms.schedules import noise_factors
from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import Federation, from_rows
from kinfolk.privacy.levels import Budget, Level, example_level
from kinfolk.privacy.statistics import hats
from kinfolk.toml import ConfigError
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.simulate import simulate
from kinfolk.training.tune import Tuning, tune
from kinfolk.verify.registry_check import check_small


def test_every_round_has_its_part_of_every_clients_budget() -> None:
    method = FewReleases()
    planned = noise_factors([method], [range(9)])
    assert len(planned) == 9
    assert sum(1 / factor**2 for factor in planned[: method.rounds]) == pytest.approx(method.rounds)
    assert planned[2] < planned[1] < planned[0] < planned[6]
    uses = {"gradient": np.zeros((9, 2), int), "choice": np.zeros((9, 2), int)}
    uses["statistic"] = np.repeat((np.arange(9) < method.rounds)[:, None].astype(int), 2, axis=1)
    level = example_level(epsilon=1.0, delta=1e-5, budgets={"b": Budget(3.0)})
    terms = terms_for(level, Population(("a", "b"), np.array([200, 300]), noise_factors=planned), uses)
    for cost, budget in zip(terms.data.costs(), (1.0, 3.0), strict=True):
        charges = [
            (replace(cost, noise_multiplier=times(cost.noise_multiplier, factor)), int(used[0]))
            for factor, used in zip(np.asarray(terms.noise_factors), uses["statistic"], strict=True)
        ]
        assert 0.999 * budget < composition.epsilon(charges, 1e-5) <= budget


def test_a_run_without_such_a_method_has_even_noise() -> None:
    assert noise_factors([object()], [range(3)]) == ()  # type: ignore[list-item]


@pytest.mark.slow
def test_a_histogram_shows_where_targets_lie_through_noise_that_hides_their_mean() -> None:
    generator = np.random.default_rng(0)
    centres, count, noise = generator.normal(-0.6, 0.1, 20), 120, 0.12
    targets = jnp.asarray(centres[:, None] + generator.normal(0, 0.03, (20, count)), jnp.float32)
    places = jax.vmap(jax.vmap(lambda y: hats(y, target_range.NODES)))(targets).mean(axis=1)
    noisy = places + jnp.asarray(generator.normal(0, noise, places.shape), jnp.float32)
    public = (jnp.full(20, noise, jnp.float32), jnp.full(20, count, jnp.float32))
    habit = target_range.habit(noisy, *public)
    found = jax.vmap(target_range.whereabouts, in_axes=(0, 0, 0, None))(noisy, *public, habit)
    assert np.abs(np.asarray(found.centre) - centres).mean() < 0.03
    assert float(habit.centre) == pytest.approx(-0.6, abs=0.05)
    assert 0.02 < float(jnp.sqrt(found.variance.mean())) < 0.09


def exact_moments(x: np.ndarray) -> Moments:
    products, mean = np.einsum("kni,knj->kij", x, x) / x.shape[1], x.mean(axis=1)
    little = np.full(len(x), 1e-6)
    return Moments(*(jnp.asarray(leaf, jnp.float32) for leaf in (products, mean, little, little)))


@pytest.mark.slow
def test_without_noise_shapes_and_weights_are_those_of_least_squares() -> None:
    generator = np.random.default_rng(1)
    clients, rows, features = 30, 400, 3
    x = generator.normal(0, [0.3, 0.1, 0.5], (clients, rows, features)) + generator.normal(
        0, 0.1, (clients, 1, features)
    )
    truth = np.array([1.0, 0.5, -0.7]) + 0.3 * generator.normal(size=(clients, features))
    y = np.einsum("kni,ki->kn", x, truth) + 0.2 + 0.05 * generator.normal(size=(clients, rows))
    all_clients = exact_moments(x)
    shape = feature_shape.pooled_shape(all_clients, jnp.full(clients, 1 / clients, jnp.float32))
    curvature, error = jax.vmap(feature_shape.curvature, in_axes=(0, None))(all_clients, shape)
    z = np.concatenate([np.ones((clients, rows, 1)), x @ np.asarray(shape.turn)], axis=2)
    np.testing.assert_allclose(curvature, np.einsum("kni,knj->kij", z, z) / rows, atol=2e-3)
    assert float(error.max()) < 1e-3
    size = features + 1
    target, zeros = np.einsum("kni,kn->ki", z, y) / rows, np.zeros((clients, size))
    count = np.full(clients, rows)
    least = np.stack([np.linalg.lstsq(z[k], y[k], rcond=None)[0] for k in range(clients)])
    missed = np.square(y - np.einsum("kni,ki->kn", z, least)).mean(axis=1)
    shown = (curvature, target, zeros + 1e-8, count, least, missed, 0 * count)
    evidence = Evidence(*(jnp.asarray(leaf, jnp.float32) for leaf in shown))
    nobody = jax.tree.map(lambda leaf: leaf[None], linear_posterior.no_evidence(size))
    everybody = trees.concatenate([evidence, nobody])
    found = jax.jit(linear_posterior.fitted)(everybody, linear_posterior.first_prior(size))
    np.testing.assert_allclose(found.weights[:-1], least, atol=0.05)
    assert float(found.prior.residual) == pytest.approx(0.05**2, rel=0.3)
    np.testing.assert_allclose(found.weights[-1], found.prior.mean, atol=1e-6)


def test_it_is_for_linear_models_of_numbers() -> None:
    with pytest.raises(ValueError, match="linear models of numbers"):
        check_small(FewReleases(), Level.EXAMPLE, models.logistic(3), 3)


def federation(centre: float, scale: float) -> Federation:
    """Targets that lie in a small part of -1..1; clients differ in their constant."""
    generator = np.random.default_rng(5)
    clients, rows = 12, 80
    x = generator.uniform(-1, 1, (clients * rows, 3)).astype(np.float32)
    own = np.repeat(generator.normal(0, 1, clients), rows)
    y = centre + scale * (own + x @ [0.5, -1, 0.2] + 0.3 * generator.normal(size=len(x)))
    names = np.repeat([f"c{k:02d}" for k in range(clients)], rows)
    return from_rows(x, y.astype(np.float32), names, test_fraction=0.2)


@pytest.mark.slow
def test_a_wide_range_costs_little_and_models_follow_their_clients() -> None:
    errors = []
    for centre, scale in ((0.0, 0.25), (-0.5, 0.05)):
        level = example_level(epsilon=3.0)
        made = simulate(federation(centre, scale), "few_releases", level, rounds=7, training=Training(None))
        state = made.step(made.init(0), 7)
        assert 2.99 < made.epsilon(state) <= 3
        errors.append(float(np.mean(made.evaluate(state)["error"])) / scale**2)
    assert errors[0] < 0.3  # a constant of one's own misses 0.52 of these units, the noise alone is 0.09
    assert errors[1] < 1.5 * errors[0]


@pytest.mark.slow
def test_there_is_nothing_to_tune() -> None:
    phases, data = (Phase("few_releases", 7),), DataChoice("table", given=True)
    level, linear = example_level(epsilon=3.0), ModelChoice("linear")
    made = Experiment("few", 0, data=data, model=linear, training=Training(None), privacy=level, phases=phases)
    with pytest.raises(ConfigError, match="nothing to tune"):
        tune(made, Tuning(choices={"target_bound": (1.0, 2.0)}), federation(0.0, 0.2))
