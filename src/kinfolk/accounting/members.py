"""Who was in a release: its clients, and whose rows they hold, by tokens that only the owner's key can make.

Where rows have no declared identity a client is known by its name within one data set and one way of grouping, and a
row as a row of its client; across groupings, or data sets that were not declared disjoint, anybody may be anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from kinfolk.accounting.records import LedgerError
from kinfolk.data.identity import Identity, label
from kinfolk.privacy.levels import Level

VERSION = "kinfolk 1"
NOBODY = np.empty(0, np.uint64)
PERSON = "person"
"""In place of a level: what a release at example level protects is people, with all rows of each."""
ALONE = "the whole table"
"""The one client of a table that is a silo's own: whatever a study calls it."""


@dataclass(frozen=True)
class Source:
    """Whose rows a run reads, as far as its account needs to know."""

    data: str
    """The data set's name, given by its owner."""
    grouping: str
    """What makes a client: a column, a file each, the whole table."""
    clients: tuple[str, ...]
    sizes: tuple[int, ...]
    """All rows of each, test rows too: they belong to the client. People instead, where they are the units."""
    identity: Identity | None = None
    disjoint_because: str | None = None
    """Why nobody in it is in any other data set of the ledger, in its owner's words."""
    people: int = 0
    """How many rows of a person count, where people are the units; 0: rows, or clients, are."""

    def members(self, level: str, key: bytes) -> Members:
        """Who is in a release of it."""
        found = members(self.data, level, self.grouping, self.clients, self.sizes, self.identity)
        return with_tokens(found, self.clients, self.identity, key)


@dataclass(frozen=True)
class Members:
    """The units of a release."""

    data: str
    """The data set's name, given by its owner."""
    level: str
    """`example`: each client draws noise, its rows are units. `client`: one draw, the clients are its units."""
    grouping: str
    """What makes a client: a column, a file each, the whole table."""
    clients: tuple[str, ...]
    """Labels."""
    sizes: tuple[int, ...]
    """Rows of each."""
    domain: str = ""
    """What tokens are of, kind and column; empty: rows have no identity. Only tokens of one domain can be compared."""
    tokens: np.ndarray = field(default_factory=lambda: NOBODY, compare=False)
    """One for each row (or person, where people are the units), clients one after another."""

    def __post_init__(self) -> None:
        twice = sorted({name for name in self.clients if self.clients.count(name) > 1}) if self._doubled else []
        if twice:
            raise LedgerError(
                f"two clients are both called {twice[0]!r} up to case, spaces and form: an account follows names, so "
                "give them different ones"
            )

    @property
    def _doubled(self) -> bool:
        return len(set(self.clients)) < len(self.clients)

    @property
    def at_data_gates(self) -> bool:
        """Whether each client's units are its rows or its people, with noise of the client's own."""
        return self.level in (Level.EXAMPLE, PERSON)

    @property
    def is_row_identity(self) -> bool:
        """Whether tokens belong to single records, rather than to people with several."""
        return self.domain.startswith("row:")

    @property
    def most_clients(self) -> int:
        """Where tokens are people's: at how many clients one of them is at most."""
        if not len(self.tokens):
            return 0
        pairs = np.unique(np.stack([self.tokens, self.owners.astype(np.uint64)]), axis=1)
        return int(np.unique(pairs[0], return_counts=True)[1].max())

    @cached_property
    def owners(self) -> np.ndarray:
        """For each token, the number of its client."""
        return np.repeat(np.arange(len(self.clients)), self.sizes)

    @cached_property
    def order(self) -> np.ndarray:
        """Places of the tokens, smallest first: each client's are in order already."""
        return np.argsort(self.tokens, kind="stable")

    @cached_property
    def places(self) -> dict[str, int]:
        """The number of the client with each name."""
        return {name: k for k, name in reversed(list(enumerate(self.clients)))}

    @cached_property
    def _ends(self) -> np.ndarray:
        """Where each client's rows end."""
        return np.cumsum(self.sizes)

    def part(self, of_rows: np.ndarray, client: int) -> np.ndarray:
        """What is one client's, of an array with a value for each row."""
        end = int(self._ends[client])
        return of_rows[end - self.sizes[client] : end]

    def tokens_of(self, client: int) -> np.ndarray:
        """The tokens of one client's rows."""
        return self.part(self.tokens, client)

    def place(self, party: str) -> int:
        """The number of the client that a ledger line calls `party`."""
        return 0 if self.clients == (ALONE,) else self.places[label(party)]

    def digest(self, key: bytes) -> str:
        """What ledger lines call it: equal for equal content, and for the owner of the key only."""
        head = json.dumps([VERSION, self.data, self.level, self.grouping, self.clients, self.sizes, self.domain])
        return hmac.digest(key, b"members\0" + head.encode() + b"\0" + self.tokens.tobytes(), "sha256").hex()


def people_of(identity: Identity) -> Identity:
    """Each client's people, everybody once, of identities of their rows."""
    return replace(identity, values=tuple(np.unique(list(map(label, own.tolist()))) for own in identity.values))


def tokens(key: bytes, domain: str, values: Iterable[str]) -> np.ndarray:
    """Tokens of rows' identities: equal for equal values, and meaningless without the key.

    64 bits of HMAC-SHA256, so that among ten million rows two that differ are taken for one with a chance of 3e-6.
    """
    prefix = hmac.new(key, f"{VERSION}\0token\0{domain}\0".encode(), hashlib.sha256)
    known: dict[str, bytes] = {}
    out = bytearray()
    for value in values:
        digest = known.get(value)
        if digest is None:
            mac = prefix.copy()
            mac.update(label(value).encode())
            digest = known[value] = mac.digest()[:8]
        out += digest
    return np.frombuffer(bytes(out), np.uint64)


def members(
    data: str, level: str, grouping: str, clients: Sequence[str], sizes: Sequence[int], identity: Identity | None = None
) -> Members:
    """Who is in a release, in an order that depends on names alone; `with_tokens` adds rows, where they are known."""
    domain = "" if identity is None else f"{identity.kind}:{label(identity.column)}"
    order = sorted(range(len(clients)), key=lambda k: label(clients[k]))
    labels, counts = tuple(label(clients[k]) for k in order), tuple(int(sizes[k]) for k in order)
    return Members(label(data), level, label(grouping), labels, counts, domain)


def with_tokens(found: Members, clients: Sequence[str], identity: Identity | None, key: bytes) -> Members:
    """With a token for each row, sorted within a client: the order of a table says nothing.

    `clients`: in the order of the identity's values.
    """
    if identity is None:
        return found
    of = {label(name): values for name, values in zip(clients, identity.values, strict=True)}
    if [len(of[name]) for name in found.clients] != list(found.sizes):
        raise LedgerError(f"identity {identity.column!r} has other rows than the data: give one value per row")
    every = [np.sort(tokens(key, found.domain, map(str, of[name].tolist()))) for name in found.clients]
    if found.is_row_identity:
        raw = len({value for values in of.values() for value in values.tolist()})
        if raw != len(np.unique(np.concatenate(every))):
            raise LedgerError(
                f"two values of {identity.column!r} are the same up to case, spaces and the form of numbers: an "
                "account follows them, so give each record one of its own"
            )
    return replace(found, tokens=np.concatenate(every) if every else NOBODY)
