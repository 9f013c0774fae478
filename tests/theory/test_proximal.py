"""Lemmas 2 and 3 and proposition 1 of Liang et al. on many drawn cases."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk.theory import proximal as theory


def drawn(generator: np.random.Generator, semidefinite: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Models of any rank and unit, noise of any size, a threshold from a hundredth of the models' to 4 times."""
    features, clients = generator.integers(1, 5), generator.integers(1, 6)
    rank = generator.integers(1, min(features, clients) + 1)
    models = generator.normal(size=(features, rank)) @ generator.normal(size=(rank, clients))
    models *= 10 ** generator.uniform(-3, 2)
    size = float(np.linalg.norm(models, 2))
    noise = generator.normal(size=(features, features))
    noise = noise @ noise.T if semidefinite else noise + noise.T
    noise *= size**2 * 10 ** generator.uniform(-6, 3) / np.linalg.norm(noise, 2)
    return models, noise, size * 10 ** generator.uniform(-2, 0.6)


@pytest.mark.parametrize("semidefinite", [True, False])
def test_lemma_2_holds_where_its_condition_does(semidefinite: bool) -> None:
    """At most a tenth of its bound where a direction is above the threshold, a quarter where it has nothing to say."""
    generator, shares = np.random.default_rng(0), {True: [0.0], False: [0.0]}
    for _ in range(900):
        models, noise, threshold = drawn(generator, semidefinite)
        if theory.gap_needed(models, noise, threshold) <= 1:
            share = theory.low_rank_excess(models, noise, threshold) / theory.low_rank_bound(models, noise, threshold)
            shares[bool(np.linalg.norm(models, 2) > threshold)].append(share)
    assert min(len(found) for found in shares.values()) > 100
    assert 0 < max(shares[True]) < 0.1 < max(shares[False]) <= 0.25


def test_a_quarter_of_lemma_2s_bound_is_reached_where_nothing_is_above_the_threshold() -> None:
    models, noise = np.array([[0.01]]), np.array([[4.0]])
    assert theory.gap_needed(models, noise, 1.0) == 0
    for size, share in ((1.0, 0.2457), (1e-4, 0.25)):
        found = theory.low_rank_excess(size * models, noise, 1.0) / theory.low_rank_bound(size * models, noise, 1.0)
        assert found == pytest.approx(share, abs=1e-4)


def test_both_bounds_symbol_for_symbol() -> None:
    """Lemmas 2 and 3 with two of three directions, or rows, above the threshold, and a row without anything."""
    generator, threshold = np.random.default_rng(7), 0.6
    left, right = (np.linalg.qr(generator.normal(size=(size, 3)))[0] for size in (4, 5))
    noise = np.diag([0.3, -0.8, 0.2, 0.1])
    found = theory.low_rank_bound((left * [2.0, 0.9, 0.4]) @ right.T, noise, threshold)
    first = (2**2 / threshold + 2 * 2) * 0.8 + (3 - 2) * np.sqrt(0.8)
    assert found == pytest.approx((2.0**2 / threshold + 2.0) * first)
    rows = np.array([2.0, 0.0, 0.9, 0.4])[:, None] * right[:4] / np.linalg.norm(right[:4], axis=1, keepdims=True)
    found = theory.group_sparse_bound(rows, np.diag(noise), threshold)
    first = 2 / (2 * threshold) * 0.8 + (3 - 2) * np.sqrt(0.8)
    assert found == pytest.approx((3 / threshold * 2.0**2 + 2.0) * first)


@pytest.mark.parametrize("semidefinite", [True, False])
def test_lemma_3_holds(semidefinite: bool) -> None:
    generator, largest = np.random.default_rng(1), 0.0
    for _ in range(600):
        models, noise, threshold = drawn(generator, semidefinite)
        diagonal = np.diag(noise)
        share = theory.group_sparse_excess(models, diagonal, threshold)
        largest = max(largest, share / theory.group_sparse_bound(models, diagonal, threshold))
    assert 0.05 < largest <= 1


def test_the_excess_is_of_second_order_and_the_bounds_of_first() -> None:
    generator = np.random.default_rng(2)
    models, noise, _ = drawn(generator, True)
    models = generator.normal(size=(4, 6))
    noise = np.diag([0.5, 0.2, 0.9, 0.4])
    for excess, bound, how in (
        (theory.low_rank_excess, theory.low_rank_bound, noise),
        (theory.group_sparse_excess, theory.group_sparse_bound, np.diag(noise)),
    ):
        assert excess(models, 1e-2 * how, 0.3) / excess(models, 1e-3 * how, 0.3) == pytest.approx(100, rel=0.1)
        assert bound(models, 1e-2 * how, 0.3) / bound(models, 1e-3 * how, 0.3) == pytest.approx(10)


def test_without_noise_the_steps_are_exact() -> None:
    models = np.random.default_rng(3).normal(size=(4, 6))
    assert theory.low_rank_excess(models, np.zeros((4, 4)), 0.7) == pytest.approx(0, abs=1e-12)
    assert theory.group_sparse_excess(models, np.zeros(4), 0.7) == pytest.approx(0, abs=1e-12)


def test_the_condition_depends_on_the_unit_of_features() -> None:
    """The same problem in other units: models c times as long, their moment and its noise c^2 times."""
    models, noise = np.random.default_rng(4).normal(size=(4, 6)), np.eye(4)
    needed = [theory.gap_needed(c * models, c**2 * noise, c * 0.1) for c in (1e-4, 1.0, 1e4)]
    assert needed[0] < 1 < needed[1] < needed[2]


def test_the_condition_fails_in_the_papers_own_experiment() -> None:
    """30 features, 320 clients, epsilon 0.1, the printed scale 2K / (2 epsilon): hundreds of times too much noise."""
    generator = np.random.default_rng(5)
    models = generator.normal(size=(30, 5)) @ generator.normal(size=(5, 320))
    models /= np.linalg.norm(models, axis=0)
    normal = np.sqrt(2 / (2 * 0.1)) * generator.normal(size=(30, 31))
    assert theory.gap_needed(models, normal @ normal.T, 1.0) > 500


def test_proposition_1() -> None:
    """Strong positive noise: models stay as they are, at the rate that the smallest eigenvalue sets. Others vanish."""
    threshold = 0.5
    for clients, size in ((6, 1e2), (6, 1e4), (6, 1e6), (2, 1e4)):  # the last: fewer clients than features
        models = np.random.default_rng(6).normal(size=(4, clients))
        for found in (
            theory.shrunk_low_rank(models, size * np.eye(4), threshold),
            theory.shrunk_group_sparse(models, np.full(4, size), threshold),
        ):
            assert np.linalg.norm(found - models) <= threshold / np.sqrt(size) * np.linalg.norm(models)
    assert not theory.shrunk_low_rank(models, -1e6 * np.eye(4), threshold).any()
