"""Where training with a relation between clients comes to rest: all of them, and cohorts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from docs.build.methods import page
from kinfolk import Experiment, Phase, Training, client_level, from_rows, run
from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.relations import laplacian, omega_of
from tests.algorithms.quadratics import STEPS, WEIGHTS, at_rest, build, left_after, losses, optimum


def first_fast(values: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the first, and, in the full run, the others."""
    return [pytest.param(value, marks=pytest.mark.slow) if place else value for place, value in enumerate(values)]


def papers_optimum(omega: np.ndarray, strength: float) -> np.ndarray:
    """Minimises `sum of losses + strength/2 sum_kl Omega_kl <w_k, w_l>`, Omega's diagonal 1 on average."""
    bends, minima = losses(len(omega))
    pulled = strength * np.kron(omega / np.diag(omega).mean(), np.eye(WEIGHTS))
    slopes = np.einsum("kij,kj->ki", bends, minima)
    return np.linalg.solve(scipy.linalg.block_diag(*bends) + pulled, slopes.ravel()).reshape(slopes.shape)


@pytest.mark.parametrize("signs", first_fast([[[1, -1, 1, 1], [1, 1, -1, -1]], [[1, 1, 1, 1], [1, 1, 1, 1]]]))
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


@pytest.mark.parametrize("what", first_fast(OMEGAS))
def test_omega_minimises_the_papers_objective(what: str) -> None:
    """`sum of losses + strength/2 tr(W Omega W^T)`; a graph's Laplacian with its signs; who has no edge is alone."""
    ids = tuple("abcd")
    omega = omega_of((OMEGAS[what] + OMEGAS[what].T) / 2, ids)
    found, _ = at_rest(build("relation_regularized", pull="step", omega=omega), (1.0, 3.0), rounds=200)
    for number, strength in enumerate((1.0, 3.0)):
        best = papers_optimum(omega, strength)
        for own in found[number]:
            np.testing.assert_allclose(own, best, atol=2e-3)


def joined(pairs: Iterable[tuple[int, int]], clients: int) -> np.ndarray:
    weights = np.zeros((clients, clients), np.float32)
    for one, other in pairs:
        weights[one, other] = weights[other, one] = 1
    return weights


MANY = 12
GRAPHS = {
    "pairs": joined(((k, k + 1) for k in range(0, MANY, 2)), MANY),
    "path": joined(((k, k + 1) for k in range(MANY - 1)), MANY),
    "ring": joined(((k, (k + 1) % MANY) for k in range(MANY)), MANY),
    "a pair, a path of three, others alone": joined([(0, 1), (2, 3), (3, 4)], MANY),
    "all are neighbours": 1 - np.eye(MANY, dtype=np.float32),
}


@pytest.mark.parametrize("what", first_fast(GRAPHS))
@pytest.mark.parametrize("rate", first_fast((1 / 10, 1 / 3)))
def test_a_graph_in_cohorts_minimises_the_same(what: str, rate: float) -> None:
    """However seldom neighbours meet, and however strong the pull."""
    omega, strengths = laplacian(GRAPHS[what]), (0.0, 1.0, 10.0)
    found, _ = at_rest(build("relation_regularized", pull="step", omega=omega), strengths, (1, 5), MANY, 600, rate)
    for own, strength in zip(found, strengths, strict=True):
        np.testing.assert_allclose(own, np.tile(papers_optimum(omega, strength), (2, 1, 1)), atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("what", GRAPHS)
def test_a_pull_once_a_round_rests_in_cohorts_where_it_does_with_all(what: str) -> None:
    algorithm = build("relation_regularized", pull="round", omega=laplacian(GRAPHS[what]))
    everybody, _ = at_rest(algorithm, (1.0, 10.0), (1, 5), MANY, 600)
    cohorts, _ = at_rest(algorithm, (1.0, 10.0), (1, 5), MANY, 600, 1 / 10)
    np.testing.assert_allclose(cohorts, everybody, atol=2e-3)


def averaged(parts: Iterable[list[int]], steps: int) -> np.ndarray:
    """What federated averaging of so many steps gives each of these parts of the clients; who is in none is alone."""
    bends, minima = losses(MANY)
    found = minima.copy()
    for part in parts:
        found[part] = optimum(np.eye(WEIGHTS) - left_after(bends[part], steps), minima[part], np.inf)
    return found


PARTS = {
    "pairs": [[k, k + 1] for k in range(0, MANY, 2)],
    "path": [list(range(MANY))],
    "a pair, a path of three, others alone": [[0, 1], [2, 3, 4]],
}
"""Who is joined, by whatever way."""


@pytest.mark.parametrize("what", first_fast(PARTS))
@pytest.mark.parametrize("rate", first_fast((1.0, 1 / 3)))
def test_infinite_strength_is_averaging_over_all_who_are_joined(what: str, rate: float) -> None:
    """Not over neighbours alone, who would give each other their models and never meet."""
    algorithm = build("relation_regularized", pull="step", omega=laplacian(GRAPHS[what]))
    found, _ = at_rest(algorithm, (np.inf,), (1, 5, 20), MANY, 400, rate)
    for own, steps in zip(found[0], (1, 5, 20), strict=True):
        np.testing.assert_allclose(own, averaged(PARTS[what], steps), atol=0.02)


@pytest.mark.slow
def test_infinite_strength_gives_opposites_one_model_turned_round() -> None:
    """Clients 1 and 3 are opposites of 0 and 2: averaging, as if their losses were turned round."""
    weights = np.array([[0, -1, 0, 0], [-1, 0, -1, 0], [0, -1, 0, -1], [0, 0, -1, 0]], np.float32)
    found, _ = at_rest(
        build("relation_regularized", pull="step", omega=laplacian(weights)), (np.inf,), (1,), rounds=400
    )
    bends, minima = losses(4)
    signs = np.array([1, -1, 1, -1])[:, None]
    np.testing.assert_allclose(found[0, 0], signs * optimum(bends, signs * minima, np.inf), atol=5e-3)


def test_a_strong_pull_takes_no_more_rounds() -> None:
    """What joins neighbours does not hold back all of them together."""
    omega = laplacian(GRAPHS["ring"])
    found, _ = at_rest(build("relation_regularized", pull="step", omega=omega), (30.0,), (1,), MANY, 30)
    best = papers_optimum(omega, 30.0)
    assert np.abs(found[0, 0] - best).max() < 0.02 * np.abs(best).max()


COHORTS: dict[str, Any] = {"steps": (1, 5), "clients": MANY, "rounds": 600}


@pytest.mark.parametrize("size", first_fast((2, 3, 6)))
def test_small_groups_are_bounded_in_cohorts(size: int) -> None:
    """Of whom fewer than one is expected: a group's model moves as far as whoever comes says, and no further."""
    relation = np.kron(np.eye(MANY // size), np.ones((1, size))).astype(np.float32)
    bends, minima = losses(MANY)
    for pull in ("step", "round"):
        found, _ = at_rest(build("relation_regularized", pull=pull, relation=relation), rate=1 / 10, **COHORTS)
        assert np.abs(found).max() <= 1.2 * np.abs(minima).max()
    near = [optimum(bends[k : k + size], minima[k : k + size], 3.0) for k in range(0, MANY, size)]
    found, _ = at_rest(build("relation_regularized", pull="step", relation=relation), rate=1 / 3, **COHORTS)
    assert np.abs(found[2] - np.concatenate(near)).mean() < 0.6 * np.abs(minima - np.concatenate(near)).mean()


def test_a_weighted_member_overshoots_no_more_than_others() -> None:
    """Who counts little is divided by what the group's largest counts."""
    relation = np.array([[1, 0.2, 0, 0], [0, 0, 1, -3]], np.float32)
    found, _ = at_rest(build("relation_regularized", pull="step", relation=relation), rounds=600, rate=1 / 10)
    assert np.abs(found).max() <= 1.2 * np.abs(losses(4)[1]).max()


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "cohort"), [(0.05, 3.0), (0.3, 10.0)])
def test_a_true_graph_of_pairs_helps_under_noise_too(noise: float, cohort: float, tmp_path: Path) -> None:
    """30 clients with 10 rows each, in pairs that want nearly the same; by the public doors."""
    generator = np.random.default_rng(0)
    wanted = np.repeat(generator.normal(0, 0.5, (15, 5)), 2, axis=0) + 0.1 * generator.normal(size=(30, 5))
    x = generator.uniform(-1, 1, (30, 10, 5))
    y = np.einsum("krd,kd->kr", x, wanted) + 0.3 * generator.normal(size=(30, 10))
    ids = [f"c{k:02d}" for k in range(30)]
    data = from_rows(x.reshape(-1, 5), y.ravel(), np.repeat(ids, 10), name="pairs", test_fraction=0.0)
    level, errors = client_level(noise_multiplier=noise, cohort=cohort), []
    for relation in ({}, {"graph": {ids[k]: [ids[k + 1]] for k in range(0, 30, 2)}}):
        phase = Phase("relation_regularized", 100, {"step_size": 0.3, **relation})
        experiment = Experiment(seed=0, privacy=level, training=Training(None, epochs=5), phases=(phase,))
        with np.load(next(run(experiment, tmp_path, data=data).path.glob("*/models.npz"))) as file:
            errors.append(np.square(file["[0]['weights']"][:, :, 0] - wanted).sum())
    assert errors[1] < 0.8 * errors[0]


def test_the_methods_page_names_what_people_give() -> None:
    entry = REGISTRY["relation_regularized"]
    text = page(entry, {(entry.name, level): {} for level in entry.levels}, "")
    for name in ("groups", "graph", "relation", "omega"):
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert len(row.split("|")[3]) > 20
    assert "[phases.options.groups]" in text
