"""The messages of a secure sum, as records. Each is signed by its silo together with the agreement and the attempt.

In order: a silo's two public keys; its secrets' shares, one packet for each other silo; its masked vector; its word on
who the survivors are; and, against enough silos' word, its shares of one secret of every silo.

The signatures are for the server, which so leaves out what a silo has not sent. Silos rely on what only two of them can
compute: packets that open, and tags of the list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure.agreement import Agreement, encoded


@dataclass(frozen=True, order=True)
class Attempt:
    """One try at one sum. Another try has new keys and new noise, and is paid for again."""

    run: str
    round: int
    number: int = 0

    def bound(self, agreement: Agreement) -> bytes:
        """What every signature and every derived key is bound to.

        `agreement`: the terms, by their digest.
        """
        return encoded("kinfolk secure sum", agreement.digest, self.run, self.round, self.number)


@dataclass(frozen=True)
class KeyCard:
    """A silo's public keys for one attempt."""

    name: str
    mask_key: bytes
    """X25519: pairwise masks."""
    seal_key: bytes
    """X25519, of the run: packets of shares and tags of lists. Another one, as the first may be opened."""
    seal_signature: bytes
    """The silo's, of its sealing key in this run."""
    seed_hash: bytes
    """Of the seed of its own mask, so that wrong shares of it are noticed."""
    signature: bytes = b""

    def content(self) -> bytes:
        """What is signed."""
        return self._content

    @cached_property
    def _content(self) -> bytes:
        return encoded("keys", self.name, self.mask_key, self.seal_key, self.seal_signature, self.seed_hash)


@dataclass(frozen=True)
class Packets:
    """A silo's shares for the others, each encrypted for its receiver."""

    name: str
    cards: bytes
    """Hash of the key cards that the silo was shown."""
    sealed: Mapping[str, bytes]
    """By receiver."""
    signature: bytes = b""

    def content(self) -> bytes:
        """What is signed."""
        return encoded("packets", self.name, self.cards, *_pairs(self.sealed))


@dataclass(frozen=True)
class MaskedVector:
    """A silo's contribution under its masks."""

    name: str
    view: bytes
    """Hash of the key cards and of whose packets there are: who shares masks with whom."""
    vector: bytes
    """Numbers modulo 2^32, little-endian."""
    signature: bytes = b""

    def content(self) -> bytes:
        """What is signed."""
        return encoded("vector", self.name, self.view, hashlib.sha256(self.vector).digest())


@dataclass(frozen=True)
class ListSignature:
    """A survivor's word on who the survivors are."""

    name: str
    view: bytes
    heard: tuple[str, ...]
    """The survivors, sorted."""
    tags: Mapping[str, bytes]
    """For every other survivor, what only it and this silo can compute of this list."""
    signature: bytes = b""

    def content(self) -> bytes:
        """What is signed."""
        return encoded("list", self.name, self.view, names_hash(self.heard), *_pairs(self.tags))


@dataclass(frozen=True)
class Opening:
    """A survivor's shares: of the seed of everybody in the list, and of the mask key of everybody else."""

    name: str
    view: bytes
    seeds: Mapping[str, bytes]
    mask_keys: Mapping[str, bytes]
    signature: bytes = b""

    def content(self) -> bytes:
        """What is signed."""
        return encoded("opening", self.name, self.view, *(encoded(*_pairs(d)) for d in (self.seeds, self.mask_keys)))


Answer = KeyCard | Packets | MaskedVector | ListSignature | Opening
"""What a silo sends."""
Message = TypeVar("Message", bound=Answer)


def _pairs(by_name: Mapping[str, bytes]) -> Iterator[str | bytes]:
    return (part for name in sorted(by_name) for part in (name, by_name[name]))


@lru_cache(maxsize=8)
def names_hash(names: tuple[str, ...]) -> bytes:
    """Of names, in this order."""
    return hashlib.sha256(encoded("names", *names)).digest()


def signed(message: Message, bound: bytes, key: Ed25519PrivateKey) -> Message:
    """The message with its silo's signature.

    `message`: without one. `bound`: to what (`Attempt.bound`). `key`: the silo's own.
    """
    return replace(message, signature=key.sign(encoded(bound, message.content())))


def require_signed(message: Answer, bound: bytes, agreement: Agreement) -> None:
    """Refuses a message that its silo has not signed for this very attempt.

    `message`: with a signature. `bound`: to what. `agreement`: whose keys count.
    """
    try:
        agreement.verifier(message.name).verify(message.signature, encoded(bound, message.content()))
    except InvalidSignature:
        raise SecureError(
            f"{type(message).__name__} of {message.name!r} is not signed by it for this attempt"
        ) from None


def cards_hash(cards: Iterable[KeyCard]) -> bytes:
    """Of all key cards, in whatever order they came."""
    every = sorted(cards, key=lambda card: card.name)
    return hashlib.sha256(encoded("cards", *(card.content() for card in every))).digest()


def view_hash(cards: bytes, sharing: Iterable[str]) -> bytes:
    """Of the key cards, by their hash, and of those whose packets there are."""
    return hashlib.sha256(encoded("view", cards, *sorted(sharing))).digest()
