"""Noise of a release run: integers distributed exactly as rounded variables of a law, from the system's entropy.

A float sample is normal only up to its last bits, and those can give data away. Here a sample is settled by its
uniform number: 64 random bits pin down an interval of tail probabilities, hence of magnitudes. If all of it rounds to
one integer, that is the sample; otherwise more bits are drawn until it does. Nothing is approximated, bits are only
left undrawn. This rests on two error bounds, both far wider than what is known of the libraries: RELATIVE_ERROR for
`scipy.special.ndtri` and NumPy's log, and GUARD_BITS for `mpmath`'s erfc and exp, which decide the few samples that
float64 cannot.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from mpmath import libmp
from mpmath.ctx_mp import MPContext
from scipy import special

Source = Callable[[int], bytes]
"""`source(n)` gives n fresh random bytes."""

LARGEST = 2**31 - 1
RELATIVE_ERROR = 1e-13
"""Assumed of ndtri and log; their documented errors are below 1e-15."""
GUARD_BITS = 32
"""Tail probabilities are computed to twice as many bits beyond those drawn, and trusted to half as many."""
SMALL = 2**20
"""Below this the 63 drawn bits say too little about the logarithm of the tail probability for float64."""
BATCH = 2**13
"""Samples at a time: what is computed of them stays in the processor's cache."""
RATIO_ERROR = 1e-9
"""Assumed of a quadrature whose error is below 1e-13."""

Mpf = tuple[int, int, int, int]
"""A number of `mpmath.libmp`: sign, mantissa, exponent and bits."""


@dataclass(frozen=True)
class Law:
    """A symmetric distribution, by the magnitude x whose one-sided tail probability is u, for u up to 1/2.

    The slope |dx / d log u| must be at most sqrt(pi / 2).
    """

    magnitude: Callable[[np.ndarray], np.ndarray]
    tail: Callable[[Mpf, int], Mpf]
    """Twice the tail probability at a magnitude, as `mpmath` numbers of so many bits."""
    reach: int
    """A scale must leave room for this magnitude in an int32; less than 1e-32 of the mass lies beyond."""


NORMAL = Law(
    lambda u: -special.ndtri(u),
    lambda x, bits: libmp.mpf_erfc(libmp.mpf_div(x, libmp.mpf_sqrt(libmp.from_int(2), bits), bits), bits),
    12,
)
LAPLACE = Law(lambda u: -np.log(2 * u), lambda x, bits: libmp.mpf_exp(libmp.mpf_neg(x), bits), 75)


def rounded_normal(
    scale: float | np.ndarray, shape: int | tuple[int, ...], source: Source = os.urandom
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Integers distributed exactly as round(N * scale), N standard normal, with `scale` broadcast to `shape`.

    Values beyond an int32 wrap around, as an int32 sum does, so that noise plus an int32 is exact modulo 2**32.

    >>> rounded_normal(65536.0, (2, 3)).shape
    (2, 3)
    """
    return _sample(NORMAL, scale, shape, source, 1).astype(np.int32)


def rounded_laplace(
    scale: float | np.ndarray, shape: int | tuple[int, ...], source: Source = os.urandom
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Like `rounded_normal`, for round(L * scale), L with density exp(-|x|) / 2."""
    return _sample(LAPLACE, scale, shape, source, 1).astype(np.int32)


def geometric(
    scale: float | np.ndarray, shape: int | tuple[int, ...], source: Source = os.urandom
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Integers that are at least k with probability exp(-k / scale), for every k >= 0 that fits in an int32."""
    return np.minimum(np.abs(_sample(LAPLACE, scale, shape, source, 2)), LARGEST).astype(np.int32)


def discrete_gaussian(
    scale: float, shape: int | tuple[int, ...], source: Source = os.urandom
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Integers m with probability exactly proportional to exp(-m^2 / (2 scale^2)); wrapped around like the others.

    Sums of these are, but for a negligible and known difference, of the same law, which those of rounded normals are
    not. A rounded normal is kept with the probability that turns its law into this one: 1 less about 1 / (6 scale^2).
    """
    if np.ndim(scale) != 0:
        raise ValueError("scale must be one number for all samples")
    found = _sample(NORMAL, scale, shape, source, 1).reshape(-1)
    left = np.flatnonzero(~_kept(found, float(scale), source))
    while left.size:
        found[left] = _sample(NORMAL, scale, left.size, source, 1)
        left = left[~_kept(found[left], float(scale), source)]
    return found.astype(np.int32).reshape(shape)


def _kept(drawn: np.ndarray, scale: float, source: Source) -> np.ndarray:
    """Whether a uniform number lies below exp(-1 / (8 s^2)) / g(m), g the mean of exp(-(2 m x + x^2) / (2 s^2)) over x
    in [-1/2, 1/2].

    That ratio is at most 1, and at least 1 - (1 + (m / s)^2) / (8 s^2): most are settled by their first byte.
    """
    first = np.frombuffer(source(drawn.size), np.uint8, drawn.size)
    largest = float(np.abs(drawn).max(initial=0))
    certain = 1 - (1 + 1e-9) * (1 + (largest / scale) ** 2) / (8 * scale * scale) - 2.0**-50
    kept = first < np.uint8(max(0.0, certain) * 256 // 1)  # the next bits cannot change that
    left = np.flatnonzero(~kept)
    if not left.size:
        return kept
    j = first[left].astype(np.uint64) << np.uint64(56) | _words(source, left.size) >> np.uint64(8)
    u, ratio = j.astype(np.float64) * 2.0**-64, _quick_ratio(drawn[left], scale)
    kept[left] = u < ratio
    for k in np.flatnonzero(~(np.abs(u - ratio) > RATIO_ERROR)):
        kept[left[k]] = _below_ratio(int(j[k]), abs(int(drawn[left[k]])), scale, source)
    return kept


def _quick_ratio(drawn: np.ndarray, scale: float) -> np.ndarray:
    """The ratio of `_kept` by Gauss-Legendre quadrature; not a number where that may be too hard for it."""
    nodes, weights = _quadrature()
    slope = np.abs(drawn) / (scale * scale)
    x = nodes[:, None] / 2
    mean = weights @ np.exp(-np.minimum(slope, 40) * x - np.square(x / scale) / 2) / 2
    return np.where((slope > 40) | (scale < 0.3), np.nan, math.exp(-1 / (8 * scale * scale)) / mean)


@cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(32)


_PRECISE: Any = MPContext()
"""mpmath's numbers with a precision of their own, which nothing else changes."""


def _below_ratio(j: int, m: int, scale: float, source: Source) -> bool:
    """Whether the uniform number that begins with the 64 bits j lies below the ratio, drawing as many as that takes."""
    bits = 64
    while True:
        ratio, slack = _ratio(m, scale, bits + GUARD_BITS), 1 << GUARD_BITS // 2
        if (j + 1) << GUARD_BITS < ratio - slack:
            return True
        if j << GUARD_BITS > ratio + slack:
            return False
        j, bits = j << 64 | int(_words(source, 1)[0]), bits + 64


def _ratio(m: int, scale: float, bits: int) -> int:
    """The ratio of `_kept` in units of 2**-bits. The difference of two tails loses about as many bits as m has."""
    own = _PRECISE
    with own.workprec(bits + 4 * GUARD_BITS):
        s, half = own.mpf(scale), own.mpf(1) / 2
        root = s * own.sqrt(2)
        cell = own.erfc((m - half) / root) - own.erfc((m + half) / root)
        mean = own.exp(own.mpf(m) ** 2 / (2 * s * s)) * s * own.sqrt(own.pi / 2) * cell
        return int(own.floor(own.ldexp(own.exp(-1 / (8 * s * s)) / mean, bits)))


def uniform(
    below: int, shape: int | tuple[int, ...], source: Source = os.urandom
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Integers from 0 to `below` - 1, each equally likely: words that would favour some are thrown away."""
    count, found = int(np.prod(shape)), np.empty(0, np.uint64)
    while found.size < count:
        words = _words(source, count - found.size) >> np.uint64(1)
        found = np.concatenate([found, words[words < np.uint64(2**63 // below * below)]])
    return (found % np.uint64(below)).astype(np.int32).reshape(shape)


def _sample(
    law: Law, scale: float | np.ndarray, shape: int | tuple[int, ...], source: Source, edge: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """One sample per scale: signed magnitudes times the scale, where m stands for [m + edge/2 - 1, m + edge/2)."""
    scales = np.broadcast_to(_checked(scale, law.reach), shape)
    each, out = scales.reshape(-1), np.empty(scales.size, np.int64)
    for start in range(0, out.size, BATCH):
        part = slice(start, start + BATCH)
        out[part] = _draw(law, each[part], source, edge)
    return out.reshape(scales.shape)


def _checked(scale: float | np.ndarray, reach: int) -> np.ndarray:
    scales = np.asarray(scale, np.float64)
    bad = scales[~(np.isfinite(scales) & (scales > 0))]
    if bad.size:
        raise ValueError(f"scale={bad.flat[0]} must be finite and positive")
    if scales.size and scales.max() * reach > LARGEST:
        raise ValueError(
            f"scale={scales.max()} is too large: {reach} times as much must fit in an int32; use a coarser grid or "
            f"less noise, so that scale <= {LARGEST // reach}"
        )
    return scales


def _words(source: Source, count: int) -> np.ndarray:
    return np.frombuffer(source(8 * count), "<u8", count)


def _draw(law: Law, scale: np.ndarray, source: Source, edge: int) -> np.ndarray:
    """One sample per scale. A word is a sign and j; the tail probability u lies in [j, j + 1) / 2**64."""
    words = _words(source, scale.size)
    j = (words & np.uint64(2**63 - 1)).astype(np.int64)
    low, high = _bounds(law, scale, j, edge)
    for i in np.flatnonzero((low != high) | (j < SMALL)):
        low[i] = _resolve(_Edges(law, float(scale[i]), edge), int(j[i]), int(low[i]), source)
    return np.where(words >> np.uint64(63), -low, low)


def _bounds(law: Law, scale: np.ndarray, j: np.ndarray, edge: int) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest magnitude that j leaves open; where j < SMALL only the least is meaningful.

    u is known up to a factor 1 +- (2**-53 + 1/j), and |dx| <= sqrt(pi/2) |d log u|. The error below is more than twice
    that, plus twice RELATIVE_ERROR for the magnitude and the product.
    """
    at_least_small = np.maximum(j, SMALL).astype(np.float64)
    x = law.magnitude(at_least_small * 2.0**-64)
    error = 2.0**-50 + 4 / at_least_small + 2 * RELATIVE_ERROR * x
    shift = 1 - edge / 2
    low, high = scale * np.maximum(x - error, 0) + shift, scale * (x + error) + shift
    return low.astype(np.int64), high.astype(np.int64)  # none is negative, so that this rounds down


@dataclass(frozen=True)
class _Edges:
    """The tail probabilities at the upper edges of the integers, for one scale."""

    law: Law
    scale: float
    edge: int

    def tail(self, m: int, bits: int) -> int:
        """P(X * scale > m + edge/2) in units of 2**-bits, X one-sided."""
        top, bottom = self.scale.as_integer_ratio()
        above, below = (2 * m + self.edge) * bottom, 2 * top
        if above >= 2 * bits * below:  # both laws' tails are below exp(-x / 2) there, less than one unit
            return 0
        precision = bits + GUARD_BITS
        x = libmp.from_rational(above, below, precision)
        return int(libmp.to_fixed(self.law.tail(x, precision), bits - 1))


def _resolve(edges: _Edges, j: int, low: int, source: Source) -> int:
    """The least m >= low whose upper edge has a tail probability below u, drawing as many bits of u as that takes."""
    bits = 64

    def reaches(m: int) -> bool:
        nonlocal j, bits
        while True:
            edge, slack = edges.tail(m, bits + GUARD_BITS), 1 << GUARD_BITS // 2
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
