"""People as units of a federation: splits, sizes, places, and rows that are too many."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk.data.federation import DataError, Federation, from_rows, pooled
from kinfolk.data.people import by_person, row_places, rows_by_person
from kinfolk.data.sparse import from_sparse
from kinfolk.types import Rows
from kinfolk.units import Several

PEOPLE = np.array(["7", "8", "7.0", "9", "8", "7", " 9", "8", "7"])
CLIENTS = np.array(["a"] * 4 + ["b"] * 5)


def federation(**options: object) -> Federation:
    x = np.arange(18.0).reshape(9, 2)
    return from_rows(x, np.arange(9.0), CLIENTS, person_ids=PEOPLE, **{"test_fraction": 0.0, **options})  # type: ignore[arg-type]


def test_sizes_count_people_and_a_unit_has_all_rows_of_one() -> None:
    found = by_person(federation())
    assert found.has_people
    assert found.ids == ("a", "b")
    assert found.train.sizes.tolist() == [3, 3]
    units = found.train.rows(slice(None), 3)
    assert isinstance(units.x, Several)
    assert units.x.rows.shape == (2, 3, 10, 2)
    assert units.y[0, 0].tolist()[:3] == [0.0, 2.0, 0.0]  # rows 0 and 2 are person 7's, then copies that do not count
    assert units.x.shares[0, 0].tolist()[:3] == [0.5, 0.5, 0.0]
    assert by_person(found) is found
    assert found.shape == (2,)


def test_shapes_and_order_do_not_depend_on_how_many_rows_anybody_has() -> None:
    """Row counts are not public: two federations that differ in one person's number of rows look alike."""
    more = np.concatenate([np.arange(9), [3] * 6])  # person 9 of client a has six more rows
    x, y = np.arange(18.0).reshape(9, 2)[more], np.arange(9.0)[more]
    longer = by_person(from_rows(x, y, CLIENTS[more], person_ids=PEOPLE[more], test_fraction=0.0))
    usual = by_person(federation())
    assert longer.ids == usual.ids
    assert longer.train.sizes.tolist() == usual.train.sizes.tolist()
    assert longer.train.rows(slice(None), 3).x.rows.shape == usual.train.rows(slice(None), 3).x.rows.shape


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_in_both_parts(seed: int) -> None:
    generator = np.random.default_rng(seed)
    people = generator.integers(12, size=60)
    found = from_rows(np.ones((60, 1)), people * 1.0, np.arange(60) % 2, person_ids=people, seed=seed)
    for k in range(2):
        train = set(found.train.y[k, : found.train.sizes[k]].tolist())
        test = set(found.test.y[k, : found.test.sizes[k]].tolist())
        assert train
        assert test
        assert not train & test
        assert len(np.unique(found.test_units[k])) == len(test)


def test_a_split_that_divides_a_person_is_refused() -> None:
    with pytest.raises(DataError, match="divides the rows of 1 person"):
        federation(test=[2], test_fraction=None)
    kept = federation(test=[1, 4, 7], test_fraction=None)  # all of person 8
    assert kept.test.sizes.tolist() == [1, 2]
    assert [units.tolist() for units in by_person(kept).test_units] == [[0], [0, 0]]


def test_rows_beyond_the_bound_are_left_out_by_that_persons_own_rows() -> None:
    people = np.array(["p"] * 7 + ["q"] * 2)
    places, shares = row_places(people, 3)
    assert places.tolist() == [[0, 2, 4], [7, 8, 7]]
    assert np.allclose(shares, [[1 / 3] * 3, [0.5, 0.5, 0]])
    others = np.array(["q"] * 3 + ["p"] * 7 + ["q"] * 20)
    assert (row_places(others, 3)[0][0] - 3).tolist() == [0, 2, 4]


def test_the_unit_of_each_test_row() -> None:
    found = federation(test_fraction=0.34, seed=1)
    for units, size in zip(found.test_units, found.test.sizes, strict=True):
        assert len(units) == size
    plain = from_rows(np.ones((4, 1)), np.ones(4), ["a"] * 4, test_fraction=0.5)
    assert plain.test_units[0].tolist() == [0, 1]


def test_pooled_sparse_and_a_silos_own_rows() -> None:
    from scipy.sparse import csr_array

    assert by_person(pooled(federation())).train.sizes.tolist() == [3]
    sparse = from_sparse(csr_array(np.eye(9)), np.arange(9.0), CLIENTS, person_ids=PEOPLE, test_fraction=0.0)
    assert by_person(sparse).shape == (9,)
    own = rows_by_person(Rows(np.ones((9, 2)), np.arange(9.0), np.ones(9, bool)), PEOPLE, 4)
    assert own.x.rows.shape == (3, 4, 2)
    assert own.mask.tolist() == [True] * 3
