"""Shamir's secret sharing over a prime field: any `threshold` shares give the secret, fewer say nothing about it.

>>> shares = split(b"x" * 32, threshold=2, places=[1, 2, 3])
>>> joined({1: shares[1], 3: shares[3]}) == b"x" * 32
True
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache

from kinfolk.privacy.exact_samplers import Source

SECRET = 32
"""Bytes of a secret."""
WIDTH = 33
"""Bytes of a share."""
PRIME = 2**256 + 297
"""The smallest prime above every secret."""


def split(secret: bytes, threshold: int, places: Iterable[int], source: Source = os.urandom) -> dict[int, bytes]:
    """One share for each place: a random polynomial of degree threshold - 1 whose value at 0 is the secret.

    `secret`: 32 bytes. `threshold`: how many shares give it back. `places`: different numbers from 1 on. `source`: of
    random bytes.
    """
    every = tuple(places)
    if len(secret) != SECRET or len(set(every)) < len(every) or not all(0 < place < PRIME for place in every):
        raise ValueError(f"a secret has {SECRET} bytes, and places are different numbers from 1 on")
    if not 1 <= threshold <= len(every):
        raise ValueError(f"threshold={threshold} must lie between 1 and the {len(every)} places")
    coefficients = [int.from_bytes(secret, "big"), *_elements(threshold - 1, source)]
    return {place: _value(coefficients, place).to_bytes(WIDTH, "big") for place in every}


def _elements(count: int, source: Source) -> list[int]:
    """Uniform elements of the field: what lies above it is drawn again."""
    found: list[int] = []
    while len(found) < count:
        drawn = source(2 * (count - len(found)) * WIDTH)
        numbers = (int.from_bytes(drawn[k : k + WIDTH], "big") & (2**257 - 1) for k in range(0, len(drawn), WIDTH))
        found += [number for number in numbers if number < PRIME]
    return found[:count]


def _value(coefficients: list[int], place: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = total * place + coefficient  # places are small: a division at each step would take longer
    return total % PRIME


@lru_cache(maxsize=64)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights of these places for the value at 0."""
    found = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)


def joined(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret of exactly as many shares as the threshold was; None where they are no shares of one.

    `shares`: by place. Wrong shares of the right form give another secret: whoever joins must know what it belongs to.
    """
    places = tuple(sorted(shares))
    numbers = [int.from_bytes(shares[place], "big") for place in places]
    if any(len(share) != WIDTH for share in shares.values()) or any(number >= PRIME for number in numbers):
        return None
    total = sum(weight * number for weight, number in zip(_weights(places), numbers, strict=True)) % PRIME
    return total.to_bytes(WIDTH, "big")[1:] if total < 2**256 else None
