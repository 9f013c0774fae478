"""From a level and a federation's public sizes to its `Terms`: noise, rates and capacities, all of them accounted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.budgets import budget_of, check_deltas
from kinfolk.accounting.composition import BudgetError
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.accounting.noise_schedules import check_noise, check_share, factors_of, grouped
from kinfolk.privacy import correlated_noise
from kinfolk.privacy.choice import ExactMin, NoisyMin
from kinfolk.privacy.correlated_noise import CorrelatedSum
from kinfolk.privacy.gates import CHOICE, GRADIENT, STATISTIC
from kinfolk.privacy.levels import Level, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import (
    AdaptiveSum,
    ExactSum,
    GaussianSum,
    LaplaceSum,
    Sampling,
    coin_rate,
)
from kinfolk.privacy.noise_shares import LAW

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
    noise_factors: tuple[float, ...] = ()
    """What the methods multiply noise by in each round (`schedules.noise_factors`); empty: the same in all."""


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

    uses = count(terms_for(draft(privacy), who, nothing))
    return terms_for(privacy, who, uses), uses


def terms_for(level: PrivacyLevel, who: Population, uses: Mapping[str, np.ndarray]) -> Terms:
    """The mechanisms for a whole run.

    `uses`: for every kind of release, how often each party makes it, in the whole run or (rounds x parties) in every
    round, counted on the program itself.
    """
    by_round = {kind: np.atleast_2d(counted) for kind, counted in uses.items()}
    rounds = max((len(counted) for counted in by_round.values()), default=1)
    work = Work(level, who, by_round, *factors_of(level, rounds, who.noise_factors))
    check_deltas(level, who.ids, who.sizes)
    if level.level.clients_pay:
        return _example_terms(work)
    data, chooser = _open_data(work)
    if level.level.server_pays:
        return _client_terms(work, data, chooser)
    return Terms(data, chooser, _open_inbox(work))


@dataclass(frozen=True)
class Work:
    """A level and what it has to pay for: all that mechanisms are made from."""

    level: PrivacyLevel
    who: Population
    uses: Uses
    noise_factors: np.ndarray
    """What noise is multiplied by in each round."""
    clip_factors: np.ndarray

    @property
    def clients(self) -> int:
        return len(self.who.sizes)

    @property
    def rates(self) -> np.ndarray:
        """At which each client's coins take an example into a batch."""
        batch_size = self.who.batch_size
        return np.array([coin_rate(batch_size / n) if batch_size else 1.0 for n in self.who.sizes])

    @property
    def sums(self) -> np.ndarray:
        """Noisy sums that each client makes at its data gate in every round: (rounds, clients)."""
        made = [self.uses[kind] for kind in (GRADIENT, STATISTIC) if kind in self.uses]
        return np.sum(np.broadcast_arrays(*made), axis=0)

    @property
    def cohort_rate(self) -> float:
        """At which clients are taken into a round's cohort."""
        return coin_rate(self.level.cohort / self.clients) if self.level.cohort else 1.0


def _open_inbox(work: Work) -> ExactSum:
    """The aggregator's sum where it adds no noise."""
    return ExactSum(Sampling(np.float32(work.cohort_rate)), sampled_here=False)


def _open_data(work: Work) -> tuple[ExactSum, ExactMin]:
    """What stands at the data gates where clients add no noise."""
    sizes, rates, who = work.who.sizes, work.rates, work.who
    pairs = set(zip(sizes.tolist(), rates.tolist(), strict=True))
    capacity = max(composition.capacity(n, r, 10**6, 1e-6) for n, r in pairs)
    sampling = Sampling(rates.astype(np.float32), _worthwhile(capacity, int(max(sizes)), who.weights_count))
    chooser = ExactMin(np.ones(work.clients, np.float32), work.level.choice_score)
    return ExactSum(sampling, shuffled=who.batch_size if who.shuffled else None), chooser


def _example_terms(work: Work) -> Terms:
    """Every client adds noise to its own sums and choices, for its own budget."""
    level, who, inbox = work.level, work.who, _open_inbox(work)
    if who.shuffled:
        raise BudgetError("batches='shuffled' has no account at level='example': use batches='poisson'")
    chooser = _noisy_chooser(level, work.clients)
    counts, rates = work.sums.sum(axis=0), work.rates
    capacity, overflow = _places_for_examples(work, counts)
    if level.noise_bands > 1:
        if np.any(work.uses.get(STATISTIC, 0)):
            raise BudgetError("noise_bands above 1 goes with gradients, not with other sums: use noise_bands=1")
        size = who.batch_size
        periods = np.array([max(1, n // size) if size else 1 for n in who.sizes])
        data = _correlated(level, who.ids, who.sizes, periods, counts, work.uses[CHOICE])
        return Terms(data, chooser, inbox)
    choices = list(zip(chooser.costs(), work.uses[CHOICE].sum(axis=0).tolist(), strict=True))
    noise = _noise_of_clients(work, overflow, choices)
    check_noise(noise, work.noise_factors)
    data = GaussianSum(
        np.full(work.clients, level.clip, np.float32),
        noise.astype(np.float32),
        Sampling(rates.astype(np.float32), capacity),
        overflow.astype(np.float32),
        relation=level.relation,
    )
    return Terms(data, chooser, inbox, work.noise_factors, work.clip_factors)


def _noisy_chooser(level: PrivacyLevel, clients: int) -> NoisyMin:
    reach = 2.0 if level.relation == "replace_one" else 1.0
    return NoisyMin(
        np.full(clients, level.choice_bound, np.float32),
        np.full(clients, reach / level.choice_epsilon, np.float32),
        level.relation,
        level.choice_score,
    )


def _places_for_examples(work: Work, counts: np.ndarray) -> tuple[int | None, np.ndarray]:
    """The places of a batch, if that saves time, and every client's chance that they do not suffice."""
    who, rates = work.who, work.rates
    deltas = [budget_of(work.level, name, n)[1] for name, n in zip(who.ids, who.sizes, strict=True)]
    needed = [composition.capacity(n, r, u, d) for n, r, u, d in zip(who.sizes, rates, counts, deltas, strict=True)]
    capacity = _worthwhile(max(needed), int(max(who.sizes)), who.weights_count)
    return capacity, np.array([_overflow(int(n), r, capacity) for n, r in zip(who.sizes, rates, strict=True)])


def _client_terms(work: Work, data: ExactSum, chooser: ExactMin) -> Terms:
    """The aggregator adds noise to what it sums, for the federation's budget."""
    counted = np.sum(np.broadcast_arrays(*(work.uses[kind][:, 0] for kind in Level.CLIENT.inbox_kinds)), axis=0)
    if work.level.noise_bands > 1:
        return Terms(data, chooser, _correlated_inbox(work, counted))
    if work.level.noise == "laplace":
        return Terms(data, chooser, _laplace_inbox(work.level, int(counted.sum())))
    return Terms(data, chooser, _gaussian_inbox(work, counted), work.noise_factors, work.clip_factors)


def _correlated_inbox(work: Work, counted: np.ndarray) -> CorrelatedSum:
    level, clients = work.level, work.clients
    period = max(1, int(clients // level.cohort)) if level.cohort else 1
    if (counted > 1).any() or (len(work.noise_factors) > 1 and (counted != 1).any()):
        raise BudgetError("noise_bands above 1 at client level needs one release in every round: use noise_bands=1")
    count = np.array([int(counted.sum())])
    inbox = _correlated(level, [""], np.array([clients]), np.array([period]), count, np.zeros(1))
    return jax.tree.map(lambda leaf: leaf[0], replace(inbox, sampled_here=False))


def _laplace_inbox(level: PrivacyLevel, count: int) -> LaplaceSum:
    scale = level.noise_multiplier or noise_for_budget.laplace_multiplier(
        level.epsilon or 1.0, count, level.relation, level.clients_per_person
    )
    noisy = LaplaceSum(np.float32(level.clip), np.float32(scale), Sampling(np.float32(1)), level.relation)
    return replace(noisy, group=level.clients_per_person)


def _gaussian_inbox(work: Work, counted: np.ndarray) -> GaussianSum | AdaptiveSum:
    """`counted`: releases in each round."""
    level, clients, rate, count = work.level, work.clients, work.cohort_rate, int(counted.sum())
    shares = level.shares(clients)
    _, delta = budget_of(level, "", clients)
    places = _worthwhile(composition.capacity(clients, rate, count, delta), clients, work.who.weights_count, 2)
    overflow = _overflow(clients, rate, places)
    if level.noise_multiplier is not None or not count:
        noise = level.noise_multiplier or 1.0
    else:
        assert level.epsilon is not None
        case = Case(
            level.epsilon,
            delta,
            count,
            rate,
            level.relation,
            overflow,
            factors=grouped(work.noise_factors, counted),
            group=level.clients_per_person,
            mechanism="gaussian" if shares is None else LAW,
        )
        (noise,) = noise_for_budget.noise_multipliers([case])
    check_noise(noise, work.noise_factors)
    own = {
        "clip": np.float32(level.clip),
        "noise_multiplier": np.float32(noise),
        "sampling": Sampling(np.float32(rate), places),
        "overflow": np.float32(overflow),
        "sampled_here": False,
        "relation": level.relation,
        "group": level.clients_per_person,
    }
    if shares is not None:
        check_share(shares, noise * float(work.noise_factors.min()))
        own |= {"excess": shares.excess, "charged_as": LAW}
    elif level.aggregator == "local":
        own |= {"excess": float(clients)}
    if level.clip_quantile is None:
        return GaussianSum(**own)
    expected = np.float32(rate * clients)
    return AdaptiveSum(**own, quantile=np.float32(level.clip_quantile), expected=expected, speed=np.float32(0.2))


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


def _worthwhile(capacity: int, longest: int, weights_count: int, small: float = 4) -> int | None:
    """The capacity, where gathering so many of `longest` saves time: `small` times as many for a small model."""
    factor = small if weights_count <= SMALL_MODEL else 1.2
    return capacity if factor * capacity <= longest else None


def _overflow(size: int, rate: float, capacity: int | None) -> float:
    if capacity is None or capacity >= size:
        return 0.0
    probability = composition.overflow_probability(size, rate, capacity)
    return float(np.nextafter(np.float32(probability), np.float32(1)))


def _noise_of_clients(work: Work, overflow: np.ndarray, choices: Sequence[composition.Charge]) -> np.ndarray:
    """Every client's noise multiplier, for the steps it takes and the choices that its budget pays for too."""
    level, who, rates = work.level, work.who, work.rates
    counts = work.sums.sum(axis=0)
    noise = np.full(work.clients, level.noise_multiplier or 1.0)
    places, cases = [], []
    for k, name in enumerate(who.ids):
        epsilon, delta = budget_of(level, name, who.sizes[k])
        if level.noise_multiplier is None and epsilon is not None and counts[k]:
            places.append(k)
            spilt = float(np.float32(overflow[k]))
            also = (choices[k],) if choices[k][1] else ()
            factors = grouped(work.noise_factors, work.sums[:, k])
            steps, rate = int(counts[k]), float(rates[k])
            cases.append(Case(epsilon, delta, steps, rate, level.relation, spilt, also=also, factors=factors))
    noise[places] = noise_for_budget.noise_multipliers(cases)
    return noise
