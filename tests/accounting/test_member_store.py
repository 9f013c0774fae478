"""Memberships on disk: what is stored as a difference is read back whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk.accounting.ledger import LedgerError
from kinfolk.accounting.member_store import MemberStore
from kinfolk.accounting.members import Members, Source
from kinfolk.data.identity import Identity

KEY = bytes(32)


def of(kind: str, rows: dict[str, list[int]]) -> Members:
    values = tuple(np.array([f"row {n}" for n in own]) for own in rows.values())
    return Source("d", "file", tuple(rows), tuple(map(len, rows.values())), Identity(kind, "id", values)).members(
        "client", KEY
    )


GROWN = [
    {"a": list(range(1000)), "b": [5000, 5000, 5001]},
    {"a": list(range(1005)), "b": [5000, 5001, 5001, 5001]},
    {"b": [5001], "c": [7], "a": list(range(3, 1005))},
]


@pytest.mark.parametrize("kind", ["row", "person"])
def test_a_growing_table_is_stored_as_differences(tmp_path: Path, kind: str) -> None:
    store, digests, sizes = MemberStore(tmp_path / "m", KEY), [], []
    for rows in GROWN:
        digests.append(store.remember(of(kind, rows)))
        store.save(digests[-1])
        sizes.append(sum(path.stat().st_size for path in store.folder.iterdir()))
    assert sizes[2] - sizes[0] < 0.5 * sizes[0]
    fresh = MemberStore(store.folder, KEY)
    for digest, rows in zip(digests, GROWN, strict=True):
        found, wanted = fresh.load(digest), of(kind, rows)
        assert found == wanted
        np.testing.assert_array_equal(found.tokens, wanted.tokens)


def test_a_membership_that_is_gone_or_changed_is_noticed(tmp_path: Path) -> None:
    store = MemberStore(tmp_path / "m", KEY)
    first, second = (store.remember(of("row", GROWN[n])) for n in (0, 1))
    store.save(first)
    (path,) = store.folder.iterdir()
    store.save(second)
    (other,) = set(store.folder.iterdir()) - {path}
    other.write_bytes(path.read_bytes())
    with pytest.raises(LedgerError, match="another membership"):
        MemberStore(store.folder, KEY).load(second)
    path.unlink()
    with pytest.raises(LedgerError, match="cannot be read"):
        MemberStore(store.folder, KEY).load(first)


def test_tokens_say_nothing_without_the_key_and_nothing_of_the_order() -> None:
    one = of("row", {"a": [1, 2, 3]})
    assert (of("row", {"a": [3, 1, 2]}).tokens == one.tokens).all()
    assert not np.isin(of("person", {"a": [1, 2, 3]}).tokens, one.tokens).any()
    other = Source("d", "file", ("a",), (3,), Identity("row", "id", (np.array(["row 1", "row 2", "row 3"]),)))
    assert not np.isin(other.members("client", bytes(range(32))).tokens, one.tokens).any()
    assert replace(one, data="e").digest(KEY) != one.digest(KEY)
