"""Targets: what an outcome has no meaning for is refused, whichever way a federation is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kinfolk.data.client_data import ClientData, RaggedData
from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.lazy import from_arrays, from_function
from kinfolk.data.people import by_person
from kinfolk.data.target import courses

X = np.arange(12, dtype=np.float32).reshape(6, 2)
WHO = ["a", "b"] * 3
PAIRS = np.array([[0, 1], [1, 1], [0, 0]] * 2)


@pytest.mark.parametrize(
    ("y", "outcome", "classes", "words"),
    [
        ([-1, 1] * 3, "binary", 0, r"binary targets are 0 and 1, and there is -1: give \(y > 0\)"),
        ([1, 2] * 3, "binary", 0, r"there is 2: give .*\(y == 2\) for 1 and 2"),
        ([0.0, 0.25] * 3, "binary", 0, "there is 0.25: .* for numbers, outcome='number'"),
        ([1, 2] * 3, "classes", 2, r"classes are whole numbers from 0 to 1 \(classes=2\), and there is 2: number them"),
        ([-1, 0] * 3, "classes", 2, "there is -1"),
        ([0, 0.5] * 3, "classes", 2, "there is 0.5"),
        ([0, 1] * 3, "classes", 0, "classes=0: with outcome='classes' it says how many classes there are, 2 or more"),
        ([0, 1] * 3, "classes", 1, "2 or more: give it"),
        (PAIRS * 2, "labels", 2, r"labels targets are 0 and 1, and there is 2: give \(y > 0\)"),
        (PAIRS, "labels", 3, r"y has \(2,\) numbers per row, and outcome='labels' has classes=3 columns"),
        ([0, 1] * 3, "labels", 2, "y has one number per row"),
        ([0, 1] * 3, "labels", 0, "it says how many labels"),
        ([3, -2] * 3, "count", 0, "count targets are 0 or more, and there is -2"),
        ([0, 4] * 3, "ordinal", 4, r"whole numbers from 0 to 3 \(classes=4\), and there is 4"),
        ([0, 1] * 3, "ordinal", 1, "how many levels there are, 2 or more"),
        ([0, 5] * 3, "survival", 2, r"from 0 to 4 \(classes=2\), and there is 5: make them with courses"),
        ([0, 1] * 3, "regression", 0, "is not one of number, binary, .*; did you mean 'number'"),
        ([0, 1] * 3, "logistic", 0, "did you mean 'binary'"),
        ([0, 1] * 3, "clases", 2, "did you mean 'classes'"),
        (PAIRS, "number", 0, r"y has \(2,\) numbers per row, and outcome='number' has one number: give y.ravel"),
        ([0, 2**40] * 3, "number", 0, "32 bits do not hold"),
    ],
)
def test_targets_that_mean_nothing_are_refused(y: Any, outcome: str, classes: int, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_rows(X, np.asarray(y), WHO, outcome=outcome, classes=classes, test_fraction=0.0)


@pytest.mark.parametrize("who", [[None] * 6, ["a", None] * 3, [0.0, np.nan] * 3])
def test_every_row_needs_a_client(who: Any) -> None:
    with pytest.raises(DataError, match=r"clients has None or NaN in \d row\(s\), first in row [01]"):
        from_rows(X, np.zeros(6), who)
    with pytest.raises(DataError, match="one target and one client per row"):
        from_rows(X, np.zeros(6), np.zeros((6, 2)))


def test_what_fits_is_taken_as_it_is() -> None:
    labels = from_rows(X, PAIRS, WHO, outcome="labels", test_fraction=0.0)
    assert labels.classes == 2
    whole = from_rows(X, np.array([0.0, 2.0, 1.0] * 2), WHO, outcome="classes", classes=3, test_fraction=0.0)
    assert whole.train.y.dtype == np.int32
    assert sorted(whole.train.y.ravel()) == [0, 0, 1, 1, 2, 2]
    for outcome, y, classes in (
        ("binary", [True, False] * 3, 0),
        ("binary", [0.0, 1.0] * 3, 0),
        ("count", [0, 2.5] * 3, 0),
        ("ordinal", [0, 3] * 3, 4),
        ("survival", [0, 8] * 3, 4),
        ("number", [-7, 1000] * 3, 0),
    ):
        assert from_rows(X, np.asarray(y), WHO, outcome=outcome, classes=classes).outcome == outcome


def test_every_way_to_a_federation_is_checked() -> None:
    x, y = np.ones((2, 3, 2), np.float32), np.array([[0, 1, -1], [1, 0, 1]], np.int32)
    assert from_arrays(x, y, np.array([2, 3]), outcome="binary").classes == 0  # padding may hold anything
    with pytest.raises(DataError, match="there is -1"):
        from_arrays(x, y, np.array([3, 3]), outcome="binary")
    with pytest.raises(DataError, match="y holds float32, and outcome='classes' takes integers"):
        from_arrays(x, np.abs(y).astype(np.float32), np.array([3, 3]), outcome="classes", classes=2)
    flat = RaggedData(np.ones((3, 2)), np.array([0, 1, 7]), np.array([1, 2]))
    with pytest.raises(DataError, match="there is 7"):
        Federation("d", ("a", "b"), flat, flat, "binary")
    good = from_rows(X, np.arange(6.0), WHO, test=[0])
    for part in ("train", "test"):
        wrong = replace(getattr(good, part), y=-1 - getattr(good, part).y)
        with pytest.raises(DataError, match="0 or more"):
            replace(good, outcome="count", **{part: wrong})
    with pytest.raises(DataError, match="did you mean 'number'"):
        from_function(lambda ids: (ids, ids), 2, 3, outcome="regression")


def test_people_with_labels_are_checked_alike() -> None:
    given = from_rows(X, PAIRS, WHO, outcome="labels", person_ids=[1, 2, 1, 2, 3, 4], test_fraction=0.0)
    people = by_person(given)
    assert (people.classes, people.train.y.shape[:2]) == (2, (2, 2))
    assert isinstance(people.train, ClientData)
    with pytest.raises(DataError, match="there is 3"):
        replace(people, train=replace(people.train, y=people.train.y * 3))


@pytest.mark.parametrize(
    ("event", "edges", "words"),
    [
        ([0, 1, 2], (1.0, 2.0), r"event holds 2, and is 1 \(it came\) or 0"),
        (["no", "yes", "no"], (1.0, 2.0), "event holds 'no'"),
        ([0.0, 1.0, np.nan], (1.0, 2.0), "event holds nan"),
        ([0, 1, 1], (2.0, 1.0), r"edges=\(2.0, 1.0\) must increase"),
        ([0, 1, 1], (1.0, 1.0), "must increase"),
        ([0, 1, 1], (), "one at least"),
        ([0, 1, 1], (0.0, 1.0), "edges=0.0 must be above 0"),
    ],
)
def test_courses_of_other_codes_or_edges_are_refused(event: list, edges: tuple[float, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        courses(np.array([0.5, 1.5, 3.0]), np.array(event), edges)


def test_a_federation_shows_its_size_and_none_of_its_rows() -> None:
    secret = X + 4711.0
    people = ["cora", "dora", *["anna", "bert"] * 2]
    given = from_rows(secret, np.full(6, 8000.25), WHO, name="wards", person_ids=people, test=[0, 1])
    shown = repr(given)
    assert shown == ("Federation('wards', 2 clients, 4 rows, 2 features, 2 rows for testing, outcome='number')")
    several = from_rows({"one": secret, "two": secret}, np.zeros(6), WHO)
    made = from_function(lambda ids: (ids, ids), 2, 3)
    flat = RaggedData(secret, np.full(6, 8000.25), np.array([2, 4]))
    words = [repr(one) for one in (given.train, given.identity, by_person(given), several, made, flat)]
    for one in (shown, *words):
        assert not any(value in one for value in ("47", "8000", "anna", "cora", "array(")), one
    assert "2 people, 2 features" in words[2]
    assert "several arrays of features" in words[3]
    assert words[4].startswith("Federation('data', 2 clients, 6 rows of a function")
    assert words[5] == "RaggedData(2 clients, 6 rows, 2 features)"
