"""Model-protected learning comes to rest at the optimum of what its docstring says; every release is used.

Least squares without noise: the optimum of the penalised sum is known by its slopes (Karush, Kuhn and Tucker).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from kinfolk import models, trees, types
from kinfolk.algorithms.covariance_regularized import CovarianceRegularized
from kinfolk.algorithms.schedules import Schedule
from kinfolk.algorithms.shrinkage import momentum, shrink_whole
from kinfolk.privacy.levels import Level
from kinfolk.training.build import as_array
from kinfolk.verify.registry_check import check_small

CLIENTS, ROWS, FEATURES, ODD = 40, 20, 6, (3, 17, 31)


@trees.register
@dataclass(frozen=True)
class Rows:
    """What the method sees of a data gate before least squares."""

    x: Any
    y: Any
    round: Any
    steps: Any
    model: models.Model = field(default=models.linear(FEATURES), metadata={"static": True})
    size: int = field(default=ROWS, metadata={"static": True})

    def examples(self) -> types.Rows:
        y = self.y if self.model.outcome == "labels" else self.y[:, 0]
        return types.Rows(self.x[:, :-1], y, jnp.ones(ROWS, bool))


def rows(odd: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a constant; models of rank 2, and a few clients like nobody else."""
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.normal(size=(CLIENTS, ROWS, FEATURES)), np.ones((CLIENTS, ROWS, 1))], axis=2)
    truth = generator.normal(size=(CLIENTS, 2)) @ generator.normal(size=(2, FEATURES + 1))
    if odd:
        truth[list(ODD)] = 5 * generator.normal(size=(len(ODD), FEATURES + 1))
    y = np.einsum("mnd,md->mn", x, truth) + 0.3 * generator.normal(size=(CLIENTS, ROWS))
    return x.astype(np.float32), y.astype(np.float32)[..., None]


@jax.jit
def trained(
    algorithm: CovarianceRegularized, x: Array, y: Array, rounds: int, steps: int = 1
) -> tuple[Any, Any, Array]:
    """The shared state, all clients' states and models after some rounds, with the exact moment for a release."""
    params = ({"weights": jnp.zeros((FEATURES, 1)), "bias": jnp.zeros(1)},)
    shared = algorithm.init(params, CLIENTS)
    personal = jax.vmap(lambda slot: algorithm.init_client(shared, slot))(jnp.arange(CLIENTS))
    personal = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (CLIENTS, *leaf.shape[1:])), personal)

    def one_round(number: Array, state: Any) -> Any:
        shared, personal = state
        of_client = lambda own, x, y: algorithm.client(shared, own, Rows(x, y, number, steps))[:2]  # type: ignore  # noqa: E731
        sent, personal = jax.vmap(of_client)(personal, x, y)
        stacked = sent[:, :, 0]
        moment = stacked.T @ stacked if algorithm.pattern == "low_rank" else jnp.square(stacked).sum(axis=0)
        return {**shared, "moment": moment, "known": jnp.float32(1)}, personal

    shared, personal = jax.lax.fori_loop(0, rounds, one_round, (shared, personal))
    found = jax.vmap(partial(algorithm.model, shared))(personal)[0]
    return shared, personal, jnp.concatenate([found["weights"][:, :, 0], found["bias"]], axis=1)


def slopes(x: np.ndarray, y: np.ndarray, found: np.ndarray) -> np.ndarray:
    missed = np.einsum("mnd,md->mn", x, found) - y[..., 0]
    return np.einsum("mnd,mn->md", x, missed) / ROWS


@pytest.mark.parametrize(
    ("ridge", "condition", "steps"), [(0.0, 0.0, 1), (0.2, 0.0, 1), (0.2, 0.05, 1), (0.0, 0.0, 5), (0.0, 0.0, 100)]
)
@pytest.mark.parametrize("pattern", ["low_rank", "group_sparse"])
def test_the_optimum_is_reached(pattern: str, ridge: float, condition: float, steps: int) -> None:
    """The slopes of the losses are minus those of the penalties, whichever the momentum is, and whatever number of
    local steps a round has for other methods."""
    x, y = rows(odd=False)
    algorithm = CovarianceRegularized(1.0, 0.2, ridge=ridge, condition=condition, pattern=pattern)
    _, _, found = trained(as_array(algorithm), x, y, 400, steps)
    found = np.asarray(found, float)
    left = -slopes(x, y, found) - ridge * found
    if pattern == "low_rank":
        axes, values, others = np.linalg.svd(found, full_matrices=False)
        used = values > 1e-3
        assert 2 <= used.sum() <= FEATURES
        np.testing.assert_allclose(axes[:, used].T @ left @ others[used].T, np.eye(used.sum()), atol=5e-3)
        assert np.linalg.norm(left, 2) < 1.005
    else:
        norms = np.linalg.norm(found, axis=0)
        np.testing.assert_allclose(left, found / norms, atol=5e-3)


def test_decomposed_models_keep_clients_like_nobody_else_apart() -> None:
    """Where a client has a part of its own, its slope has the length of that penalty; elsewhere it is shorter."""
    x, y = rows(odd=True)
    algorithm = CovarianceRegularized(1.0, 0.1, outliers=0.8)
    shared, personal, found = trained(as_array(algorithm), x, y, 1500)
    part, own = jax.vmap(partial(as_array(algorithm).parts, shared))(personal)
    lengths = np.linalg.norm(np.asarray(own)[:, :, 0], axis=1)
    assert set(np.flatnonzero(lengths > 0)) == set(ODD)
    left = np.linalg.norm(slopes(x, y, np.asarray(found, float)), axis=1)
    np.testing.assert_allclose(left[list(ODD)], 0.8, atol=5e-3)
    assert left.max() < 0.805
    assert np.linalg.norm(slopes(x, y, np.asarray(found, float)), 2) < 1.01
    _, _, together = trained(as_array(CovarianceRegularized(1.0, 0.1)), x, y, 1500)
    apart, mixed = (np.linalg.svd(part, compute_uv=False) for part in (np.asarray(part)[:, :, 0], np.asarray(together)))
    assert apart[2] < 0.2 * apart[1], "what is shared has nearly the rank of the clients who share"
    assert mixed[2] > 0.5 * mixed[1]


def test_the_last_release_is_used() -> None:
    """A client's model after n rounds is the one before its (n + 1)th step: shrunk with the nth release."""
    x, y = rows(odd=False)
    algorithm = as_array(CovarianceRegularized(0.4, 0.2))
    shared, personal, found = trained(algorithm, x, y, 3)
    _, after, _ = trained(algorithm, x, y, 4)
    np.testing.assert_allclose(found, np.asarray(after["shrunk"])[:, :, 0], atol=1e-5)
    assert np.abs(np.asarray(found) - np.asarray(personal["model"])[:, :, 0]).max() > 1e-3
    assert np.isfinite(np.asarray(shared["moment"])).all()


def sent(algorithm: CovarianceRegularized, model: models.Model, released: float, number: int) -> tuple[Any, Any]:
    """What a client that was never there before sends in a round, and keeps."""
    x, y = rows(odd=False)
    shared = algorithm.init(model.init(jax.random.key(0)), CLIENTS)
    shared |= {"moment": released * jnp.eye(FEATURES + 1), "known": jnp.float32(released > 0)}
    if model.outcome == "count":
        y = np.abs(np.rint(y))
    if model.outcome == "labels":
        y = np.concatenate([y > 0, y > 1], axis=-1).astype(np.uint8)
    gate: Any = Rows(x[0], y[0], jnp.int32(number), jnp.int32(1), model=model)
    return algorithm.client(shared, algorithm.init_client(shared, jnp.int32(0)), gate)[:2]


def test_the_first_message_is_the_fit_alone_whenever_it_comes() -> None:
    x, y = (part[0].astype(float) for part in rows(odd=False))
    for ridge, penalty in ((0.0, 0.01), (0.5, 0.5 * ROWS)):
        algorithm = as_array(CovarianceRegularized(ridge=ridge, condition=0.1, outliers=0.2))
        alone = np.linalg.solve(x.T @ x + penalty * np.eye(FEATURES + 1), x.T @ y)
        for released, number in ((0.0, 0), (9.0, 5)):
            message, kept = sent(algorithm, models.linear(FEATURES), released, number)
            np.testing.assert_allclose(message, alone, atol=1e-4)
            np.testing.assert_array_equal(kept["shrunk"], message)
            assert not np.asarray(kept["own"]).any()
            assert kept["turns"] == 1


@pytest.mark.parametrize("outcome", ["count", "labels"])
def test_where_there_is_no_such_fit_the_first_message_is_a_step_from_zero(outcome: str) -> None:
    x, y = (part[0].astype(float) for part in rows(odd=False))
    message, _ = sent(as_array(CovarianceRegularized()), models.generalized_linear(FEATURES, outcome, 2), 0.0, 0)
    missed = (
        np.abs(np.rint(y)) - 1 if outcome == "count" else (np.concatenate([y > 0, y > 1], axis=-1) - 0.5) / np.sqrt(2)
    )
    np.testing.assert_allclose(message, 0.5 * x.T @ missed / ROWS, atol=1e-6)


def test_step_sizes_may_fall() -> None:
    """The step that was taken is the one that the proximal step belongs to: the same optimum."""
    x, y = rows(odd=False)
    algorithm = as_array(CovarianceRegularized(1.0, Schedule(0.2, factor=0.5, every=100)))
    fixed, falling = (trained(a, x, y, 400)[2] for a in (as_array(CovarianceRegularized(1.0, 0.2)), algorithm))
    np.testing.assert_allclose(falling, fixed, atol=5e-3)


@pytest.mark.parametrize("exact", [False, True])
def test_a_part_of_ones_own_releases_nothing_more(exact: bool) -> None:
    usual, own = (
        check_small(as_array(CovarianceRegularized(outliers=o)), Level.CLIENT, models.linear(3), 3, exact=exact)
        for o in (np.inf, 0.5)
    )
    assert usual.violations == own.violations == ()
    assert usual.releases == own.releases


def test_pieces() -> None:
    assert float(momentum(1, 0.0)) == 0
    assert float(momentum(4, 0.0)) == pytest.approx(0.5)
    assert float(momentum(4, 0.25)) == pytest.approx(1 / 3)
    model = jnp.array([[3.0], [4.0]])
    np.testing.assert_allclose(shrink_whole(model, 1.0), 0.8 * model)
    for amount in (5.0, np.inf):
        assert not np.asarray(shrink_whole(model, amount)).any()
    assert not np.asarray(shrink_whole(0 * model, np.inf)).any()
