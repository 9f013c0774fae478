"""From a level and a federation's public sizes to its `Terms`: noise, rates and capacities, all of them accounted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.composition import BudgetError
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.limits import LARGEST_CLIP, LARGEST_NOISE_MULTIPLIER, SMALLEST_CLIP
from kinfolk.privacy import correlated_noise
from kinfolk.privacy.choice import ExactMin, NoisyMin
from kinfolk.privacy.correlated_noise import CorrelatedSum
from kinfolk.privacy.gates import CHOICE, GRADIENT
from kinfolk.privacy.levels import Budget, Level, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import (
    AdaptiveSum,
    ExactSum,
    GaussianSum,
    LaplaceSum,
    Sampling,
    coin_rate,
)

Uses = dict[str, np.ndarray]
"""For every kind of release, how often each party makes it in every round: (rounds, parties)."""
SMALL_MODEL = 2000
"""Up to this many weights, computing on all rows of a client is cheaper than gathering a batch."""


@dataclass(frozen=True)
class Population:
    """What calibration has to know about clients and their work: all of it public."""

    ids: Sequence[str]
    sizes: np.ndarray
    """Training examples of each client."""
    batch_size: int | None = None
    weights_count: int = 0
    """Weights of the model."""
    shuffled: bool = False
    """Batches are parts of shuffled passes, where nobody pays for them."""


def draft(privacy: PrivacyLevel) -> PrivacyLevel:
    """The level with some noise in place of its budget: what releases are counted under."""
    if not privacy.level.private:
        return privacy
    return replace(privacy, epsilon=None, noise_multiplier=1.0, budgets={}, allow_large_delta=True)


def calibrated(privacy: PrivacyLevel, who: Population, count: Callable[[Terms], Uses]) -> tuple[Terms, Uses]:
    """The mechanisms of a run, calibrated to the releases that its program makes, and these counts.

    `count` reads them off the program under draft terms, which differ from the final ones in numbers only.
    """
    nothing = {kind: np.zeros(len(who.ids), int) for kind in privacy.level.kinds}

    def terms(privacy: PrivacyLevel, uses: Mapping[str, np.ndarray]) -> Terms:
        return terms_for(privacy, who.ids, who.sizes, who.batch_size, uses, who.weights_count, who.shuffled)

    uses = count(terms(draft(privacy), nothing))
    return terms(privacy, uses), uses


def terms_for(
    level: PrivacyLevel,
    ids: Sequence[str],
    sizes: np.ndarray,
    batch_size: int | None,
    uses: Mapping[str, np.ndarray],
    weights_count: int = 0,
    shuffled: bool = False,
) -> Terms:
    """The mechanisms for a whole run.

    `sizes`: training examples of each client (public). `uses`: for every kind of release, how often each party makes
    it, in the whole run or (rounds x parties) in every round, counted on the program itself. `weights_count`: the
    number of weights of the model. `shuffled`: batches are parts of shuffled passes, where nobody pays for them.
    """
    uses = {kind: np.atleast_2d(counted) for kind, counted in uses.items()}
    rounds = max((len(counted) for counted in uses.values()), default=1)
    noise_factors, clip_factors = factors_of(level, rounds)
    check_deltas(level, ids, sizes)
    rates = np.array([coin_rate(batch_size / n) if batch_size else 1.0 for n in sizes])
    clients = len(sizes)
    cohort_rate = coin_rate(level.cohort / clients) if level.cohort else 1.0
    if level.level.clients_pay:
        if shuffled:
            raise BudgetError("batches='shuffled' has no account at level='example': use batches='poisson'")
        counts = uses[GRADIENT].sum(axis=0)
        chooser = NoisyMin(
            np.full(clients, level.choice_bound, np.float32),
            np.full(clients, (2.0 if level.relation == "replace_one" else 1.0) / level.choice_epsilon, np.float32),
            level.relation,
            level.choice_score,
        )
        deltas = np.array([budget_of(level, name, n)[1] for name, n in zip(ids, sizes, strict=True)])
        needed = [composition.capacity(n, r, u, d) for n, r, u, d in zip(sizes, rates, counts, deltas, strict=True)]
        capacity = _worthwhile(max(needed), int(max(sizes)), weights_count)
        overflow = np.array([_overflow(int(n), r, capacity) for n, r in zip(sizes, rates, strict=True)])
        if level.noise_bands > 1:
            periods = np.array([max(1, n // batch_size) if batch_size else 1 for n in sizes])
            data = _correlated(level, ids, sizes, periods, counts, uses[CHOICE])
            inbox = ExactSum(Sampling(np.float32(cohort_rate)), sampled_here=False)
            return Terms(data, chooser, inbox)
        choices = list(zip(chooser.costs(), uses[CHOICE].sum(axis=0).tolist(), strict=True))
        parts = [grouped(noise_factors, column) for column in uses[GRADIENT].T]
        noise = _noise(level, ids, sizes, rates, counts, parts, overflow, choices)
        _check_noise(noise, noise_factors)
        data = GaussianSum(
            np.full(clients, level.clip, np.float32),
            noise.astype(np.float32),
            Sampling(rates.astype(np.float32), capacity),
            overflow.astype(np.float32),
            relation=level.relation,
        )
        inbox = ExactSum(Sampling(np.float32(cohort_rate)), sampled_here=False)
        return Terms(data, chooser, inbox, noise_factors, clip_factors)
    chooser = ExactMin(np.ones(clients, np.float32), level.choice_score)
    capacity = _worthwhile(
        max(composition.capacity(n, r, 10**6, 1e-6) for n, r in set(zip(sizes.tolist(), rates.tolist(), strict=True))),
        int(max(sizes)),
        weights_count,
    )
    data = ExactSum(Sampling(rates.astype(np.float32), capacity), shuffled=batch_size if shuffled else None)
    if not level.level.private:
        return Terms(data, chooser, ExactSum(Sampling(np.float32(cohort_rate)), sampled_here=False))
    counted = np.sum(np.broadcast_arrays(*(uses[kind][:, 0] for kind in Level.CLIENT.inbox_kinds)), axis=0)
    count = int(counted.sum())
    if level.noise_bands > 1:
        period = max(1, int(clients // level.cohort)) if level.cohort else 1
        if (counted > 1).any() or (rounds > 1 and (counted != 1).any()):
            raise BudgetError("noise_bands above 1 at client level needs one release in every round: use noise_bands=1")
        inbox = _correlated(level, [""], np.array([clients]), np.array([period]), np.array([count]), np.zeros(1))
        return Terms(data, chooser, jax.tree.map(lambda leaf: leaf[0], replace(inbox, sampled_here=False)))
    _, delta = budget_of(level, "", clients)
    places = composition.capacity(clients, cohort_rate, count, delta)
    places = _worthwhile(places, clients, weights_count, 2)
    overflow = _overflow(clients, cohort_rate, places)
    if level.noise == "laplace":
        scale = level.noise_multiplier or noise_for_budget.laplace_multiplier(
            level.epsilon or 1.0, count, level.relation, level.tasks_per_person
        )
        noisy = LaplaceSum(np.float32(level.clip), np.float32(scale), Sampling(np.float32(1)), level.relation)
        return Terms(data, chooser, replace(noisy, group=level.tasks_per_person))
    if level.noise_multiplier is not None or not count:
        noise = level.noise_multiplier or 1.0
    else:
        assert level.epsilon is not None
        (noise,) = noise_for_budget.noise_multipliers(
            [
                Case(
                    level.epsilon,
                    delta,
                    count,
                    cohort_rate,
                    level.relation,
                    overflow,
                    (),
                    grouped(noise_factors, counted),
                    level.tasks_per_person,
                )
            ]
        )
    _check_noise(noise, noise_factors)
    own = {
        "clip": np.float32(level.clip),
        "noise_multiplier": np.float32(noise),
        "sampling": Sampling(np.float32(cohort_rate), places),
        "overflow": np.float32(overflow),
        "sampled_here": False,
        "relation": level.relation,
        "group": level.tasks_per_person,
    }
    if level.clip_quantile is None:
        inbox = GaussianSum(**own)
    else:
        expected = np.float32(cohort_rate * clients)
        inbox = AdaptiveSum(**own, quantile=np.float32(level.clip_quantile), expected=expected, speed=np.float32(0.2))
    return Terms(data, chooser, inbox, noise_factors, clip_factors)


def _correlated(
    level: PrivacyLevel, ids: Sequence[str], sizes: np.ndarray, periods: np.ndarray, counts: np.ndarray, choices: Any
) -> CorrelatedSum:
    """Correlated noise for every party, from how many steps it takes and how far apart a unit's turns are.

    No more bands than a unit's turns are apart: then a unit's contributions do not overlap in C.
    """
    if np.any(choices):
        raise BudgetError("noise_bands above 1 and private choices do not go together yet: use noise_bands=1")
    steps = max(1, int(counts.max(initial=1)))
    bands = [int(min(level.noise_bands, period)) for period in periods]
    found = {b: correlated_noise.strategy(steps, b) if b > 1 else np.ones(1) for b in set(bands)}
    reach = [
        correlated_noise.sensitivity(found[b], int(count), int(period)) if count else 0.0
        for b, count, period in zip(bands, counts, periods, strict=True)
    ]
    cases, places = [], []
    for k, name in enumerate(ids):
        epsilon, delta = budget_of(level, name, sizes[k])
        if level.noise_multiplier is None and epsilon is not None and counts[k]:
            places.append(k)
            cases.append(Case(epsilon, delta, 1, 1.0, level.relation))
    noise = np.full(len(ids), level.noise_multiplier or 1.0)
    noise[places] = np.array(noise_for_budget.noise_multipliers(cases)) * np.array(reach)[places] * (1 + 1e-6)
    return CorrelatedSum(
        np.full(len(ids), level.clip, np.float32),
        noise.astype(np.float32),
        correlated_noise.Turns(periods.astype(np.float32)),
        np.stack([correlated_noise.inverse(found[b], steps) for b in bands]).astype(np.float32),
        np.array(reach, np.float32),
        counts.astype(np.float32),
        relation=level.relation,
    )


def factors_of(level: PrivacyLevel, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """What noise and clip are multiplied by in each round, from the level's schedule."""
    number = np.arange(rounds)
    noise = (number + 1.0) ** -level.noise_power * level.noise_factor**number
    clips = level.clip * level.clip_factor**number
    if not (clips.min() >= SMALLEST_CLIP and clips.max() <= LARGEST_CLIP):
        raise BudgetError(
            f"clip_factor={level.clip_factor} takes the clip norm from {level.clip:g} to {clips[-1]:.2g} over {rounds} "
            f"rounds; it must stay between {SMALLEST_CLIP:g} and {LARGEST_CLIP:g}: use a factor nearer to 1"
        )
    return noise.astype(np.float32), (level.clip_factor**number).astype(np.float32)


def _check_noise(noise: Any, factors: np.ndarray) -> None:
    """Refuses a schedule that at its ends is no noise, or more than a release can draw."""
    least, most = float(np.min(noise) * factors.min()), float(np.max(noise) * factors.max())
    if not 1e-3 <= least <= most <= LARGEST_NOISE_MULTIPLIER:
        raise BudgetError(
            f"noise multipliers would run from {least:.3g} to {most:.3g} over the rounds, and must stay between 0.001 "
            f"and {LARGEST_NOISE_MULTIPLIER:g}: use a noise_power nearer to 0, or a noise_factor nearer to 1"
        )


def grouped(factors: np.ndarray, uses: np.ndarray) -> tuple[tuple[float, int], ...]:
    """How many uses there are at each factor; empty when there is only the factor 1."""
    found = {float(f): int(uses[factors == f].sum()) for f in np.unique(factors)}
    return tuple((f, u) for f, u in found.items() if u) if set(found) != {1.0} else ()


def _worthwhile(capacity: int, longest: int, weights_count: int, small: float = 4) -> int | None:
    """The capacity, where gathering so many of `longest` saves time: `small` times as many for a small model."""
    factor = small if weights_count <= SMALL_MODEL else 1.2
    return capacity if factor * capacity <= longest else None


def _overflow(size: int, rate: float, capacity: int | None) -> float:
    if capacity is None or capacity >= size:
        return 0.0
    probability = composition.overflow_probability(size, rate, capacity)
    return float(np.nextafter(np.float32(probability), np.float32(1)))


def budget_of(level: PrivacyLevel, name: str, size: int) -> tuple[float | None, float]:
    """A party's epsilon (none when the noise is given instead) and delta."""
    own = level.budgets.get(name, Budget(level.epsilon, level.delta) if level.epsilon else None)
    given = level.delta if own is None or own.delta is None else own.delta
    delta = composition.default_delta(int(size)) if given is None else given
    return (own.epsilon if own else None), delta


def _noise(
    level: PrivacyLevel,
    ids: Sequence[str],
    sizes: np.ndarray,
    rates: np.ndarray,
    counts: np.ndarray,
    factors: Sequence[tuple[tuple[float, int], ...]],
    overflow: np.ndarray,
    choices: Sequence[composition.Charge],
) -> np.ndarray:
    noise = np.full(len(sizes), level.noise_multiplier or 1.0)
    places, cases = [], []
    for k, name in enumerate(ids):
        epsilon, delta = budget_of(level, name, sizes[k])
        if level.noise_multiplier is None and epsilon is not None and counts[k]:
            places.append(k)
            spilt = float(np.float32(overflow[k]))
            also = (choices[k],) if choices[k][1] else ()
            rate, count = float(rates[k]), int(counts[k])
            cases.append(Case(epsilon, delta, count, rate, level.relation, spilt, also, factors[k]))
    noise[places] = noise_for_budget.noise_multipliers(cases)
    return noise


def check_deltas(level: PrivacyLevel, ids: Sequence[str], sizes: np.ndarray) -> None:
    """Refuses a delta of 1/n or more, and warns from 1/(10 n) on; n is the number of protected units."""
    if not level.level.private:
        return
    unknown = sorted(set(level.budgets) - set(ids))
    if unknown:
        raise BudgetError(f"budgets name clients that are not in the data: {', '.join(unknown[:5])}")
    clients = zip(ids, sizes.tolist(), strict=True)
    parties = [("the federation", len(sizes))] if level.level.server_pays else list(clients)
    deltas = {who: (budget_of(level, who, n)[1], n) for who, n in parties}
    worst = max(deltas, key=lambda who: deltas[who][0] * deltas[who][1])
    delta, n = deltas[worst]
    if delta >= 1 / n and not level.allow_large_delta:
        raise BudgetError(
            f"delta={delta:g} is not below 1/{n}, one over the number of units of {worst!r}: such a guarantee would "
            f"allow publishing a whole unit. Use {composition.default_delta(n):.2g} or less, or set allow_large_delta"
        )
    if delta > 1 / (10 * n) and not level.allow_large_delta:
        text = f"delta={delta:g} is above a tenth of 1/{n} ({worst!r}): choose a smaller one, or set allow_large_delta"
        warnings.warn(text, stacklevel=2)
