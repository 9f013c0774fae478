"""A fixed split into training and test rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from kinfolk import from_rows, from_sparse
from kinfolk.data.federation import DataError, Federation

X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6, dtype=np.float32)
WHO = np.array(["a", "b", "a", "b", "a", "b"])
MASK = np.array([True, False, False, True, False, False])


def rows_of(data: Federation) -> list[list[float]]:
    return [part.y[k, : part.sizes[k]].tolist() for part in (data.train, data.test) for k in range(len(data.ids))]


@pytest.mark.parametrize("test", [MASK, MASK.tolist(), [0, 3], np.array([3, 0])])
def test_rows_stay_where_they_were_put_and_in_their_order(test: np.ndarray) -> None:
    for seed in (0, 1):
        assert rows_of(from_rows(X, Y, WHO, test=test, seed=seed)) == [[2, 4], [1, 5], [0], [3]]


def test_sparse_rows_are_split_alike() -> None:
    assert rows_of(from_sparse(csr_array(X), Y, WHO, test=MASK)) == [[2, 4], [1, 5], [0], [3]]


def test_a_client_may_have_no_test_rows_and_must_have_training_rows() -> None:
    assert rows_of(from_rows(X, Y, WHO, test=[0])) == [[2, 4], [1, 3, 5], [0], []]
    assert from_rows(X, Y, WHO, test=[]).test.sizes.tolist() == [0, 0]
    with pytest.raises(DataError, match=r"client 'b' has 3 row.s., and test leaves none for training"):
        from_rows(X, Y, WHO, test=[1, 3, 5])


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (MASK[:3], r"test has shape \(3,\), and there are 6 rows"),
        ([6], "test names row 6, and rows have numbers from 0 to 5"),
        ([-1], "test names row -1"),
        (MASK.astype(int), "test names a row twice: .* one truth value"),
        (["yes"] * 6, "test holds <U3"),
        (0.2, "test holds float64"),
    ],
)
def test_what_is_no_split_is_refused(test: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_rows(X, Y, WHO, test=test)  # type: ignore[arg-type]


def test_one_way_to_split_at_a_time() -> None:
    with pytest.raises(DataError, match=r"test_fraction=0.2 and test= are two ways to split: give one of them"):
        from_rows(X, Y, WHO, test=MASK, test_fraction=0.2)
