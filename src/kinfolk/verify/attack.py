"""Attacks: lower bounds on epsilon that no argument about the code can explain away.

An attack plays the same game many times in two worlds, one with a canary unit and one without it, and looks at what an
adversary sees. If a set of outcomes is far likelier in one world than in the other, epsilon cannot be small:
(epsilon, delta)-privacy says `p <= exp(epsilon) * q + delta` for every set. The set (a `Rule`) is fixed on pilot runs
that are not used again, so the two Clopper-Pearson bounds are honest and the result holds with the stated confidence.

A lower bound of 0 proves nothing by itself: every finding says how likely the very same test would have caught noise
that is half of what it should be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike
from scipy import stats

CHUNK = 4096
"""Runs computed together."""
PILOT_RUNS = 8 * CHUNK
"""Per world: one half finds the direction, the other half the threshold."""
POWER_RUNS = 4 * CHUNK
RIDGE = 1e-9
"""Added to a correlation matrix before it is inverted. Small, because a direction without noise is a leak."""


@dataclass(frozen=True)
class Problem:
    """Something to attack: two worlds, what is claimed about them, and what the adversary sees."""

    name: str
    level: str
    view: str
    claim: float
    """The epsilon that is claimed."""
    delta: float
    observe: Callable[[Array, Array, Array], Array]
    """`observe(key, present, noise)`: what is seen in one run, as a vector. `present` is 1 with the canary and 0
    without; `noise` multiplies every standard deviation, 1 for the real thing."""
    rule: Rule | None = None
    """The rejection set, where theory gives it. None: from pilot runs."""
    has_noise: bool = True
    """False where nothing is released at all, so that no noise could be wrong."""
    sampled: bool = False
    """Whether units take part by chance, and the claim counts on it."""
    private: bool = True
    """False for what is known to leak, and is here to be shown to."""


@dataclass(frozen=True)
class Rule:
    """A set of outcomes: those whose score, a linear function of what is seen, lies above a threshold."""

    centre: np.ndarray
    weights: np.ndarray
    threshold: float
    likely_present: bool
    """Whether the set is likely in the world with the canary, or in the one without."""

    def scores(self, seen: np.ndarray) -> np.ndarray:
        return (seen - self.centre) @ self.weights


@dataclass(frozen=True)
class Finding:
    """What an attack found."""

    name: str
    level: str
    view: str
    sampled: bool
    claim: float
    delta: float
    lower_bound: float
    """Epsilon is at least this, with the stated confidence."""
    confidence: float
    runs: int
    """Per world."""
    pilot_runs: int
    power: float | None
    """Probability that this very test, its pilot runs included, exceeds the claim if the noise is half as strong."""
    lower_bound_if_halved: float | None
    """What this test would typically find then."""
    rates: tuple[float, float]
    """How often the rejection set was hit: in the world where it is likely, and in the other."""
    exceeded: bool
    """Whether the claim is refuted."""
    private: bool = True
    """False for what is known to leak."""
    scores: tuple[np.ndarray, np.ndarray] = field(repr=False, default=(np.zeros(0), np.zeros(0)))
    """Scores without and with the canary, for the picture."""
    threshold: float = 0.0

    def record(self) -> dict[str, Any]:
        """Everything but the scores, as plain values."""
        return {key: value for key, value in asdict(self).items() if key not in ("scores", "threshold")}


def at_least(hits: ArrayLike, runs: int, error: float) -> np.ndarray:
    """Clopper-Pearson: a probability is at least this, but for a chance of `error`."""
    hits = np.asarray(hits)
    return np.where(hits == 0, 0.0, stats.beta.ppf(error, np.maximum(hits, 1), runs - hits + 1))


def at_most(hits: ArrayLike, runs: int, error: float) -> np.ndarray:
    """Clopper-Pearson: a probability is at most this, but for a chance of `error`."""
    hits = np.asarray(hits)
    return np.where(hits == runs, 1.0, stats.beta.ppf(1 - error, hits + 1, np.maximum(runs - hits, 1)))


def lower_bound(likely: ArrayLike, unlikely: ArrayLike, runs: int, delta: float, confidence: float) -> np.ndarray:
    """Epsilon is at least this, given how often a set fixed beforehand was hit in each world; never below 0.

    The permitted error is shared equally by the two probabilities.

    >>> round(float(lower_bound(1000, 0, 1000, 0.0, 0.99)), 2)
    5.24
    """
    error = (1 - confidence) / 2
    high = np.maximum(at_least(likely, runs, error) - delta, 0)
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(high / at_most(unlikely, runs, error)), 0.0)


def attack(problem: Problem, *, runs: int, confidence: float = 0.99, seed: int = 0, with_power: bool = True) -> Finding:
    """Plays a problem `runs` times in each world and bounds epsilon from below."""
    if runs < 1:
        raise ValueError(f"runs={runs} must be at least 1")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie between 0 and 1")
    play = Player(problem, seed)
    rule = problem.rule or find_rule(play, problem.delta, runs, confidence)
    scores = play.scores(rule, False, runs), play.scores(rule, True, runs)
    absent, present = (int((s > rule.threshold).sum()) for s in scores)
    likely, unlikely = (present, absent) if rule.likely_present else (absent, present)
    found = float(lower_bound(likely, unlikely, runs, problem.delta, confidence))
    power, typical = _power(play, problem, runs, confidence) if with_power and problem.has_noise else (None, None)
    return Finding(
        name=problem.name,
        level=problem.level,
        view=problem.view,
        sampled=problem.sampled,
        claim=problem.claim,
        delta=problem.delta,
        lower_bound=found,
        confidence=confidence,
        runs=runs,
        pilot_runs=0 if problem.rule else PILOT_RUNS,
        power=power,
        lower_bound_if_halved=typical,
        rates=(likely / runs, unlikely / runs),
        exceeded=found > problem.claim,
        private=problem.private,
        scores=scores,
        threshold=rule.threshold,
    )


@dataclass
class Player:
    """Plays a problem, in chunks of one compiled program. Every chunk of every stage has its own keys."""

    problem: Problem
    seed: int
    _stages: Iterator[int] = field(default_factory=itertools.count)
    _places: slice | np.ndarray = field(default_factory=lambda: slice(None), init=False)
    """Of all that is seen, what is looked at."""

    def __post_init__(self) -> None:
        observe = self.problem.observe

        @jax.jit
        def chunk(key: Array, present: Array, noise: Array) -> Array:
            return jax.vmap(observe, in_axes=(0, None, None))(jax.random.split(key, CHUNK), present, noise)

        self._chunk = chunk
        if self.problem.rule is None:
            seen = [next(self.chunks(present, CHUNK)) for present in (False, True)]
            self._places = distinct(np.concatenate(seen))

    def chunks(self, present: bool, runs: int, noise: float = 1.0) -> Iterator[np.ndarray]:
        """What is seen in `runs` fresh runs, a chunk at a time."""
        key = jax.random.fold_in(jax.random.key(self.seed), next(self._stages))
        for begin in range(0, runs, CHUNK):
            seen = self._chunk(jax.random.fold_in(key, begin), jnp.float32(present), jnp.float32(noise))
            yield np.asarray(seen)[: runs - begin, self._places].astype(np.float64)

    def all(self, present: bool, runs: int, noise: float = 1.0) -> np.ndarray:
        return np.concatenate(list(self.chunks(present, runs, noise)))

    def scores(self, rule: Rule, present: bool, runs: int, noise: float = 1.0) -> np.ndarray:
        return np.concatenate([rule.scores(seen) for seen in self.chunks(present, runs, noise)])


def distinct(seen: np.ndarray) -> np.ndarray:
    """Places of what is seen that are not, in every run of a sample, the very same number as an earlier one.

    What a method keeps is seen again in every round, and twice where it is sent.

    >>> distinct(np.array([[1.0, 1.0, 2.0], [3.0, 3.0, 2.0]]))
    array([0, 2])
    """
    columns = np.ascontiguousarray(seen.T)
    first = {column.tobytes(): place for place, column in reversed(list(enumerate(columns)))}
    return np.array(sorted(first.values()))


def find_rule(play: Player, delta: float, runs: int, confidence: float, noise: float = 1.0) -> Rule:
    """A rejection set from pilot runs: the best linear score, and the threshold that promises the largest bound."""
    absent, present = (play.all(world, PILOT_RUNS, noise) for world in (False, True))
    half = PILOT_RUNS // 2
    centre, weights = linear_score(absent[:half], present[:half])
    best = (-math.inf, 0.0, True)
    for likely_present in (True, False):
        sign = 1.0 if likely_present else -1.0
        low, high = (np.sort(sign * (seen[half:] - centre) @ weights) for seen in (absent, present))
        if not likely_present:
            low, high = high, low
        for threshold in _candidates(low, high):
            hits = [half - np.searchsorted(values, threshold, side="right") for values in (high, low)]
            promised = _promise(hits[0], hits[1], half, runs, delta, confidence)
            best = max(best, (promised, threshold, likely_present))
    _, threshold, likely_present = best
    return Rule(centre, weights if likely_present else -weights, float(threshold), likely_present)


def _candidates(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Thresholds worth trying: quantiles of both worlds, halfway between neighbouring values."""
    tails = np.concatenate([np.geomspace(2e-3, 0.5, 60), 1 - np.geomspace(2e-3, 0.5, 30)])
    values = np.concatenate([np.quantile(world, 1 - tails) for world in (low, high)])
    gap = (low[-1] + high[0]) / 2
    return np.unique(np.append(values, gap))


def _promise(likely_hits: int, unlikely_hits: int, pilot: int, runs: int, delta: float, confidence: float) -> float:
    """The bound to expect from `runs` runs. Rates are taken pessimistically, lest the luckiest threshold wins."""
    likely, unlikely = float(at_least(likely_hits, pilot, 0.05)), float(at_most(unlikely_hits, pilot, 0.05))
    return float(lower_bound(math.floor(likely * runs), math.ceil(unlikely * runs), runs, delta, confidence))


def linear_score(absent: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and weights of the linear function that separates two samples best (Fisher's discriminant).

    With Gaussian noise this is the likelihood ratio, whatever the algorithm did to it on the way to the adversary.
    """
    centre, shift = absent.mean(axis=0), present.mean(axis=0) - absent.mean(axis=0)
    within = (np.cov(absent, rowvar=False) + np.cov(present, rowvar=False)) / 2
    within = np.atleast_2d(within)
    scale = np.sqrt(np.diag(within))
    scale = np.where(scale > 0, scale, np.where(shift != 0, np.abs(shift), 1.0))
    correlation = within / np.outer(scale, scale) + RIDGE * np.eye(len(scale))
    return centre, np.linalg.solve(correlation, shift / scale) / scale


def _power(play: Player, problem: Problem, runs: int, confidence: float) -> tuple[float, float]:
    """How the same test would fare with half the noise: the chance to exceed the claim, and the median bound.

    The test includes its pilot runs, which would see that noise too. Hit rates are estimated pessimistically.
    """
    rule = problem.rule or find_rule(play, problem.delta, runs, confidence, noise=0.5)
    absent, present = (
        int((play.scores(rule, world, POWER_RUNS, noise=0.5) > rule.threshold).sum()) for world in (False, True)
    )
    likely, unlikely = (present, absent) if rule.likely_present else (absent, present)
    rates = float(at_least(likely, POWER_RUNS, 0.05)), float(at_most(unlikely, POWER_RUNS, 0.05))
    generator = np.random.default_rng(play.seed)
    hits = [generator.binomial(runs, rate, 2000) for rate in rates]
    bounds = lower_bound(hits[0], hits[1], runs, problem.delta, confidence)
    return float((bounds > problem.claim).mean()), float(np.median(bounds))
