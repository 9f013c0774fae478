"""The server's side of a secure sum: it carries messages, and gets the survivors' sum and nothing else.

What it checks here keeps a sum right; what keeps a silo private, each silo checks for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure import shamir
from kinfolk.secure.agreement import Agreement
from kinfolk.secure.masks import RING, derived, mask, shared_secret
from kinfolk.secure.messages import (
    Answer,
    Attempt,
    KeyCard,
    ListSignature,
    MaskedVector,
    Opening,
    Packets,
    cards_hash,
    require_signed,
    view_hash,
)
from kinfolk.secure.session import require_sealing_key
from kinfolk.secure.silo import mask_purpose


class Aborted(SecureError):
    """Too few silos are left: nothing is opened, and a new attempt has new keys and is paid for again."""


@dataclass
class Gathering:
    """One attempt at one sum, as the server sees it: everything that it is ever sent."""

    agreement: Agreement
    attempt: Attempt
    cards: dict[str, KeyCard] = field(default_factory=dict)
    packets: dict[str, Packets] = field(default_factory=dict)
    vectors: dict[str, MaskedVector] = field(default_factory=dict)
    signatures: dict[str, ListSignature] = field(default_factory=dict)
    openings: dict[str, Opening] = field(default_factory=dict)
    liar: int = 0
    """The place of a survivor that has sent wrong shares; 0: nobody."""
    _hashed: tuple[int, bytes] = (0, b"")

    @cached_property
    def bound(self) -> bytes:
        """What signatures are bound to."""
        return self.attempt.bound(self.agreement)

    def take(self, message: Answer) -> None:
        """One silo's answer; one that does not fit is refused, and the silo has dropped out.

        `message`: with its signature.
        """
        require_signed(message, self.bound, self.agreement)
        self._require_in_time(message)
        if isinstance(message, KeyCard):
            require_sealing_key(message, self.attempt.run, self.agreement)
            for key in (message.mask_key, message.seal_key):
                shared_secret(X25519PrivateKey.generate(), key)  # or no silo could, and all would refuse
            self._keep(self.cards, message)
        elif isinstance(message, Packets):
            if message.cards != self.cards_hash or {*message.sealed} != {*self.cards} - {message.name}:
                raise SecureError(f"{message.name!r} shares with others than have keys")
            self._keep(self.packets, message)
        elif isinstance(message, MaskedVector):
            if message.view != self.view or len(message.vector) != 4 * self.agreement.length:
                raise SecureError(f"the vector of {message.name!r} is of another length, or masked for others")
            self._keep(self.vectors, message)
        elif isinstance(message, ListSignature):
            others = {*self.heard()} - {message.name}
            if (message.view, message.heard, {*message.tags}) != (self.view, self.heard(), others):
                raise SecureError(f"{message.name!r} signed another list")
            self._keep(self.signatures, message)
        else:
            heard = {*self.heard()}
            wanted = (self.view, heard, {*self.packets} - heard)
            if (message.view, {*message.seeds}, {*message.mask_keys}) != wanted:
                raise SecureError(f"{message.name!r} opened other secrets than were asked for")
            self._keep(self.openings, message)

    def _require_in_time(self, message: Answer) -> None:
        """Refuses what comes when the others have gone on: with it they would have been shown something else."""
        later = {KeyCard: self.packets, Packets: self.vectors, MaskedVector: self.signatures}.get(type(message), {})
        kept = {KeyCard: self.cards, Packets: self.packets, MaskedVector: self.vectors}.get(type(message), {})
        if later and message.name not in kept:
            raise SecureError(f"{type(message).__name__} of {message.name!r} is too late: the others have gone on")

    def _keep(self, where: dict, message: Answer) -> None:
        if where.get(message.name, message) != message:
            raise SecureError(f"{message.name!r} gave two different answers")
        where[message.name] = message

    def _enough(self, what: str, found: int) -> None:
        if found < self.agreement.survivors:
            raise Aborted(f"{found} silos {what}, and {self.agreement.survivors} are needed: the attempt is given up")

    def all_cards(self) -> Sequence[KeyCard]:
        """Everybody's keys, for everybody."""
        self._enough("have keys", len(self.cards))
        return list(self.cards.values())

    def packets_for(self, name: str) -> dict[str, bytes]:
        """What others have sealed for a silo.

        `name`: of the silo.
        """
        self._enough("have shared", len(self.packets))
        return {sender: found.sealed[name] for sender, found in self.packets.items() if sender != name}

    @property
    def cards_hash(self) -> bytes:
        """Of all keys. A card that is kept is never replaced, so that their number says which hash it is."""
        if self._hashed[0] != len(self.cards):
            self._hashed = len(self.cards), cards_hash(self.cards.values())
        return self._hashed[1]

    @property
    def view(self) -> bytes:
        """Of all keys and all who share."""
        return view_hash(self.cards_hash, self.packets)

    def heard(self) -> tuple[str, ...]:
        """The survivors: those whose vectors are here."""
        self._enough("have sent their vector", len(self.vectors))
        return tuple(sorted(self.vectors))

    def tags_for(self, name: str) -> dict[str, bytes]:
        """What other survivors vouch for their list with, to one of them.

        `name`: of the silo.
        """
        self._enough("have signed the list", len(self.signatures))
        return {sender: found.tags[name] for sender, found in self.signatures.items() if sender != name}

    def total(self) -> np.ndarray:
        """The survivors' contributions and noise, added modulo 2^32."""
        self._enough("have opened their shares", len(self.openings))
        terms, heard = self.agreement, self.heard()
        total = np.zeros(terms.length, RING)
        for name in heard:
            total += np.frombuffer(self.vectors[name].vector, RING)
            total -= mask(derived(self._seed(name), self.bound), terms.length)
        for gone in {*self.packets} - {*heard}:
            key = X25519PrivateKey.from_private_bytes(self._mask_key(gone))
            for name in heard:
                secret = shared_secret(key, self.cards[name].mask_key)
                pair = mask(derived(secret, mask_purpose(self.bound, terms, name, gone)), terms.length)
                total = total - pair if terms.place(name) < terms.place(gone) else total + pair
        return total

    def _seed(self, name: str) -> bytes:
        shares = {place: opening.seeds[name] for place, opening in self._by_place().items()}
        return self._joined(name, shares, lambda seed: hashlib.sha256(seed).digest() == self.cards[name].seed_hash)

    def _mask_key(self, name: str) -> bytes:
        shares = {place: opening.mask_keys[name] for place, opening in self._by_place().items()}
        return self._joined(
            name,
            shares,
            lambda key: (
                X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw() == self.cards[name].mask_key
            ),
        )

    def _by_place(self) -> dict[int, Opening]:
        return {self.agreement.place(name): opening for name, opening in self.openings.items()}

    def _joined(self, name: str, shares: dict[int, bytes], fits: Callable[[bytes], bool]) -> bytes:
        """A silo's secret. Where its shares do not fit together, one survivor may have sent wrong ones: without it."""
        for left_out in dict.fromkeys((self.liar, 0, *sorted(shares))):
            places = [place for place in sorted(shares) if place != left_out][: self.agreement.survivors]
            if len(places) < self.agreement.survivors:
                continue
            found = shamir.joined({place: shares[place] for place in places})
            if found is not None and fits(found):
                self.liar = left_out
                return found
        raise Aborted(f"the shares of {name!r} do not fit together: a silo has sent wrong ones")
