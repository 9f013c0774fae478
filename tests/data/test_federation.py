"""Data in: splits, padding, and errors that say which client and row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kinfolk.data.client_data import ClientData, RaggedData
from kinfolk.data.federation import DataError, from_rows
from kinfolk.data.sets.school import school
from kinfolk.data.sets.synthetic import synthetic_schools

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10, dtype=np.float32)
WHO = ["b"] * 4 + ["a"] * 6


def test_every_row_is_in_one_part_of_its_own_client() -> None:
    fed = from_rows(X, Y, WHO, test_fraction=0.5)
    assert fed.ids == ("b", "a")  # by size
    for k, name in enumerate(fed.ids):
        seen = [*fed.train.y[k, : fed.train.sizes[k]], *fed.test.y[k, : fed.test.sizes[k]]]
        assert sorted(seen) == [y for y, who in zip(Y, WHO, strict=True) if who == name]
        np.testing.assert_array_equal(fed.train.x[k, : fed.train.sizes[k], 0] / 2, fed.train.y[k, : fed.train.sizes[k]])
        assert not fed.train.x[k, fed.train.sizes[k] :].any()


def test_the_seed_decides_the_split_and_not_the_sizes() -> None:
    one, again, other = (from_rows(X, Y, WHO, test_fraction=0.5, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.train.y, again.train.y)
    assert (one.train.y != other.train.y).any()
    np.testing.assert_array_equal(one.train.sizes, other.train.sizes)


def changed(row: int, value: float) -> np.ndarray:
    x = X.copy()
    x[row, 1] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "who", "message"),
    [
        (X[:0], Y[:0], [], "no rows"),
        (X, Y[:9], WHO, "x has 10 rows, y 9"),
        (changed(5, np.nan), Y, WHO, r"x has NaN or infinite values in 1 row\(s\), first in row 5 \(client 'a'\)"),
        (changed(2, np.inf), Y, WHO, "row 2"),
        (X, np.where(Y == 3, np.nan, Y), WHO, "y has NaN"),
        (X.astype(str), Y, WHO, "encode text as numbers"),
        (X, Y, ["alone", *WHO[1:]], r"client 'alone' has 1 row\(s\)"),
    ],
)
def test_bad_rows_are_named(x: np.ndarray, y: np.ndarray, who: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_rows(x, y, who)


def test_a_client_with_one_row_can_train_without_a_test_row() -> None:
    fed = from_rows(X, Y, ["alone", *WHO[1:]], test_fraction=0.0)
    assert fed.train.sizes.tolist() == [1, 3, 6]


def test_the_built_in_schools_have_the_promised_sizes() -> None:
    fed = synthetic_schools(test_fraction=0.0)
    assert len(fed.ids) == 60
    assert (fed.train.sizes.min(), fed.train.sizes.max()) == (15, 250)
    assert np.abs(fed.train.x).max() <= 1


def test_missing_data_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path))
    with pytest.raises(DataError, match="set KINFOLK_DATA"):
        school()
    with pytest.raises(DataError, match="'as_published'"):
        school(scaling="mine")


@pytest.mark.usefixtures("school_data")
def test_school_is_the_published_set() -> None:
    fed = school()
    assert len(fed.ids) == 139
    assert int(fed.train.sizes.sum() + fed.test.sizes.sum()) == 15362
    assert fed.scaling_is_private
    assert fed.train.y.min() >= 0
    assert fed.train.y.max() <= 1
    published = school(scaling="as_published")
    assert not published.scaling_is_private
    own = published.train.x[40, : published.train.sizes[40]]
    np.testing.assert_allclose(own.mean(axis=0), 0, atol=1e-5)


def test_very_unequal_clients_are_not_padded_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    clients = np.array(["big"] * 400 + [f"c{k:02d}" for k in range(40) for _ in range(5)])
    x, y = generator.normal(size=(600, 2)), generator.normal(size=600)
    plain = from_rows(x, y, clients)
    monkeypatch.setattr("kinfolk.data.client_data.LARGE", 100)
    ragged = from_rows(x, y, clients)
    assert isinstance(plain.train, ClientData)
    assert isinstance(ragged.train, RaggedData)
    assert (ragged.ids, ragged.shape) == (plain.ids, plain.shape)
    for part in ("train", "test"):
        for span, length in ((slice(0, 40), 4), (slice(40, 41), 320), (slice(0, 41), 7), (slice(3, 9), 1)):
            own, other = (getattr(f, part).rows(span, length) for f in (ragged, plain))
            wide = min(length, other.y.shape[1])
            assert own.x.dtype == other.x.dtype
            assert (own.x[:, :wide] == other.x[:, :wide]).all()
            assert (own.y[:, :wide] == other.y[:, :wide]).all()
            assert (own.mask[:, :wide] == other.mask[:, :wide]).all()
