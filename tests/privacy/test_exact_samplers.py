"""The noise of a release run against exact probabilities, and against mpmath's inverse error function."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from kinfolk.privacy import exact_samplers
from kinfolk.privacy.exact_samplers import discrete_gaussian, geometric, rounded_laplace, rounded_normal, uniform

SIGN = 2**63


class Served:
    """A source that serves given words, then an endless row of a fixed one, and counts them."""

    def __init__(self, words: Sequence[int], then: int = 0x0123456789ABCDEF) -> None:
        self.rest, self.words = itertools.chain(words, itertools.repeat(then)), []

    def __call__(self, count: int) -> bytes:
        new = list(itertools.islice(self.rest, count // 8))
        self.words += new
        return b"".join(word.to_bytes(8, "little") for word in new)


def seeded(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def magnitude(u: Any) -> Any:
    """The half-normal value with tail probability u, at mpmath's working precision."""
    return mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * u)


def expected(scale: float, words: Sequence[int]) -> int:
    """The sample that these words stand for: a sign, 63 bits of u, then 64 bits more each."""
    j = words[0] % SIGN
    for word in words[1:]:
        j = j << 64 | word
    with mpmath.workprec(64 * len(words) + 200):
        value = int(scale * magnitude((mpmath.mpf(j) + 0.5) / mpmath.mpf(2) ** (64 * len(words))) + 0.5)
    return -value if words[0] >= SIGN else value


def words_of_edge(scale: float, m: int, count: int) -> list[int]:
    """The first words of the tail probability at m + 1/2, by integrating the density."""
    with mpmath.workprec(64 * count + 100):
        body = mpmath.quad(mpmath.npdf, mpmath.linspace(0, (mpmath.mpf(m) + 0.5) / scale, 9))
        bits = int(mpmath.floor((mpmath.mpf(0.5) - body) * mpmath.mpf(2) ** (64 * count)))
    return [bits >> 64 * (count - 1 - i) & (2**64 - 1) for i in range(count)]


@pytest.mark.parametrize("scale", [0.3, 1.7, 6.5])
def test_cells_have_their_exact_probabilities(scale: float) -> None:
    draws = rounded_normal(scale, 200_000, seeded(1))
    last = int(3 * scale + 0.5)
    cells = np.arange(-last, last + 1)
    edges = np.concatenate([[-np.inf], cells[:-1] + 0.5, [np.inf]])
    counts = np.array([np.sum(np.clip(draws, -last, last) == cell) for cell in cells])
    assert stats.chisquare(counts, draws.size * np.diff(special.ndtr(edges / scale))).pvalue > 1e-6


def test_moments_at_a_large_scale() -> None:
    z = rounded_normal(65536 * 5.0, 1_000_000, seeded(2)) / (65536 * 5.0)
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(np.mean(z**power) - moment) < 5 * np.sqrt(variance / z.size)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5e-3


def test_every_entry_has_its_own_scale() -> None:
    scales = np.array([[0.01], [10.0], [1e6]])
    draws = rounded_normal(scales, (3, 2 * exact_samplers.BATCH + 5), seeded(3))
    assert draws.dtype == np.int32
    assert draws.shape == (3, 2 * exact_samplers.BATCH + 5)
    assert not draws[0].any()
    assert draws[1:].std(axis=1) == pytest.approx([np.sqrt(100 + 1 / 12), 1e6], rel=0.01)


@pytest.mark.parametrize("shape", [(), 0, 3, (2, 0), (2, 3)])
def test_shapes(shape: int | tuple[int, ...]) -> None:
    assert rounded_normal(1e4, shape).shape == np.empty(shape).shape


@pytest.mark.parametrize(
    "j", [1, 2, 3, 77, exact_samplers.SMALL - 1, exact_samplers.SMALL, exact_samplers.SMALL + 1, 10**9, 10**11]
)
@pytest.mark.parametrize("scale", [0.02, 1.7, 65536 * 5.0, 1.7e8])
@pytest.mark.parametrize("sign", [0, SIGN])
def test_tails_are_there(j: int, scale: float, sign: int) -> None:
    source = Served([sign + j])
    (value,) = rounded_normal(scale, 1, source)
    assert value == expected(scale, source.words)
    assert abs(value) >= np.floor(5.5 * scale)


def test_tails_go_on_beyond_the_first_words_and_wrap_like_int32() -> None:
    source = Served([0, 0, 1])
    (value,) = rounded_normal(1e8, 1, source)
    assert value == expected(1e8, source.words) > 16e8
    source = Served([SIGN, 0, 1])
    (value,) = rounded_normal(1.7e8, 1, source)
    assert expected(1.7e8, source.words) < -(2**31)
    assert value == expected(1.7e8, source.words) + 2**32
    assert rounded_normal(5e-324, 1, Served([0, 0, 1])) == 0


@pytest.mark.parametrize("scale", [1.7, 65536 * 5.0, 1.7e8])
@pytest.mark.parametrize("where", [0.0, 0.3, 2.5, 6.0])
@pytest.mark.parametrize("more", [1, 3])
def test_what_float64_cannot_decide_is_decided_by_more_bits(scale: float, where: float, more: int) -> None:
    m = int(where * scale)
    *first, last = words_of_edge(scale, m, more + 1)
    for step, sign in itertools.product((-2, 2), (0, SIGN)):
        source = Served([first[0] + sign, *first[1:], last + step])
        (value,) = rounded_normal(scale, 1, source)
        assert abs(value) == (m if step > 0 else m + 1)
        assert value == expected(scale, source.words)
        assert len(source.words) == more + 1


def test_an_undecided_entry_leaves_its_neighbours_alone() -> None:
    edge, more = words_of_edge(1e5, 70_000, 2)
    source = Served([123 << 50, edge, SIGN + (1 << 60), more - 2])
    draws = rounded_normal(1e5, 3, source)
    assert draws.tolist() == [expected(1e5, [123 << 50]), 70_001, expected(1e5, [SIGN + (1 << 60)])]


@pytest.mark.slow
def test_samples_agree_with_mpmath() -> None:
    words = [int(word) for word in np.random.default_rng(4).integers(0, 2**64, 2000, np.uint64)]
    source = Served(words)
    draws = rounded_normal(65536 * 5.0, len(words), source)
    assert len(source.words) == len(words)
    assert draws.tolist() == [expected(65536 * 5.0, [word]) for word in words]


def test_bounds_hold_to_the_last_bits_of_float64() -> None:
    """On a grid as fine as float64 itself, so that a bound that is a little too narrow shows."""
    generator = random.Random(5)
    j = [
        exact_samplers.SMALL,
        2**63 - 1,
        2**63 - 2,
        2**63 - 1025,
        *(int(2 ** generator.uniform(20, 63)) for _ in range(600)),
    ]
    grid = 2.0**48
    low, high = exact_samplers._bounds(exact_samplers.NORMAL, np.full(len(j), grid), np.array(j), 1)
    with mpmath.workdps(50):
        for least, largest, number in zip(low.tolist(), high.tolist(), j, strict=True):
            at_most, at_least = (grid * magnitude(mpmath.ldexp(k, -64)) for k in (number, number + 1))
            assert least - 1 <= at_least <= at_most <= largest + 1
            assert largest - least <= 2 + grid * (1e-14 + 5e-13 * float(at_most / grid) + 10 / number)


def test_ndtri_is_as_accurate_as_assumed() -> None:
    u = np.concatenate([2.0 ** -np.linspace(1.001, 44, 500), 0.5 - 2.0 ** -np.linspace(3, 50, 100)])
    with mpmath.workdps(50):
        for each, x in zip(u.tolist(), (-special.ndtri(u)).tolist(), strict=True):
            assert abs(x / magnitude(mpmath.mpf(each)) - 1) < exact_samplers.RELATIVE_ERROR / 20


def test_seeds_have_no_say() -> None:
    def draw() -> np.ndarray:
        np.random.seed(0)
        random.seed(0)
        before = random.getstate(), repr(np.random.get_state())
        draws = rounded_normal(1e6, 100)
        assert before == (random.getstate(), repr(np.random.get_state()))
        return draws

    assert np.mean(draw() == draw()) < 0.1


def test_a_source_that_runs_dry_is_an_error() -> None:
    with pytest.raises(ValueError, match="smaller"):
        rounded_normal(1e6, 100, lambda count: bytes(count - 1))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, -np.inf])
def test_bad_scales_are_named(scale: float) -> None:
    for each in (scale, np.array([1.0, scale, 2.0])):
        with pytest.raises(ValueError, match=f"scale={scale} must be finite and positive"):
            rounded_normal(each, 3)


def test_a_scale_beyond_int32_is_refused_with_a_remedy() -> None:
    limit = (2**31 - 1) / 12
    assert rounded_normal(limit * (1 - 1e-9), 10).dtype == np.int32
    for each in (limit * (1 + 1e-9), np.array([1.0, 1e9, 2.0])):
        with pytest.raises(ValueError, match=r"scale=.* too large.*coarser\s+grid"):
            rounded_normal(each, 3)


@pytest.mark.parametrize("scale", [0.3, 2.0, 9.5])
def test_laplace_cells_have_their_exact_probabilities(scale: float) -> None:
    draws = rounded_laplace(scale, 200_000, seeded(6))
    last = int(3 * scale + 0.5)
    cells = np.arange(-last, last + 1)
    edges = np.concatenate([[-np.inf], cells[:-1] + 0.5, [np.inf]])
    counts = np.array([np.sum(np.clip(draws, -last, last) == cell) for cell in cells])
    assert stats.chisquare(counts, draws.size * np.diff(stats.laplace.cdf(edges / scale))).pvalue > 1e-6


@pytest.mark.parametrize("scale", [0.3, 2.0, 9.5])
def test_a_geometric_number_reaches_k_with_its_exact_probability(scale: float) -> None:
    draws = geometric(scale, 200_000, seeded(7))
    last = int(4 * scale) + 1
    reached = np.exp(-np.arange(last + 1) / scale)
    counts = np.bincount(np.minimum(draws, last), minlength=last + 1)
    assert draws.min() == 0
    assert stats.chisquare(counts, draws.size * -np.diff(np.append(reached, 0))).pvalue > 1e-6


@pytest.mark.parametrize("scale", [1.7, 65536 * 5.0, 2e7])
@pytest.mark.parametrize("where", [0.0, 0.3, 2.5, 6.0])
def test_laplace_and_geometric_numbers_are_right_beside_their_edges(scale: float, where: float) -> None:
    """The first words are those of an edge: what float64 cannot tell is told by the next."""
    m = int(where * scale)
    for sampler, offset in ((rounded_laplace, 0.5), (geometric, 1.0)):
        with mpmath.workprec(300):
            u = mpmath.exp(-(mpmath.mpf(m) + offset) / mpmath.mpf(scale)) / 2
            bits = int(mpmath.floor(u * mpmath.mpf(2) ** 128))
        for step in (-2, 2):
            source = Served([bits >> 64, (bits & (2**64 - 1)) + step])
            assert sampler(scale, 1, source).tolist() == [m if step > 0 else m + 1]
            assert len(source.words) == 2


def test_geometric_numbers_beyond_int32_stay_large() -> None:
    assert geometric(2e7, 1, Served([0, 0, 1])) > 15e8
    assert geometric(2.8e7, 1, Served([0, 0, 0, 0, 1])) == 2**31 - 1


def test_uniform_numbers_are_even_and_thrown_away_where_they_would_not_be() -> None:
    draws = uniform(7, 70_000, seeded(8))
    assert stats.chisquare(np.bincount(draws, minlength=7)).pvalue > 1e-6
    edge = 2**63 // 7 * 7
    assert uniform(7, 2, Served([2 * edge, 2 * (edge - 1), 2 * 9])).tolist() == [6, 2]


@pytest.mark.parametrize("scale", [0.31, 0.6, 5.0, 1000.0, 2e5])
def test_the_quick_ratio_of_a_discrete_gaussian_is_the_exact_one(scale: float) -> None:
    for sigmas in (0, 1, 3, 8, 12):
        m = int(sigmas * scale)
        quick = float(exact_samplers._quick_ratio(np.array([m]), scale)[0])
        exact = exact_samplers._ratio(m, scale, 200) / 2**200
        assert np.isnan(quick) or abs(quick - exact) < exact_samplers.RATIO_ERROR / 1000
        weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(scale) ** 2)) for k in (m, m + 1)]
        cells = [mpmath.ncdf((k + 0.5) / scale) - mpmath.ncdf((k - 0.5) / scale) for k in (m, m + 1)]
        if sigmas < 4:  # where double precision of the textbook formula suffices
            following = exact_samplers._ratio(m + 1, scale, 200) / 2**200
            assert float(weights[0] / cells[0] / (weights[1] / cells[1])) == pytest.approx(exact / following, rel=1e-5)


def test_a_discrete_gaussian_draws_as_many_bits_as_it_takes() -> None:
    """A uniform number that begins like the ratio itself is settled by its later bits, above or below."""
    ratio = exact_samplers._ratio(3, 2.0, 128)
    first, second = ratio >> 64, ratio & (2**64 - 1)
    for more, kept in ((second - 2**40, True), (second + 2**40, False)):
        served = Served([more])
        assert exact_samplers._below_ratio(first, 3, 2.0, served) is kept
        assert len(served.words) == 1


@pytest.mark.parametrize("shape", [(), 0, 3, (2, 0), (2, 3)])
def test_shapes_of_discrete_gaussians(shape: int | tuple[int, ...]) -> None:
    assert discrete_gaussian(1e4, shape).shape == np.empty(shape).shape
    with pytest.raises(ValueError, match="one number"):
        discrete_gaussian(np.ones(2), shape)  # type: ignore[arg-type]
