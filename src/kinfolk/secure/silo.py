"""A silo's side of a secure sum: five answers, each given once per attempt, and nothing else.

All secrets of an attempt are in memory alone. They are erased when the attempt is over, when it is given up and when
another one begins; a silo that has lost them has dropped out. So one set of keys masks one vector and opens one list,
ever: two vectors under the same masks would show the difference of their noise, two lists both secrets of a silo.

A silo believes what other silos tell it by what only two of them can compute: a packet that opens says that its sender
was shown the very same key cards, its own among them, and a tag that fits says that its sender vouches for the same
list (docs/explain/secure-sums.md has the argument).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from kinfolk.privacy.exact_samplers import Source
from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure import contribution, shamir
from kinfolk.secure.agreement import Agreement, Pins, encoded
from kinfolk.secure.masks import RING, derived, mask, shared_secret
from kinfolk.secure.messages import (
    Attempt,
    KeyCard,
    ListSignature,
    MaskedVector,
    Opening,
    Packets,
    cards_hash,
    names_hash,
    signed,
    view_hash,
)
from kinfolk.secure.session import Session, list_tag, packet_key

NONCE = bytes(12)
"""Every key seals one packet."""
Pay = Callable[[Attempt], None]
"""Charges an attempt to the silo's own ledger, and returns when that is on disk; refuses by an error."""


@dataclass
class _Secrets:
    """What a silo knows in one attempt."""

    attempt: Attempt
    bound: bytes
    masking: X25519PrivateKey
    seed: bytes
    card: KeyCard
    cards: dict[str, KeyCard] = field(default_factory=dict)
    packets: Packets | None = None
    view: bytes = b""
    shares: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    """Of every sharing silo's mask key and seed, its own among them."""
    pairs: dict[str, bytes] = field(default_factory=dict)
    """The keys of this silo and each other one in this attempt, for packets and tags."""
    masked_with: dict[str, bytes] = field(default_factory=dict)
    """The keys of the masks that this silo shares with others."""
    masked: MaskedVector | None = None
    listed: ListSignature | None = None


class Silo:
    """One silo. An answer that was given is given again to the same question; to another one it is refused."""

    def __init__(
        self,
        agreement: Agreement,
        name: str,
        key: Ed25519PrivateKey,
        pins: Pins,
        pay: Pay,
        source: Source = os.urandom,
        session: Session | None = None,
    ) -> None:
        pins.require(agreement)
        if key.public_key().public_bytes_raw() != agreement.key(name):
            raise SecureError(f"silo {name!r} has another key than the agreement says")
        self.agreement, self.name, self._key, self._pay, self._source = agreement, name, key, pay, source
        self.session = session
        """Of the run that it was last asked about."""
        self._secrets: _Secrets | None = None
        self._begun: dict[str, tuple[int, int]] = {}

    def begin(self, attempt: Attempt) -> KeyCard:
        """New keys for a new attempt; those of any other are erased.

        `attempt`: later than all before it in its run.
        """
        now, last = (attempt.round, attempt.number), self._begun.get(attempt.run)
        if self._secrets is not None and self._secrets.attempt == attempt and self._secrets.packets is None:
            return self._secrets.card
        if last is not None and now <= last:
            raise SecureError(f"round {attempt.round}, attempt {attempt.number} of {attempt.run!r} was begun already")
        self.erase()
        if self.session is None or self.session.run != attempt.run:
            self.session = Session(self.agreement, attempt.run, self.name, self._key, self._source)
        masking, seed = X25519PrivateKey.from_private_bytes(self._source(32)), self._source(32)
        bound, sealing = attempt.bound(self.agreement), (self.session.seal_key, self.session.seal_signature)
        public, hashed = masking.public_key().public_bytes_raw(), hashlib.sha256(seed).digest()
        card = signed(KeyCard(self.name, public, *sealing, hashed), bound, self._key)
        self._begun[attempt.run] = now
        self._secrets = _Secrets(attempt, bound, masking, seed, card)
        return card

    def share(self, attempt: Attempt, cards: Sequence[KeyCard]) -> Packets:
        """Shares of its two secrets for everybody who has keys, each sealed for its receiver.

        `attempt`: the one that was begun. `cards`: everybody's, its own among them.
        """
        own, terms = self._current(attempt), self.agreement
        given = {card.name: card for card in cards}
        if own.packets is not None:
            if given != own.cards:
                raise SecureError("other key cards than were shown before")
            return own.packets
        if len(given) < len(cards) or given.get(self.name) != own.card:
            raise SecureError("the key cards name a silo twice, or another key for this one")
        if len(given) < terms.survivors:
            raise SecureError(f"{len(given)} silos have keys, fewer than the {terms.survivors} that are needed")
        if len({key for card in cards for key in (card.mask_key, card.seal_key)}) < 2 * len(cards):
            raise SecureError("two silos have the same key")
        assert self.session is not None
        secrets = {x.name: self.session.secret_with(x, terms) for x in cards if x.name != self.name}
        own.pairs = {name: derived(secret, encoded(own.bound, "pair")) for name, secret in secrets.items()}
        own.cards = given
        places = [terms.place(name) for name in given]
        both = own.masking.private_bytes_raw(), own.seed
        first, second = (shamir.split(secret, terms.survivors, places, self._source) for secret in both)
        hashed, sealed = cards_hash(cards), {}
        for name in given:
            pair = first[terms.place(name)], second[terms.place(name)]
            if name == self.name:
                own.shares[name] = pair
            else:
                sealed[name] = self._cipher(own, self.name, name).encrypt(NONCE, pair[0] + pair[1], hashed)
        own.packets = signed(Packets(self.name, hashed, sealed), own.bound, self._key)
        return own.packets

    def _cipher(self, own: _Secrets, sender: str, receiver: str) -> ChaCha20Poly1305:
        other = receiver if sender == self.name else sender
        return ChaCha20Poly1305(packet_key(own.pairs[other], sender, receiver))

    def mask(
        self, attempt: Attempt, sealed: Mapping[str, bytes], message: np.ndarray | Callable[[], np.ndarray]
    ) -> MaskedVector:
        """Pays, then adds noise and masks to its message, once.

        `attempt`: the one that was begun. `sealed`: the packets for this silo, by sender. `message`: its numbers, or
        whole steps of the grid; or what computes them, called when they are paid for.
        """
        own, terms = self._current(attempt), self.agreement
        if own.packets is None:
            raise SecureError("a vector was asked for before the shares")
        sharing = {*sealed, self.name}
        view = view_hash(own.packets.cards, sharing)
        if own.view:
            if own.masked is None or view != own.view:
                raise SecureError("a vector for these keys was asked for already")
            return own.masked
        if self.name in sealed or not sharing <= set(own.cards) or len(sharing) < terms.survivors:
            raise SecureError(f"packets of {len(sharing)} silos; {terms.survivors} of those with keys are needed")
        shares = {name: self._opened(own, name, packet) for name, packet in sealed.items()}
        own.masked_with = {name: self._mask_key(own, own.cards[name]) for name in sealed}
        own.view = view  # from here on these keys are used, whatever happens
        own.shares.update(shares)
        self._pay(attempt)
        message = message() if callable(message) else message
        total = self._contribution(message) + mask(derived(own.seed, own.bound), terms.length)
        for name in sealed:
            pair = mask(own.masked_with[name], terms.length)
            if terms.place(self.name) < terms.place(name):
                total += pair
            else:
                total -= pair
        own.masked = signed(MaskedVector(self.name, view, total.astype(RING).tobytes()), own.bound, self._key)
        return own.masked

    def _contribution(self, message: np.ndarray) -> np.ndarray:
        return contribution.noisy(message, self.agreement, self._source)

    def _opened(self, own: _Secrets, sender: str, packet: bytes) -> tuple[bytes, bytes]:
        """Another silo's two shares. That they open says that it was shown the same cards, its own among them."""
        assert own.packets is not None
        try:
            pair = self._cipher(own, sender, self.name).decrypt(NONCE, packet, own.packets.cards)
        except InvalidTag:
            raise SecureError(f"the packet of {sender!r} was not sealed for this silo and this attempt") from None
        if len(pair) != 2 * shamir.WIDTH:
            raise SecureError(f"the packet of {sender!r} does not hold two shares")
        return pair[: shamir.WIDTH], pair[shamir.WIDTH :]

    def _mask_key(self, own: _Secrets, other: KeyCard) -> bytes:
        purpose = mask_purpose(own.bound, self.agreement, self.name, other.name)
        return derived(shared_secret(own.masking, other.mask_key), purpose)

    def sign(self, attempt: Attempt, heard: Sequence[str]) -> ListSignature:
        """Vouches to every other survivor for who they are: one list, with enough of those that share masks, and this
        silo.

        `attempt`: the one that was begun. `heard`: the survivors' names.
        """
        own, names = self._current(attempt), tuple(sorted(heard))
        if own.masked is None:
            raise SecureError("a list was asked for before this silo's vector")
        if own.listed is not None:
            if own.listed.heard != names:
                raise SecureError("another list was signed for these keys")
            return own.listed
        if len(set(names)) < len(names) or not set(names) <= set(own.shares) or self.name not in names:
            raise SecureError("a list with strangers, or without this silo, which sent its vector")
        if len(names) < self.agreement.survivors:
            raise SecureError(f"{len(names)} survivors, fewer than the {self.agreement.survivors} that are needed")
        tags = {name: self._tag(own, names, self.name, name) for name in names if name != self.name}
        own.listed = signed(ListSignature(self.name, own.view, names, tags), own.bound, self._key)
        return own.listed

    def _tag(self, own: _Secrets, names: tuple[str, ...], sender: str, receiver: str) -> bytes:
        pair = own.pairs[receiver if sender == self.name else sender]
        return list_tag(pair, own.view, names_hash(names), sender, receiver)

    def open(self, attempt: Attempt, tags: Mapping[str, bytes]) -> Opening:
        """Its shares, if enough survivors, itself among them, vouch for the very list that it has vouched for: of every
        survivor's seed, and of the mask key of everybody else. Never both of one silo.

        `attempt`: the one that was begun. `tags`: for this silo, by sender; wrong ones do not count.
        """
        own = self._current(attempt)
        listed = own.listed
        if listed is None:
            raise SecureError("an opening was asked for before the list")
        same = 1 + sum(
            hmac.compare_digest(tags.get(name, b""), self._tag(own, listed.heard, name, self.name))
            for name in listed.heard
            if name != self.name
        )
        if same < self.agreement.survivors:
            raise SecureError(f"{same} survivors vouch for this very list, and {self.agreement.survivors} must")
        seeds = {name: own.shares[name][1] for name in listed.heard}
        keys = {name: own.shares[name][0] for name in own.shares if name not in seeds}
        return signed(Opening(self.name, own.view, seeds, keys), own.bound, self._key)

    def erase(self) -> None:
        """Forgets all secrets of an attempt that is over, or given up."""
        self._secrets = None

    def _current(self, attempt: Attempt) -> _Secrets:
        if self._secrets is None or self._secrets.attempt != attempt:
            raise SecureError(f"round {attempt.round}, attempt {attempt.number}: this silo has no keys for it")
        return self._secrets


def mask_purpose(bound: bytes, agreement: Agreement, one: str, other: str) -> bytes:
    """What the mask of two silos is derived for, the same for both."""
    return encoded(bound, "mask", *sorted((agreement.place(one), agreement.place(other))))
