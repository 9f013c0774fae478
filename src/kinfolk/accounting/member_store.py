"""Memberships on disk, beside the owner's ledger: once for each content, and as a difference where a table has grown.

They are pseudonymous personal data: with the key, a guess at an identity can be tried. The key is kept elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.accounting.members import NOBODY, Members, Source
from kinfolk.accounting.records import LedgerError
from kinfolk.files import npz, write_whole


@dataclass(frozen=True)
class MemberStore:
    """A folder of memberships and the key that names them."""

    folder: Path
    key: bytes
    known: dict[str, Members] = field(default_factory=dict, compare=False)
    sources: dict[tuple[int, str], tuple[Source, str]] = field(default_factory=dict, compare=False)
    """Digests of what was asked for before: a token for each row takes time."""

    def of(self, source: Source, level: str) -> str:
        """The digest of those who are in a release of a source; nothing is written yet."""
        place = (id(source), level)
        if place not in self.sources:
            self.sources[place] = (source, self.remember(source.members(level, self.key)))
        return self.sources[place][1]

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
        shared = {digest: _shared(self.known[digest].tokens, members.tokens) for digest in same[-3:]}
        best = max(shared, key=lambda digest: shared[digest], default="")
        return best if best and 2 * shared[best] > len(members.tokens) else ""


def _shared(first: np.ndarray, second: np.ndarray) -> int:
    """How many of the second are among the first."""
    ordered = np.sort(first)
    place = np.minimum(np.searchsorted(ordered, second), max(len(ordered) - 1, 0))
    return int((ordered[place] == second).sum()) if len(ordered) else 0


def _packed(members: Members, base: str, before: Members | None) -> bytes:
    about = {
        "base": base,
        "members": [members.data, members.level, members.grouping, members.clients, members.sizes, members.domain],
    }
    parts = {"tokens": members.tokens} if before is None else _difference(members, before)
    return npz({"about": np.array(json.dumps(about)), **parts})


def _unpacked(about: dict[str, Any], arrays: dict[str, np.ndarray], before: Members | None) -> Members:
    data, level, grouping, clients, sizes, domain = about["members"]
    found = Members(data, level, grouping, tuple(clients), tuple(sizes), domain)
    if before is None:
        return replace(found, tokens=arrays.get("tokens", NOBODY))
    ends = np.cumsum(arrays["lengths"])
    changed, by = (np.split(arrays[name], ends[:-1]) for name in ("changed", "by"))
    own = []
    for was, tokens, more in zip(_rows_before(found, before), changed, by, strict=True):
        every, counts = np.unique(np.concatenate([was, tokens]), return_inverse=True)
        total = np.bincount(counts, np.concatenate([np.ones(len(was)), more]), len(every))
        own.append(np.repeat(every, total.astype(np.int64)))
    return replace(found, tokens=np.concatenate(own) if own else NOBODY)


def _rows_before(members: Members, before: Members) -> list[np.ndarray]:
    """For each client its tokens in another membership: none, where it was not there."""
    place = {name: k for k, name in enumerate(before.clients)}
    return [before.tokens_of(place[name]) if name in place else NOBODY for name in members.clients]


def _difference(members: Members, before: Members) -> dict[str, np.ndarray]:
    """Client by client: which tokens there are more or fewer of, and by how many."""
    changed, by = [], []
    for k, was in enumerate(_rows_before(members, before)):
        now = members.tokens_of(k)
        every, places = np.unique(np.concatenate([now, was]), return_inverse=True)
        more = np.bincount(places, np.repeat([1.0, -1.0], [len(now), len(was)]), len(every)).astype(np.int32)
        changed.append(every[more != 0])
        by.append(more[more != 0])
    lengths = np.array(list(map(len, changed)), np.int64)
    return {"changed": np.concatenate(changed), "by": np.concatenate(by), "lengths": lengths}
