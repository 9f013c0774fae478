"""Every algorithm at every level: a newcomer is tested by being listed."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models, trees
from kinfolk.algorithms import REGISTRY
from kinfolk.engines import resident
from kinfolk.engines.release_counts import count_uses
from kinfolk.privacy.levels import Level
from kinfolk.training import run_directory
from kinfolk.training.build import as_sweep
from kinfolk.training.prepare import check_job
from kinfolk.verify.registry_check import check_registry, check_small
from tests.conformance.worlds import (
    CLOSELY,
    CORE,
    GRAPH,
    PAIRS,
    PRIVATE,
    QUICK,
    ROUNDS,
    pairs,
    replay_problems,
    variant,
    with_changed_client,
    with_changed_row,
    world,
)

every = pairs(CLOSELY, fast=QUICK)
closely = pairs(CLOSELY, fast=[CORE])
private = pairs(PRIVATE, fast=[CORE])
RELEASED = [
    CORE,
    ("few_releases", "example"),
    ("ifca", "example"),
    ("fedavg", "client"),
    ("joint", "client"),
    (GRAPH, "client"),
    ("covariance_regularized", "client"),
]
"""Gradients, statistics, choices, sums, mixtures and second moments."""


def leaves(state: object) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves((state.shared, state.personal))]  # type: ignore[attr-defined]


def assert_close(a: object, b: object, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def assert_equal(a: object, b: object) -> None:
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def moved(name: str, personal: object, order: jax.Array) -> object:
    """Personal states in another order; a place number stays with the place."""
    numbered = name in ("mocha", "relation_regularized", GRAPH, "joint", "few_releases", "few_releases_binary")
    return jax.tree.map(lambda leaf: leaf if numbered and leaf.dtype == jnp.int32 else leaf[order], personal)


@closely
def test_a_run_moves_and_keeps_shapes(name: str, level: str) -> None:
    w = world(name, level)
    before, after = resident.start(w.plan, w.algorithm, jax.random.key(0)), w.run()
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert [x.shape for x in leaves(before)] == [x.shape for x in leaves(after)]
    assert all(np.isfinite(x).all() for x in leaves(after))
    assert any((x != y).any() for x, y in zip(leaves(before), leaves(after), strict=True))


@every
def test_same_seed_same_result_other_seed_other_result(name: str, level: str) -> None:
    w = world(name, level)
    assert_equal(w.run(seed=1), w.run(seed=1))
    if name in ("empirical_bayes", "covariance_regularized") and level == "none":
        return  # nothing is drawn: no batches, no noise
    assert any((x != y).any() for x, y in zip(leaves(w.run(seed=1)), leaves(w.run(seed=2)), strict=True))


ROUNDING = {"few_releases": 1e-3, "few_releases_binary": 1e-3, "empirical_bayes": 1e-4, "covariance_regularized": 1e-4}
"""Relative: many turns of EM, and equations that are solved, in float32."""
NEAR_ZERO = {"covariance_regularized": 1e-5}
"""Absolute: weights near 0 that come from such equations together with others that are not."""


@pairs(CLOSELY, fast=[])
def test_vectorised_equals_one_by_one(name: str, level: str) -> None:
    """Seeds, sweep points, client blocks and the round loop change nothing."""
    w = world(name, level)
    close = {"rtol": ROUNDING.get(name, 1e-5), "atol": NEAR_ZERO.get(name, 1e-6)}
    points, seeds = 2, 3
    algorithms, terms = as_sweep(w.algorithm, points), as_sweep(w.terms, points)
    clients = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seeds, *leaf.shape)), w.clients)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds, dtype=jnp.uint32))
    states = resident.start_all(w.plan, algorithms, keys)
    states = resident.run_rounds(w.plan, algorithms, terms, clients, states, jnp.int32(0), jnp.int32(ROUNDS))
    for point in range(points):
        for seed in range(seeds):
            assert_close(trees.row(states, (point, seed)), w.run(seed=seed), **close)
    assert_close(world(name, level, blocks=1).run(), w.run(), **close)


@every
def test_chunks_of_rounds_change_nothing(name: str, level: str) -> None:
    w = world(name, level)
    assert_equal(w.run(), w.run(w.run(end=1), begin=1))


@closely
def test_order_of_clients_does_not_matter_without_noise(name: str, level: str) -> None:
    """With streams that move along with their clients, a permutation of clients permutes personal states only."""
    if (name, level) in (("joint", "client"), (GRAPH, "client")):
        pytest.skip("what is published for every client has noise of its own, which stays with the place")
    w = world(name, level, blocks=1)
    order = jnp.array([3, 0, 4, 1, 2])
    rows = w.clients.blocks[0]
    clients = trees.row(w.clients, order)
    clients = replace(clients, blocks=(trees.row(rows, order),))
    other_world = replace(w, clients=clients, terms=replace(w.terms, data=trees.row(w.terms.data, order)))
    if name == GRAPH:
        algorithm: Any = w.algorithm
        other_world = replace(other_world, algorithm=replace(algorithm, omega=algorithm.omega[order][:, order]))
    start = resident.start(w.plan, w.algorithm, jax.random.key(0))
    permuted = replace(start, personal=moved(name, start.personal, order), meters=trees.row(start.meters, order))
    plain, other = w.run(start), other_world.run(permuted)
    back = jnp.argsort(order)
    if name in ("mocha", "joint", GRAPH):  # one model per client in the shared state
        other = replace(other, shared=trees.row(other.shared, back))
    if name == "few_releases_binary":
        other = replace(other, shared=replace(other.shared, weights=other.shared.weights[back]))
    if name == "few_releases":
        begun, current = trees.row((other.shared.start, other.shared.current), back)
        other = replace(other, shared=replace(other.shared, start=begun, current=current))
    back_again = replace(other, personal=moved(name, other.personal, back))
    assert_close(plain, back_again, rtol=1e-3, atol=NEAR_ZERO.get(name, 1e-6))


@every
def test_uses_are_counted_on_the_program_and_bounded_by_the_trace(name: str, level: str) -> None:
    w = world(name, level)
    counted = count_uses(w.plan, w.algorithm, w.terms, w.clients, range(ROUNDS))
    after = w.run()
    check = check_job(w.plan, w.algorithm, w.terms, jax.tree.map(lambda leaf: leaf[None], w.clients)).require()
    for kind in Level(level).data_kinds:
        assert np.array_equal(counted[kind].sum(axis=0), after.meters.uses[kind])
        assert counted[kind].max() <= check.client_releases.get(kind, 0)
    for kind in Level(level).inbox_kinds:
        assert counted[kind].sum() == after.server.uses[kind]
        assert counted[kind].max() <= check.server_releases.get(kind, 0)
    assert not set(check.client_releases) - set(Level(level).data_kinds)
    assert not set(check.server_releases) - set(Level(level).inbox_kinds)


@private
def test_what_is_compiled_is_what_was_checked(name: str, level: str) -> None:
    """With gathered cohorts too: a plan that compiles nothing but what was checked can be traced."""
    for cohort in (None, 2.0) if level == "client" else (None,):
        w = world(name, level, blocks=2 if cohort is None else 1, cohort=cohort)
        if cohort:
            sampling = replace(w.terms.inbox.sampling, capacity=4)
            w = replace(w, terms=replace(w.terms, inbox=replace(w.terms.inbox, sampling=sampling)))
        check = check_job(w.plan, w.algorithm, w.terms, jax.tree.map(lambda leaf: leaf[None], w.clients))
        plan = replace(w.plan, programs=check.programs)
        state = jax.eval_shape(lambda key, w=w, plan=plan: resident.start(plan, w.algorithm, key), jax.random.key(0))
        one_round = partial(resident.one_round, plan, w.algorithm, w.terms)
        after = jax.eval_shape(one_round, w.clients, state, jnp.int32(1))
        assert jax.tree.structure(after) == jax.tree.structure(state)


@private
def test_replay_changes_nothing_else(name: str, level: str) -> None:
    replay_is_clean(name, level, exact=False)


@pairs(RELEASED, fast=[])
def test_replay_of_a_release_changes_nothing_else(name: str, level: str) -> None:
    """With noise from the operating system, and sums on the grid."""
    replay_is_clean(name, level, exact=True)


def replay_is_clean(name: str, level: str, exact: bool) -> None:
    w = world(name, level)
    change = with_changed_row(w.clients, 1, 0, 2) if level == "example" else with_changed_client(w.clients, 1, 0)
    assert replay_problems(w, change, exact) == []


@private
def test_the_program_of_a_release_passes_the_flow_check(name: str, level: str) -> None:
    method, options = variant(name, clients=3)
    entry = REGISTRY[method]
    model = models.generalized_linear(3, entry.outcome)
    found = check_small(entry.build(**options), Level(level), model, 3, exact=True)
    assert found.violations == ()


@pairs([pair for pair in CLOSELY if pair[1] == "client"], fast=[("mean_regularized", "client")])
def test_gathered_cohorts_equal_masked_ones(name: str, level: str) -> None:
    w = world(name, level, blocks=1, cohort=2.0)
    sampling = replace(w.terms.inbox.sampling, capacity=4)
    gathered = replace(w, terms=replace(w.terms, inbox=replace(w.terms.inbox, sampling=sampling)))
    assert_close(w.run(), gathered.run())
    assert any((x != y).any() for x, y in zip(leaves(w.run()), leaves(world(name, level).run()), strict=True))


@every
def test_save_and_load(name: str, level: str, tmp_path: Path) -> None:
    state = world(name, level).run()
    run_directory.write_tree(tmp_path / "state.npz", (state.shared, state.personal), round=np.int64(3))
    (shared, personal), extra = run_directory.read_tree(tmp_path / "state.npz", (state.shared, state.personal))
    assert_equal(state, replace(state, shared=shared, personal=personal))
    assert extra["round"] == 3


@pytest.mark.slow
def test_check_command_covers_the_registry() -> None:
    rows = check_registry()
    assert [(row["method"], row["level"]) for row in rows] == PAIRS
    assert all(row["violations"] == [] for row in rows)


@pytest.mark.parametrize("name", REGISTRY)
def test_entries_are_complete(name: str) -> None:
    entry = REGISTRY[name]
    assert entry.paper
    assert entry.title
    assert (entry.make.__doc__ or "").strip()
    assert set(entry.options()) == {f.name for f in fields(entry.make)}
    with pytest.raises(ValueError, match="has no option 'nonsense'"):
        entry.build(nonsense=1)
    for option in (f.name for f in fields(entry.make) if isinstance(f.default, bool)):
        with pytest.raises(ValueError, match="must be true or false"):
            entry.build(**{option: "false"})
