"""Masks: numbers modulo 2^32 that two silos derive alike from a key that only they know."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kinfolk.privacy.noise_shares import SecureError

RING = np.dtype("<u4")
"""Numbers modulo 2^32, in which masks and sums are taken."""


@lru_cache(maxsize=4)
def _zeros(count: int) -> bytes:
    return bytes(count)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose."""
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=purpose).derive(secret)


def shared_secret(own: X25519PrivateKey, other: bytes) -> bytes:
    """What the owner of `own` and the owner of the public key `other` agree on: to derive keys from."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise SecureError("a public key that no silo can have made") from None


def mask(key: bytes, length: int) -> np.ndarray:
    """Numbers modulo 2^32 that a key stands for: AES-256 in counter mode. No key is used twice.

    `key`: 32 bytes. `length`: how many numbers.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(_zeros(4 * length)), RING)
