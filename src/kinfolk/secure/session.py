"""A silo's sealing key for one run, and the secrets that it shares with other silos.

A sealing key is signed once, for a study, a run and a silo, and others check that signature once. It is in memory alone
and forgotten with the run. All that two silos seal or vouch for in an attempt is under a key of its own, derived from
what their sealing keys agree on and from that very attempt.
"""

from __future__ import annotations

import hmac
import os

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kinfolk.privacy.exact_samplers import Source
from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure.agreement import Agreement, encoded
from kinfolk.secure.masks import shared_secret
from kinfolk.secure.messages import KeyCard


class Session:
    """One silo in one run."""

    def __init__(self, agreement: Agreement, run: str, name: str, key: Ed25519PrivateKey, source: Source = os.urandom):
        self.run = run
        self._sealing = X25519PrivateKey.from_private_bytes(source(32))
        self.seal_key = self._sealing.public_key().public_bytes_raw()
        self.seal_signature = key.sign(sealing_content(agreement, run, name, self.seal_key))
        self._known: dict[str, tuple[bytes, bytes]] = {}

    def secret_with(self, card: KeyCard, agreement: Agreement) -> bytes:
        """What this silo's sealing key and another's agree on; the other's signature is checked when it is new.

        `card`: the other's. `agreement`: whose keys count.
        """
        seal_key, secret = self._known.get(card.name, (b"", b""))
        if seal_key != card.seal_key:
            require_sealing_key(card, self.run, agreement)
            secret = shared_secret(self._sealing, card.seal_key)
            self._known[card.name] = card.seal_key, secret
        return secret


def require_sealing_key(card: KeyCard, run: str, agreement: Agreement) -> None:
    """Refuses a sealing key that its silo has not signed for this study and this run.

    `card`: with that signature. `run`: its name. `agreement`: whose keys count.
    """
    content = sealing_content(agreement, run, card.name, card.seal_key)
    try:
        agreement.verifier(card.name).verify(card.seal_signature, content)
    except InvalidSignature:
        raise SecureError(f"the sealing key of {card.name!r} is not signed by it for this run") from None


def sealing_content(agreement: Agreement, run: str, name: str, seal_key: bytes) -> bytes:
    """What a silo signs of its sealing key.

    `agreement`: of the study. `run`: its name. `name`: the silo's. `seal_key`: public.
    """
    return encoded("kinfolk sealing key", agreement.study, run, name, seal_key)


def packet_key(pair: bytes, sender: str, receiver: str) -> bytes:
    """What a packet is sealed with.

    `pair`: the key of these two silos in one attempt. `sender`, `receiver`: their names.
    """
    return hmac.digest(pair, encoded("packet", sender, receiver), "sha256")


def list_tag(pair: bytes, view: bytes, names: bytes, sender: str, receiver: str) -> bytes:
    """One silo's word to another on who the survivors are: only these two can compute it.

    `pair`: the key of these two silos in one attempt. `view`: what the sender was shown. `names`: hash of the
    survivors' names. `sender`, `receiver`: their names.
    """
    return hmac.digest(pair, encoded("list", view, names, sender, receiver), "sha256")
