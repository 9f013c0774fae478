"""Clients that are made: everybody gets rows, as unequal as asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from kinfolk.data import partition
from kinfolk.data.federation import DataError, from_rows
from kinfolk.data.sets import celeba, cifar, femnist, mnist, patients
from kinfolk.toml import ConfigError

LABELS = np.arange(3000) % 10
IMAGES = np.zeros((2, 4, 4), np.float32)
COVERED = np.ones((4, 4), bool)
RANDOM = np.random.default_rng(0)


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
    np.testing.assert_array_equal(partition.turned(images, 0), images)
    covered = partition.patches((4, 4), 2, np.random.default_rng(0))
    assert covered.sum() == 8
    painted = partition.masked(images, covered)
    assert (painted[:, covered] == 1).all()
    np.testing.assert_array_equal(painted[:, ~covered], images[:, ~covered])
    coloured = partition.masked(np.repeat(images[..., None], 3, axis=-1), covered)
    np.testing.assert_array_equal(coloured, np.repeat(painted[..., None], 3, axis=-1))


def test_patches_of_an_odd_image_leave_its_last_pixels() -> None:
    covered = partition.patches((5, 7), 6, np.random.default_rng(0))
    assert covered.shape == (5, 7)
    assert covered[:4, :6].all()
    assert not covered[4].any()
    assert not covered[:, 6].any()


def test_rows_of_nobody_are_left_out() -> None:
    owner = partition.classes_per_client(LABELS, clients=2, classes=2, seed=0)
    x, y = np.ones((3000, 1), np.float32), LABELS.astype(np.float32)
    data = from_rows(x, y, owner, row_ids=np.arange(3000), test_fraction=0.5)
    kept = owner >= 0
    alone = from_rows(x[kept], y[kept], owner[kept], row_ids=np.arange(3000)[kept], test_fraction=0.5)
    assert data.ids == alone.ids == ("0", "1")
    np.testing.assert_array_equal(data.train.y, alone.train.y)
    assert data.identity is not None
    assert alone.identity is not None
    assert all((one == other).all() for one, other in zip(data.identity.values, alone.identity.values, strict=True))
    named = from_rows(x, y, np.where(kept, owner, -1).astype(str))  # words are names, whatever they say
    assert "-1" in named.ids
    with pytest.raises(DataError, match="every row's client is -1, which is nobody"):
        from_rows(x, y, np.full(3000, -1))


@pytest.mark.parametrize("of", [list, lambda y: [f"class {v}" for v in y], lambda y: y + 0.5])
def test_labels_may_be_a_list_words_or_floats(of: Callable[[np.ndarray], Any]) -> None:
    for divide in (
        partial(partition.classes_per_client, clients=4, classes=3),
        partial(partition.dirichlet, clients=4, concentration=1.0),
    ):
        np.testing.assert_array_equal(divide(of(LABELS)), divide(LABELS))


@pytest.mark.parametrize("seed", [-1, 1.5, "a", 2**32])
@pytest.mark.parametrize(
    "divide",
    [
        lambda seed: partition.dirichlet(LABELS, clients=2, concentration=1.0, seed=seed),
        lambda seed: partition.classes_per_client(LABELS, clients=2, classes=2, seed=seed),
        lambda seed: partition.size_skew(10, clients=2, seed=seed),
    ],
)
def test_a_seed_is_a_whole_number_as_everywhere(divide: Callable[[Any], Any], seed: object) -> None:
    with pytest.raises(ConfigError, match=f"seed={seed!r} must be .* any number that 32 bits hold will do"):
        divide(seed)


def test_fewer_classes_than_were_asked_for_are_refused() -> None:
    labels = [0] * 40 + [1] * 40 + [2] * 2
    with pytest.raises(
        DataError, match=r"clients=6 with classes=3 each leave 4 of them fewer classes, the first .* 2,"
    ):
        partition.classes_per_client(labels, clients=6, classes=3)
    owner = partition.classes_per_client(labels, clients=2, classes=3)
    assert [len(np.unique(np.array(labels)[owner == k])) for k in range(2)] == [3, 3]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: partition.dirichlet(LABELS, clients=0, concentration=1.0), "clients=0 must be a whole number from 1"),
        (lambda: partition.dirichlet(LABELS, clients=2, concentration=0.0), "concentration=0.0 must be above 0"),
        (lambda: partition.dirichlet(LABELS, clients=2, concentration=1.0, least=1501), "need more than 3000 rows"),
        (
            lambda: partition.dirichlet(LABELS, clients=50, concentration=0.01, least=60),
            "clients=50 were never reached",
        ),
        (
            lambda: partition.classes_per_client(LABELS, clients=2, classes=11),
            "classes=11 must be a whole number from 1 to 10",
        ),
        (lambda: partition.classes_per_client(LABELS, clients=2, classes=1.5), "classes=1.5 must be a whole"),  # type: ignore[arg-type]
        (
            lambda: partition.classes_per_client([0] * 9 + [1, 2], clients=9, classes=1),
            "leave 4 of them fewer classes, the first of them 0, as rows are too few: take fewer clients, or",
        ),
        (lambda: partition.classes_per_client(LABELS.reshape(2, -1), clients=2, classes=1), r"labels have shape \(2,"),
        (lambda: partition.dirichlet(LABELS.reshape(2, -1), clients=2, concentration=1.0), "give one per row"),
        (lambda: partition.dirichlet(np.array([0, 1, np.nan]), clients=2, concentration=1.0), "labels hold NaN"),
        (lambda: partition.dirichlet(np.array([0, None]), clients=2, concentration=1.0), "labels hold None"),
        (lambda: partition.dirichlet(LABELS, clients=2, concentration=np.inf), "concentration=inf must be above 0 and"),
        (lambda: partition.dirichlet(LABELS, clients=2, concentration=np.nan), "concentration=nan"),
        (lambda: partition.dirichlet(LABELS, clients=2, concentration=1.0, least=0), "least=0 must be a whole number"),
        (lambda: partition.size_skew(10, clients=4, least=3), "need more than 10 rows"),
        (lambda: partition.size_skew(100, clients=4, spread=np.nan), "spread=nan must be at least 0"),
        (lambda: partition.size_skew(100, clients=4, spread=1e3), "spread=1000.0 must be at least 0 and at most 100"),
        (lambda: partition.size_skew(100, clients=2.5), "clients=2.5 must be a whole number"),  # type: ignore[arg-type]
        (lambda: partition.turned(IMAGES, 90), "quarters=90 must be a whole number from 0 to 3: .*1 for 90 degrees"),
        (lambda: partition.turned(IMAGES, 0.5), "quarters=0.5"),  # type: ignore[arg-type]
        (lambda: partition.turned(IMAGES[0], 1), r"images have shape \(4, 4\).*give image\[None\]"),
        (lambda: partition.patches((28, 28), -3, RANDOM), "count=-3 must be a whole number from 0 to 196"),
        (lambda: partition.patches((28, 28), 1000, RANDOM), "28x28 pixels have so many patches"),
        (lambda: partition.patches((28, 28), 10, 0), "generator numpy's"),  # type: ignore[arg-type]
        (lambda: partition.patches((28,), 10, RANDOM), "must be height and width"),  # type: ignore[arg-type]
        (lambda: partition.masked(IMAGES, [[1, 0]] * 4), "covered holds int64"),  # type: ignore[arg-type]
        (lambda: partition.masked(IMAGES, COVERED, value=float("nan")), "value=nan: give truth values, and a finite"),
        (lambda: partition.masked(IMAGES.astype(np.uint8), COVERED), "images hold uint8, where 1 may be no white"),
        (lambda: partition.masked(IMAGES, COVERED[:3]), r"images have \(4, 4\) pixels and covered \(3, 4\)"),
        (lambda: mnist.rotated_mnist(rotations=0), "rotations=0 must be a whole number from 1 to 4"),
        (lambda: mnist.rotated_mnist(masks=197), "masks=197 must be a whole number from 0 to 196"),
        (lambda: mnist.rotated_mnist(silos=0), "silos=0"),
        (lambda: femnist.femnist(writers=-3), "writers=-3 must be a whole number from 1 .*leave it out for all"),
        (lambda: femnist.femnist(writers=0), "writers=0"),
        (lambda: femnist.femnist(most_images=0), "most_images=0"),
        (lambda: celeba.celeba(celebrities=0), "celebrities=0"),
        (lambda: cifar.cifar10(classes=2, concentration=1.0), "classes=2 and concentration=1.0 are two ways"),
        (lambda: patients.tcga_brca(years=0), "years=0 must be above 0 and at most 100"),
        (lambda: patients.tcga_brca(years=-3.0), "years=-3.0 must be above 0"),
        (lambda: patients.tcga_brca(years=np.nan), "years=nan must be above 0"),
    ],
)
def test_what_cannot_be_is_refused(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(DataError, match=words):
        call()
