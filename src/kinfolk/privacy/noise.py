"""Noise of a release run: integers distributed exactly as a rounded normal variable, from the system's entropy.

A float sample is normal only up to its last bits, and those can give data away. Here a sample is settled by its
uniform number: 64 random bits pin down an interval of tail probabilities, hence of magnitudes. If all of it rounds to
one integer, that is the sample; otherwise more bits are drawn until it does. Nothing is approximated, bits are only
left undrawn. This rests on two error bounds, both far wider than what is known of the libraries: RELATIVE_ERROR for
`scipy.special.ndtri`, and GUARD_BITS for `mpmath`'s erfc, which decides the few samples that float64 cannot.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from mpmath import libmp
from scipy import special

Source = Callable[[int], bytes]
"""`source(n)` gives n fresh random bytes."""

LARGEST = 2**31 - 1
SIGMAS = 12
"""A scale must leave room for this many standard deviations in an int32; 4e-33 of the mass lies beyond."""
RELATIVE_ERROR = 1e-13
"""Assumed of ndtri; its documented error is below 1e-15."""
GUARD_BITS = 32
"""Tail probabilities are computed to twice as many bits beyond those drawn, and trusted to half as many."""
SMALL = 2**20
"""Below this the 63 drawn bits say too little about the logarithm of the tail probability for float64."""
BATCH = 2**16


def rounded_normal(
    scale: float | np.ndarray, shape: int | tuple[int, ...], source: Source = os.urandom
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Integers distributed exactly as round(N * scale), N standard normal, with `scale` broadcast to `shape`.

    Values beyond an int32 wrap around, as an int32 sum does, so that noise plus an int32 is exact modulo 2**32.

    >>> rounded_normal(65536.0, (2, 3)).shape
    (2, 3)
    """
    scales = np.broadcast_to(_checked(scale), shape)
    out = np.empty(scales.size, np.int32)
    for start in range(0, out.size, BATCH):
        part = slice(start, start + BATCH)
        out[part] = _draw(scales.flat[part], source)
    return out.reshape(scales.shape)


def _checked(scale: float | np.ndarray) -> np.ndarray:
    scales = np.asarray(scale, np.float64)
    bad = scales[~(np.isfinite(scales) & (scales > 0))]
    if bad.size:
        raise ValueError(f"scale={bad.flat[0]} must be finite and positive")
    if scales.size and scales.max() * SIGMAS > LARGEST:
        raise ValueError(
            f"scale={scales.max()} is too large: {SIGMAS} standard deviations must fit in an int32; use a coarser "
            f"grid or less noise, so that scale <= {LARGEST // SIGMAS}"
        )
    return scales


def _words(source: Source, count: int) -> np.ndarray:
    return np.frombuffer(source(8 * count), "<u8", count)


def _draw(scale: np.ndarray, source: Source) -> np.ndarray:
    """One sample per scale. A word is a sign and j; the tail probability u lies in [j, j + 1) / 2**64."""
    words = _words(source, scale.size)
    j = (words & np.uint64(2**63 - 1)).astype(np.int64)
    low, high = _bounds(scale, j)
    for i in np.flatnonzero((low != high) | (j < SMALL)):
        low[i] = _resolve(float(scale[i]), int(j[i]), int(low[i]), source)
    return np.where(words >> np.uint64(63), -low, low)


def _bounds(scale: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest magnitude that j leaves open; where j < SMALL only the least is meaningful.

    u is known up to a factor 1 +- (2**-53 + 1/j), and |dx| <= sqrt(pi/2) |d log u| on the upper half of the normal
    distribution. The error below is more than twice that, plus twice RELATIVE_ERROR for ndtri and the product.
    """
    at_least_small = np.maximum(j, SMALL).astype(np.float64)
    x = -special.ndtri(at_least_small * 2.0**-64)
    error = 2.0**-50 + 4 / at_least_small + 2 * RELATIVE_ERROR * x
    low, high = np.rint(scale * np.maximum(x - error, 0)), np.rint(scale * (x + error))
    return low.astype(np.int64), high.astype(np.int64)


def _resolve(scale: float, j: int, low: int, source: Source) -> int:
    """The least m >= low whose upper edge has a tail probability below u, drawing as many bits of u as that takes."""
    bits = 64

    def reaches(m: int) -> bool:
        nonlocal j, bits
        while True:
            edge, slack = _tail(m, scale, bits + GUARD_BITS), 1 << GUARD_BITS // 2
            if edge + slack < j << GUARD_BITS:
                return True
            if edge - slack > (j + 1) << GUARD_BITS:
                return False
            j, bits = j << 64 | int(_words(source, 1)[0]), bits + 64

    step = 1
    while not reaches(low + step - 1):
        low, step = low + step, 2 * step
    high = low + step - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle + 1, high)
    return low


def _tail(m: int, scale: float, bits: int) -> int:
    """P(N * scale > m + 1/2) in units of 2**-bits."""
    top, bottom = scale.as_integer_ratio()
    above, below = ((2 * m + 1) * bottom) ** 2, 8 * top**2
    if above >= bits * below:  # erfc(z) <= exp(-z**2), less than one unit
        return 0
    precision = bits + GUARD_BITS
    z = libmp.mpf_sqrt(libmp.from_rational(above, below, precision), precision)
    return int(libmp.to_fixed(libmp.mpf_erfc(z, precision), bits - 1))
