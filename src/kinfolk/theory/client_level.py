"""The noise of mean regularisation at client level: lemma 1, theorems 1 and 2 of Hu, Wu and Smith.

Numbers are those of the longer text; in the journal's version theorem 2 is corollary 2, lemma 1 is the definition of
billboard privacy, and lemmas 2 to 4 are 1 to 3. A round publishes the mean of q clients' updates, each of norm at most
`clip`, with noise of standard deviation sigma on every coordinate of the *mean*; so the sum has the noise multiplier `z
= q sigma / clip`. Two data sets are neighbours if one client's whole data differ: replacing a client moves the sum by
up to 2 clip. What a run is charged comes from `accounting/`; these functions are about what the paper says.

* **Lemma 1** (billboard): if what is published is private, so is everything that the *other* clients compute from it
  and from their own data. Holds: it is post-processing of the publication and of data that do not change.
* **Theorem 1, everybody takes part** (`noise_on_mean`): holds up to epsilon = 2 log(1/delta), a limit that the proof
  uses (`log(1/delta) / (order - 1) <= epsilon / 2`) and the statement leaves out; exactly up to `largest_epsilon`. Two
  slips of the proof cancel: its lemma 3 has four times the cited divergence, and its sensitivity is half of
  replace-one's.
* **Theorem 1, cohorts** (`noise_with_cohorts`): wrong as printed. For every pair of constants there are rounds and an
  epsilon inside the stated range that it breaks (`counterexample`): the range lets noise per round go to 0. The cited
  proof needs a noise multiplier of at least 1, which is missing.
* **Lemma 2** (DP-SGD, for q < m) is what that part cites, without its condition that the noise multiplier is at least
  1: as printed it is refuted by the same counterexample.
* **Theorem 2** (all models, jointly): wrong as printed, with theorem 1's constants. Where a returned model depends on
  its own client's data and on the publication alone (h'_k), it is exactly theorem 1 by the billboard lemma, and what
  mends that mends it: everybody in every round, or cohorts of independent coins with enough noise. For algorithm 1 as
  it is, with cohorts of a fixed size q < m, as assumed, that is not enough: a client's model changes in exactly the
  rounds in which it took part, so all others together know when the last one did, and sampling hides nothing
  (`known_cohort_delta`). Then no constants are right even where the noise multiplier is 1 or more
  (`joint_counterexample`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from kinfolk.limits import above, whole
from kinfolk.roots import root
from kinfolk.theory.ranges import CHANCE, COUNT, NOT_NEGATIVE, POSITIVE, RATE, SPENT, require


def noise_on_mean(epsilon: float, delta: float, *, clip: float, rounds: int, clients: int) -> float:
    """Theorem 1 without sampling: `sigma = 4 c sqrt(T log(1/delta)) / (epsilon m)`, for replace-one.

    It needs more noise than exact accounting and is not enough above `largest_epsilon`; it is refused where its proof
    ends, at 2 log(1/delta).

    `epsilon`, `delta`: what is promised. `clip`: of one client's update. `rounds`: T. `clients`: m, all in every round.

    >>> round(noise_on_mean(1.0, 1e-5, clip=1.0, rounds=100, clients=1000), 4)
    0.1357
    """
    require(CHANCE, delta=delta)
    require(POSITIVE, clip=clip)
    require(COUNT, rounds=rounds, clients=clients)
    require(above(0, 2 * math.log(1 / delta), "the proof ends at 2 log(1/delta)"), epsilon=epsilon)
    return clip / clients * published_multiplier(epsilon, delta, rounds)


def published_multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """Theorem 1's noise without sampling as a multiplier of the clip on the sum: `4 sqrt(T log(1/delta)) / epsilon`.

    For replace-one, and for epsilon up to `largest_epsilon`. No noise is enough for epsilon 0.

    `epsilon`, `delta`: what is promised. `rounds`: T.
    """
    require(SPENT, epsilon=epsilon)
    require(CHANCE, delta=delta)
    require(COUNT, rounds=rounds)
    if not epsilon:
        return math.inf
    return 4 * math.sqrt(rounds * math.log(1 / delta)) / epsilon


def gaussian_delta(shift: float, epsilon: float) -> float:
    """The exact delta at `epsilon` of telling N(0, 1) from N(`shift`, 1): the best that anybody can do."""
    require(NOT_NEGATIVE, shift=shift, epsilon=epsilon)
    if not shift:
        return 0.0
    seen, rare = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    return max(0.0, float(special.ndtr(seen) - math.exp(epsilon + special.log_ndtr(rare))))


def largest_epsilon(delta: float) -> float:
    """Up to which epsilon theorem 1's noise, everybody taking part, is enough: exactly, for replace-one.

    T rounds are one release with the shift `2 c sqrt(T) / (m sigma)`, which this noise makes
    `epsilon / (2 sqrt(log(1/delta)))`, whatever T, m and the clip are. About 3 log(1/delta).

    `delta`: what is promised.
    """
    require(CHANCE, delta=delta)
    half = 2 * math.sqrt(math.log(1 / delta))
    return root(lambda epsilon: gaussian_delta(epsilon / half, epsilon) - delta, half, 40 * half * (1 + half))


MOST_ROUNDS = 10**9
"""In which a counterexample is looked for."""
ROUNDS = whole(1, 10**15, "it counts rounds")
"""Of a counterexample: more than anybody trains, but the statements are for all."""


@dataclass(frozen=True)
class Cohorts:
    """Rounds in which a part of the clients is drawn, and what theorem 1 promises for them."""

    rate: float
    """p = q/m, the chance of a client to be in a round."""
    rounds: int
    """T, up to 1e15."""
    epsilon: float
    """The promise."""
    delta: float
    """The promise."""
    noise_multiplier: float
    """z: noise on the sum of a round's updates, over the clip."""

    def __post_init__(self) -> None:
        require(RATE, rate=self.rate)
        require(ROUNDS, rounds=self.rounds)
        require(NOT_NEGATIVE, epsilon=self.epsilon)
        require(CHANCE, delta=self.delta)
        require(POSITIVE, noise_multiplier=self.noise_multiplier)

    def delta_at_least(self) -> float:
        """What delta must be at least for this epsilon, whatever the account says, under zero-out with hidden coins.

        From one test: in how many rounds is what is published, along the client's update, above half the clip? The
        count is binomial with the client and without it, so both chances are exact, for every threshold; those tried
        are near the two means.
        """
        wrong = float(special.ndtr(-0.5 / self.noise_multiplier))
        seen = self.rate * (1 - wrong) + (1 - self.rate) * wrong
        thresholds = np.unique(np.concatenate([_near_mean(self.rounds, chance) for chance in (wrong, seen)]))
        with_client = stats.binom.sf(thresholds - 1, self.rounds, seen)
        log_without = stats.binom.logsf(thresholds - 1, self.rounds, wrong)
        return float(np.max(with_client - np.exp(np.minimum(self.epsilon + log_without, 700.0))))

    def known_cohort_delta(self) -> float:
        """The exact delta at this epsilon where others know in which rounds the client took part, under zero-out.

        Then the number n of its rounds is known, binomial and the same in both worlds, and the rest is one Gaussian
        release with the shift `sqrt(n) / z`: the mean of their deltas.
        """
        taken = np.arange(self.rounds + 1)
        chances = stats.binom.pmf(taken, self.rounds, self.rate)
        deltas = [gaussian_delta(math.sqrt(n) / self.noise_multiplier, self.epsilon) for n in taken]
        return float(chances @ np.array(deltas))

    def known_cohort_delta_at_least(self) -> float:
        """Half of the delta at p T rounds, rounded down: `known_cohort_delta` is more, and takes long for many rounds.

        A binomial number is at least its mean, rounded down, in half of the cases or more, and more rounds tell more.
        """
        return gaussian_delta(math.sqrt(math.floor(self.rate * self.rounds)) / self.noise_multiplier, self.epsilon) / 2


def noise_with_cohorts(epsilon: float, delta: float, *, rate: float, rounds: int, second: float) -> float:
    """Theorem 1 with cohorts, as a noise multiplier: `c2 p sqrt(T log(1/delta)) / epsilon`.

    `epsilon`: must be below `c1 p^2 T`. `delta`: what is promised. `rate`: p. `rounds`: T. `second`: the constant c2.
    """
    require(POSITIVE, epsilon=epsilon, second=second)
    require(CHANCE, delta=delta)
    require(RATE, rate=rate)
    require(ROUNDS, rounds=rounds)
    return second * rate * math.sqrt(rounds * math.log(1 / delta)) / epsilon


def counterexample(first: float, second: float, *, rate: float = 0.1, delta: float = 1e-5) -> Cohorts:
    """Rounds inside theorem 1's range, for these constants, at which its noise does not give what it promises.

    At epsilon = c1 p^2 T / 2 the noise multiplier is `2 c2 sqrt(log(1/delta)) / (c1 p sqrt(T))`: with the rounds it
    goes to 0, while the budget of one round stays what it was. `delta_at_least` of the answer is above `delta`.

    `first`, `second`: the constants c1 and c2. `rate`: p. `delta`: what is promised.
    """
    require(POSITIVE, first=first, second=second)
    require(RATE, rate=rate)
    rounds = 16
    while rounds < MOST_ROUNDS:
        epsilon = first * rate**2 * rounds / 2
        noise = noise_with_cohorts(epsilon, delta, rate=rate, rounds=rounds, second=second)
        found = Cohorts(rate, rounds, epsilon, delta, noise)
        if found.noise_multiplier < 1 and found.delta_at_least() > delta:
            return found
        rounds *= 2
    raise ValueError(
        f"first={first}, second={second}: no counterexample with fewer than {MOST_ROUNDS:.0e} rounds; where the noise "
        "multiplier comes below 1 later, there is one"
    )


def joint_counterexample(first: float, second: float, *, delta: float = 1e-5) -> Cohorts:
    """One client in each round, with which theorem 2 breaks for these constants, the noise multiplier being 1 or more.

    At epsilon = c1 T / (2 m^2) the noise multiplier is `c2 sqrt(2 log(1/delta) / (c1 epsilon))` whatever m is, so at
    least 1 for a small epsilon. Whoever knows in which rounds the client took part sees one Gaussian release with the
    shift `epsilon / (c2 sqrt(p log(1/delta)))`, about: it grows with m without limit, p being 1/m. This m gives a shift
    of 3 or more, and `known_cohort_delta_at_least` of the answer is above 0.3, far above any `delta` that
    means something. (Constants for which it would need more than 1e15 rounds are refused.)

    `first`, `second`: the constants c1 and c2. `delta`: what is promised.
    """
    require(POSITIVE, first=first, second=second)
    require(CHANCE, delta=delta)
    square = second**2 * math.log(1 / delta)
    epsilon = min(1.0, 2 * square / first)
    clients = math.ceil(max(9 * square / epsilon**2, 50 * first / epsilon, 2))
    rounds = math.ceil(2 * epsilon * clients**2 / first)
    noise = noise_with_cohorts(epsilon, delta, rate=1 / clients, rounds=rounds, second=second)
    return Cohorts(1 / clients, rounds, epsilon, delta, noise)


def _near_mean(rounds: int, chance: float) -> np.ndarray:
    """Counts of what has this chance in each round, within twelve standard deviations; at most 2001 of them."""
    mean, away = rounds * chance, 12 * math.sqrt(rounds * chance * (1 - chance)) + 1
    return np.rint(np.linspace(max(0.0, mean - away), min(rounds, mean + away), 2001))
