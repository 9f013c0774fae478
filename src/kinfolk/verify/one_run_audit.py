"""Auditing with a single run: many canaries, each in or out by its own coin, and guesses about some of them.

If a mechanism is private for each unit, no guesser who sees its output beats a biased coin on all guesses together, by
the theorem of Steinke, Nasr and Jagielski (2023). One run then bounds epsilon. It needs very many canaries that do not
get in each other's way: with few weights or few canaries its bound is 0, and says nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.privacy import clipping
from kinfolk.privacy.mechanisms import Cost, GaussianSum
from kinfolk.privacy.release import new_meter

BLOCKS, WIDTH = 256, 512
"""Canaries are released in this many disjoint groups of so many, one direction each."""
DELTA = 1e-7
EPSILON = 4.0
POWER_RUNS = 20


@dataclass(frozen=True)
class OneRunFinding:
    """What one run with many canaries found; see `attack.Finding` for the fields they share."""

    name: str
    level: str
    view: str
    claim: float
    delta: float
    lower_bound: float
    confidence: float
    runs: int
    canaries: int
    guesses: int
    correct: int
    power: float
    lower_bound_if_halved: float
    exceeded: bool
    seconds: float


def one_run_bound(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """The largest epsilon under which so many correct guesses are less likely than the permitted error; 0 if none.

    >>> round(one_run_bound(100, 100, 1000, 0.0, 0.99), 2)
    3.05
    """
    low, high = 0.0, 30.0
    if _chance(correct, guesses, canaries, 0.0, delta) > 1 - confidence:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if _chance(correct, guesses, canaries, middle, delta) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def _chance(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Most that the probability of at least `correct` right guesses can be under (epsilon, delta)-privacy.

    Each guess is right like a coin of bias `e^epsilon / (1 + e^epsilon)`; delta adds, for the worst i, twice
    `canaries * delta / i` times the chance of being at most i guesses short.
    """
    bias = 1 / (1 + np.exp(-epsilon))
    enough = stats.binom.sf(correct - 1, guesses, bias)
    short = np.arange(1, correct + 1)
    almost = np.cumsum(stats.binom.pmf(correct - short, guesses, bias))
    return float(enough + 2 * canaries * delta * np.max(almost / short, initial=0.0))


@partial(jax.jit, static_argnums=0)
def _play(noise_multiplier: float, key: Array, noise: Array) -> tuple[Array, Array]:
    """The coins of all canaries, and every canary's score: the released sum along its own direction."""
    mechanism = GaussianSum(jnp.float32(1), noise * noise_multiplier)

    def block(key: Array) -> tuple[Array, Array]:
        coins = jax.random.bernoulli(jax.random.fold_in(key, 0), shape=(WIDTH,))
        units = 1e3 * jnp.eye(WIDTH, dtype=jnp.float32)
        meter = new_meter(jax.random.fold_in(key, 1), ("sum",))
        total, _ = mechanism("sum", meter, clipping.rows(lambda _, unit: unit), (), units, coins)
        return coins, total

    coins, scores = jax.lax.map(block, jax.random.split(key, BLOCKS))
    return coins.ravel(), scores.ravel()


def _outcome(noise_multiplier: float, key: Array, noise: float) -> np.ndarray:
    """For every canary, from the most to the least confident guess, whether the guess is right."""
    coins, scores = (np.asarray(v) for v in _play(noise_multiplier, key, jnp.float32(noise)))
    order = np.argsort(-np.abs(scores - 0.5), kind="stable")
    return ((scores > 0.5) == coins)[order]


def _bound(noise_multiplier: float, key: Array, confidence: float, noise: float) -> tuple[float, int, int]:
    """The bound of one run, with the number of guesses fixed on another run; guesses and how many were right."""
    pilot, main = (jax.random.fold_in(key, stage) for stage in range(2))
    right = np.cumsum(_outcome(noise_multiplier, pilot, noise))
    options = np.unique(np.geomspace(16, len(right) // 4, 24).astype(int))
    promised = [one_run_bound(int(right[n - 1]), int(n), len(right), DELTA, confidence) for n in options]
    guesses = int(options[int(np.argmax(promised))])
    correct = int(_outcome(noise_multiplier, main, noise)[:guesses].sum())
    return one_run_bound(correct, guesses, len(right), DELTA, confidence), guesses, correct


def gaussian_sum_in_one_run(epsilon: float = EPSILON, confidence: float = 0.99, seed: int = 0) -> OneRunFinding:
    """One run of the Gaussian sum with a canary in each of its 131072 directions."""
    begin = time.monotonic()
    (noise,) = noise_for_budget.noise_multipliers([Case(epsilon, DELTA, 1)])
    claim = composition.epsilon([(Cost("gaussian", noise), 1)], DELTA)
    key = jax.random.key(seed)
    found, guesses, correct = _bound(noise, jax.random.fold_in(key, 0), confidence, 1.0)
    halved = [_bound(noise, jax.random.fold_in(key, 1 + i), confidence, 0.5)[0] for i in range(POWER_RUNS)]
    values: dict[str, Any] = {
        "lower_bound": found,
        "confidence": confidence,
        "runs": 1,
        "canaries": BLOCKS * WIDTH,
        "guesses": guesses,
        "correct": correct,
        "power": float(np.mean(np.array(halved) > claim)),
        "lower_bound_if_halved": float(np.median(halved)),
        "exceeded": found > claim,
        "seconds": round(time.monotonic() - begin, 1),
    }
    return OneRunFinding("gaussian_sum", "client", "one_run", claim, DELTA, **values)
