"""Shares of a secret: enough give it back, fewer fit every secret equally well."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kinfolk.secure import shamir
from kinfolk.secure.shamir import PRIME, WIDTH, joined, split

SECRET = bytes(range(32))


def test_the_field_is_one() -> None:
    """Miller and Rabin's test with many bases; every secret of 32 bytes is an element."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 60):
        powers = [pow(base, odd << k, PRIME) for k in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers
    assert PRIME > 2**256


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, SECRET])
def test_any_threshold_of_shares_gives_the_secret(secret: bytes) -> None:
    shares = split(secret, 3, range(1, 6))
    for places in itertools.combinations(shares, 3):
        assert joined({place: shares[place] for place in places}) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """With one share less, for any other secret there is exactly one polynomial: the missing share decides."""
    shares = split(SECRET, 3, (1, 2, 3))
    known = {1: shares[1], 2: shares[2]}
    weights = shamir._weights((1, 2, 3))
    for other in (bytes(32), b"\xff" * 32):
        rest = sum(w * int.from_bytes(known[p], "big") for w, p in zip(weights, (1, 2), strict=False))
        third = (int.from_bytes(other, "big") - rest) * pow(weights[2], -1, PRIME) % PRIME
        assert joined({**known, 3: third.to_bytes(WIDTH, "big")}) == other
    assert joined(known) != SECRET


def test_shares_are_uniform() -> None:
    """The first byte below the top of many shares of one secret, by chi-square at 1e-6."""
    tops = np.array([split(SECRET, 2, (1, 2))[1][1] // 32 for _ in range(4000)])
    counts = np.bincount(tops, minlength=8)
    assert (np.square(counts - 500) / 500).sum() < 40.5


@pytest.mark.parametrize(
    ("secret", "threshold", "places"),
    [(b"short", 1, (1,)), (SECRET, 2, (1, 1)), (SECRET, 2, (0, 1)), (SECRET, 3, (1, 2))],
)
def test_impossible_splits_are_refused(secret: bytes, threshold: int, places: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must lie|has 32 bytes"):
        split(secret, threshold, places)


def test_what_is_no_share_gives_nothing() -> None:
    assert joined({1: b"\xff" * WIDTH}) is None
    assert joined({1: b"short"}) is None
    assert joined({1: (2**256 + 5).to_bytes(WIDTH, "big")}) is None
