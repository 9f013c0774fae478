"""Clients that are made: everybody gets rows, as unequal as asked for."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk.data import partition
from kinfolk.data.federation import DataError

LABELS = np.arange(3000) % 10


def classes_of(owner: np.ndarray, client: int) -> int:
    return len(np.unique(LABELS[owner == client]))


def test_dirichlet_clients_are_as_unlike_as_the_concentration_says() -> None:
    apart, alike = (partition.dirichlet(LABELS, clients=12, concentration=c, seed=1) for c in (0.05, 1000.0))
    for owner in (apart, alike):
        assert np.bincount(owner, minlength=12).min() >= 1
        assert len(owner) == len(LABELS)
    assert np.mean([classes_of(apart, k) for k in range(12)]) < 6
    assert all(classes_of(alike, k) == 10 for k in range(12))
    assert np.ptp(np.bincount(alike)) < 40
    again = partition.dirichlet(LABELS, clients=12, concentration=0.05, seed=1)
    np.testing.assert_array_equal(apart, again)
    assert np.bincount(partition.dirichlet(LABELS, clients=5, concentration=0.3, least=200)).min() >= 200


@pytest.mark.parametrize("classes", [1, 3, 7, 10])
def test_every_client_has_so_many_classes(classes: int) -> None:
    owner = partition.classes_per_client(LABELS, clients=20, classes=classes, seed=2)
    assert [classes_of(owner, k) for k in range(20)] == [classes] * 20
    assert (owner >= 0).all()


def test_classes_that_nobody_was_dealt_are_left_out() -> None:
    owner = partition.classes_per_client(LABELS, clients=2, classes=2, seed=0)
    assert set(owner.tolist()) == {-1, 0, 1}
    assert (owner >= 0).sum() == 4 * 300


def test_sizes_are_as_unequal_as_asked_for_and_nobody_is_empty() -> None:
    equal, unequal = (np.bincount(partition.size_skew(1000, clients=20, spread=s)) for s in (0.0, 2.0))
    assert equal.tolist() == [50] * 20
    assert unequal.max() > 5 * np.median(unequal)
    assert unequal.sum() == 1000
    assert np.bincount(partition.size_skew(1000, clients=20, spread=3.0, least=30)).min() >= 30


def test_images_are_turned_and_covered() -> None:
    images = np.arange(32, dtype=np.float32).reshape(2, 4, 4) / 64
    assert partition.turned(images, 1)[0, 0].tolist() == images[0, :, 3].tolist()
    np.testing.assert_array_equal(partition.turned(images, 4), images)
    covered = partition.patches((4, 4), 2, np.random.default_rng(0))
    assert covered.sum() == 8
    painted = partition.masked(images, covered)
    assert (painted[:, covered] == 1).all()
    np.testing.assert_array_equal(painted[:, ~covered], images[:, ~covered])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: partition.dirichlet(LABELS, clients=0, concentration=1.0), "clients=0 must be from 1"),
        (lambda: partition.dirichlet(LABELS, clients=2, concentration=0.0), "concentration=0.0 must be above 0"),
        (lambda: partition.dirichlet(LABELS, clients=2, concentration=1.0, least=1501), "were never reached"),
        (lambda: partition.classes_per_client(LABELS, clients=2, classes=11), "classes=11 must be from 1 to 10"),
        (lambda: partition.size_skew(10, clients=4, least=3), "need more than 10 rows"),
    ],
)
def test_what_cannot_be_is_refused(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(DataError, match=words):
        call()
