"""What all silos of a secure sum have agreed on, and what each of them insists on by itself."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.exact_samplers import LARGEST, NORMAL
from kinfolk.privacy.noise_shares import LEAST_SHARE, NoiseShares, SecureError


def encoded(*parts: str | bytes | int) -> bytes:
    """The parts in one row of bytes that no other parts give: what is signed, hashed or bound to a key."""
    found = []
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        found += (len(raw).to_bytes(8, "big"), raw)
    return b"".join(found)


@dataclass(frozen=True)
class Agreement:
    """The terms of a run's secure sums. Every silo has its own copy; its digest is in everything that is signed."""

    study: str
    """The digest of the study."""
    names: tuple[str, ...]
    keys: tuple[bytes, ...]
    """Every silo's public Ed25519 key, 32 bytes."""
    survivors: int
    """T: with fewer a sum is given up."""
    colluding: int
    """t: how many silos may work with the server, or deviate in any way."""
    length: int
    """Numbers in a vector."""
    clip: float
    """Largest norm of a silo's contribution; GRID_STEPS steps of the grid."""
    deviation: float
    """Of the noise that survivors - colluding shares make together, in grid steps."""

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names) or len(set(self.keys)) < len(self.keys):
            raise SecureError("names and keys of silos must all differ: two with one key are one silo")
        if len(self.names) != len(self.keys) or any(len(key) != 32 for key in self.keys):
            raise SecureError("every silo needs one public key of 32 bytes")
        NoiseShares(len(self.names), self.survivors, self.colluding)  # or it is refused
        if self.length < 1 or not (self.clip > 0 and math.isfinite(self.clip)):
            raise SecureError(f"length={self.length} and clip={self.clip} must be positive")
        if not self.share >= LEAST_SHARE:
            raise SecureError(
                f"deviation={self.deviation:g} grid steps leave a share of {self.share:g}, below {LEAST_SHARE:g}: sums "
                "of so narrow shares are not the law that is accounted for; use more noise"
            )
        reach = len(self.names) * GRID_STEPS + NORMAL.reach * self.share * math.sqrt(len(self.names))
        if not reach <= LARGEST:
            raise SecureError(f"deviation={self.deviation:g} grid steps do not fit into 32 bits: use a larger epsilon")

    @property
    def silos(self) -> int:
        """How many there are."""
        return len(self.names)

    @property
    def share(self) -> float:
        """Standard deviation of one silo's noise, in grid steps: survivors - colluding of them suffice."""
        return NoiseShares(self.silos, self.survivors, self.colluding).share(self.deviation)

    @cached_property
    def digest(self) -> bytes:
        """The same for two silos exactly if they agree on everything."""
        numbers = (self.survivors, self.colluding, self.length, float(self.clip).hex(), float(self.deviation).hex())
        return hashlib.sha256(encoded("secure sum 2", self.study, *self.names, *self.keys, *numbers)).digest()

    def place(self, name: str) -> int:
        """A silo's number, from 1 on."""
        found = self._places.get(name)
        if found is None:
            raise SecureError(f"silo {name[:40]!r} is not one of the agreement")
        return found

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names, 1)}

    def key(self, name: str) -> bytes:
        """A silo's public key."""
        return self.keys[self.place(name) - 1]

    def verifier(self, name: str) -> Ed25519PublicKey:
        """What checks a silo's signatures."""
        return self._verifiers[self.place(name) - 1]

    @cached_property
    def _verifiers(self) -> tuple[Ed25519PublicKey, ...]:
        return tuple(map(Ed25519PublicKey.from_public_bytes, self.keys))


@dataclass(frozen=True)
class Pins:
    """What one silo insists on, from its own file: a server's study can change none of it."""

    keys: Mapping[str, bytes]
    """The silos that it knows, with their public keys."""
    least_survivors: int
    most_silos: int
    least_colluding: int
    """The noise must suffice though so many silos work with the server."""
    least_deviation: float
    """In grid steps: noise that the silo's own budget was planned with."""

    def require(self, agreement: Agreement) -> None:
        """Refuses an agreement that is weaker than the silo's own terms.

        `agreement`: what the study says.
        """
        for name, key in zip(agreement.names, agreement.keys, strict=True):
            if self.keys.get(name) != key:
                raise SecureError(f"silo {name!r} has a key that the policy does not know: compare keys with its owner")
        for name, found, least in (
            ("survivors", agreement.survivors, self.least_survivors),
            ("colluding", agreement.colluding, self.least_colluding),
            ("deviation", agreement.deviation, self.least_deviation),
        ):
            if found < least:
                raise SecureError(f"{name}={found:g} is less than the policy's {least:g}: agree on more")
        if agreement.silos > self.most_silos:
            raise SecureError(f"silos={agreement.silos} are more than the policy's {self.most_silos}")
