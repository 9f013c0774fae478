"""Memberships on disk, beside the owner's ledger: once for each content, and as a difference where a table has grown.

They are pseudonymous personal data: with the key, a guess at an identity can be tried. The key is kept elsewhere.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kinfolk.accounting.members import NOBODY, Members
from kinfolk.accounting.records import LedgerError
from kinfolk.files import write_whole


@dataclass(frozen=True)
class MemberStore:
    """A folder of memberships and the key that names them."""

    folder: Path
    key: bytes
    known: dict[str, Members] = field(default_factory=dict, compare=False)

    def remember(self, members: Members) -> str:
        """Its digest; nothing is written yet."""
        digest = members.digest(self.key)
        self.known.setdefault(digest, members)
        return digest

    def save(self, digest: str) -> None:
        """Keeps what was remembered; on disk when this returns."""
        members, path = self.known[digest], self._path(digest)
        if not path.exists():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            base = self._base(members)
            write_whole(path, _packed(members, base, self.load(base) if base else None))

    def load(self, digest: str) -> Members:
        """The membership of this digest; refused if the file is not there or holds another."""
        if digest not in self.known:
            try:
                with np.load(self._path(digest), allow_pickle=False) as file:
                    arrays = {name: file[name] for name in file.files}
            except (OSError, ValueError, KeyError, EOFError) as error:
                raise LedgerError(
                    f"{self._path(digest)} cannot be read ({error}): the ledger names it, and without it nobody knows "
                    "which rows were in a release. Restore the folder from a copy"
                ) from None
            about = json.loads(str(arrays["about"]))
            found = _unpacked(about, arrays, self.load(about["base"]) if about["base"] else None)
            if found.digest(self.key) != digest:
                raise LedgerError(f"{self._path(digest)} holds another membership than its name says: restore it")
            self.known[digest] = found
        return self.known[digest]

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest[:32]}.npz"

    def _base(self, members: Members) -> str:
        """The stored membership from which this one differs least among the latest; none if rows have no identity."""
        if not members.domain or not self.folder.is_dir():
            return ""
        same = [d for d, other in self.known.items() if other.domain == members.domain and self._path(d).exists()]
        shared = {digest: len(np.intersect1d(self.known[digest].tokens, members.tokens)) for digest in same[-3:]}
        best = max(shared, key=lambda digest: shared[digest], default="")
        return best if best and 2 * shared[best] > len(members.tokens) else ""


def _pairs(members: Members) -> np.ndarray:
    """Rows as (token, client), sorted; a client is known by its place among the sorted labels of its membership."""
    both = np.empty(len(members.tokens), [("token", np.uint64), ("client", np.uint32)])
    both["token"], both["client"] = members.tokens, members.owners
    return both


def _packed(members: Members, base: str, before: Members | None) -> bytes:
    about = {
        "base": base,
        "members": [members.data, members.level, members.grouping, members.clients, members.sizes, members.domain],
    }
    if before is None:
        parts = {"tokens": members.tokens}
    else:
        place = {name: n for n, name in enumerate(members.clients)}
        moved = _pairs(before)
        renamed = np.array([place.get(name, len(place)) for name in before.clients], np.uint32)
        moved["client"] = renamed[moved["client"]]
        now, was = np.unique(_pairs(members), return_counts=True), np.unique(moved, return_counts=True)
        every = np.union1d(now[0], was[0])
        change = np.zeros(len(every), np.int32)
        change[np.searchsorted(every, now[0])] += now[1].astype(np.int32)
        change[np.searchsorted(every, was[0])] -= was[1].astype(np.int32)
        parts = {"changed": every[change != 0], "by": change[change != 0]}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=np.array(json.dumps(about)), **parts)  # type: ignore[arg-type]
    return buffer.getvalue()


def _unpacked(about: dict, arrays: dict[str, np.ndarray], before: Members | None) -> Members:  # type: ignore[type-arg]
    data, level, grouping, clients, sizes, domain = about["members"]
    found = Members(data, level, grouping, tuple(clients), tuple(sizes), domain)
    if before is None:
        return replace(found, tokens=arrays.get("tokens", NOBODY))
    place = {name: n for n, name in enumerate(clients)}
    moved = _pairs(before)
    moved["client"] = np.array([place.get(name, len(place)) for name in before.clients], np.uint32)[moved["client"]]
    rows, counts = np.unique(np.concatenate([moved, arrays["changed"]]), return_inverse=True)
    total = np.zeros(len(rows), np.int64)
    np.add.at(total, counts, np.concatenate([np.ones(len(moved), np.int64), arrays["by"].astype(np.int64)]))
    kept = np.repeat(rows, total)
    order = np.lexsort((kept["token"], kept["client"]))
    return replace(found, tokens=np.ascontiguousarray(kept["token"][order]))
