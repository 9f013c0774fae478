"""From a level and a federation's public sizes to its `Terms`: noise, rates and capacities, all of them accounted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kinfolk.privacy import accounting
from kinfolk.privacy.accounting import BudgetError, Case
from kinfolk.privacy.gates import CHOICE, GRADIENT
from kinfolk.privacy.levels import INBOX_KINDS, Budget, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import ExactMin, ExactSum, GaussianSum, LaplaceSum, NoisyMin, Sampling, coin_rate

SMALL_MODEL = 2000
"""Up to this many weights, computing on all rows of a client is cheaper than gathering a batch."""


def terms_for(
    level: PrivacyLevel,
    ids: Sequence[str],
    sizes: np.ndarray,
    batch_size: int | None,
    uses: Mapping[str, np.ndarray],
    weights_count: int = 0,
) -> Terms:
    """The mechanisms for a whole run.

    `sizes`: training examples of each client (public). `uses`: for every kind of release, how often each party makes
    it over the whole run, counted on the program itself. `weights_count`: the number of weights of the model.
    """
    check_deltas(level, ids, sizes)
    rates = np.array([coin_rate(batch_size / n) if batch_size else 1.0 for n in sizes])
    clients = len(sizes)
    cohort_rate = coin_rate(level.cohort / clients) if level.cohort else 1.0
    if level.level == "example":
        counts = uses[GRADIENT]
        chooser = NoisyMin(
            np.full(clients, level.choice_bound, np.float32),
            np.full(clients, (2.0 if level.relation == "replace_one" else 1.0) / level.choice_epsilon, np.float32),
            level.relation,
        )
        deltas = np.array([budget_of(level, name, n)[1] for name, n in zip(ids, sizes, strict=True)])
        needed = [accounting.capacity(n, r, u, d) for n, r, u, d in zip(sizes, rates, counts, deltas, strict=True)]
        capacity = _worthwhile(max(needed), int(max(sizes)), weights_count)
        overflow = np.array([_overflow(int(n), r, capacity) for n, r in zip(sizes, rates, strict=True)])
        choices = list(zip(chooser.costs(), uses[CHOICE].tolist(), strict=True))
        noise = _noise(level, ids, sizes, rates, counts, overflow, choices)
        data = GaussianSum(
            np.full(clients, level.clip, np.float32),
            noise.astype(np.float32),
            Sampling(rates.astype(np.float32), capacity),
            overflow.astype(np.float32),
            relation=level.relation,
        )
        return Terms(data, chooser, ExactSum(Sampling(np.float32(cohort_rate)), sampled_here=False))
    chooser = ExactMin(np.ones(clients, np.float32))
    capacity = _worthwhile(
        max(accounting.capacity(n, r, 10**6, 1e-6) for n, r in zip(sizes, rates, strict=True)),
        int(max(sizes)),
        weights_count,
    )
    data = ExactSum(Sampling(rates.astype(np.float32), capacity))
    if level.level == "none":
        return Terms(data, chooser, ExactSum(Sampling(np.float32(cohort_rate)), sampled_here=False))
    count = int(sum(np.sum(uses[kind]) for kind in INBOX_KINDS["client"]))
    _, delta = budget_of(level, "", clients)
    places = accounting.capacity(clients, cohort_rate, count, delta)
    places = places if 2 * places <= clients else None
    overflow = _overflow(clients, cohort_rate, places)
    if level.noise == "laplace":
        scale = level.noise_multiplier or accounting.laplace_multiplier(
            level.epsilon or 1.0, count, level.relation, level.tasks_per_person
        )
        noisy = LaplaceSum(np.float32(level.clip), np.float32(scale), Sampling(np.float32(1)), level.relation)
        return Terms(data, chooser, replace(noisy, group=level.tasks_per_person))
    if level.noise_multiplier is not None or not count:
        noise = level.noise_multiplier or 1.0
    else:
        assert level.epsilon is not None
        (noise,) = accounting.noise_multipliers(
            [Case(level.epsilon, delta, count, cohort_rate, level.relation, overflow, group=level.tasks_per_person)]
        )
    inbox = GaussianSum(
        np.float32(level.clip),
        np.float32(noise),
        Sampling(np.float32(cohort_rate), places),
        np.float32(overflow),
        sampled_here=False,
        relation=level.relation,
        group=level.tasks_per_person,
    )
    return Terms(data, chooser, inbox)


def _worthwhile(capacity: int, longest: int, weights_count: int) -> int | None:
    factor = 4 if weights_count <= SMALL_MODEL else 1.2
    return capacity if factor * capacity <= longest else None


def _overflow(size: int, rate: float, capacity: int | None) -> float:
    if capacity is None or capacity >= size:
        return 0.0
    probability = accounting.overflow_probability(size, rate, capacity)
    return float(np.nextafter(np.float32(probability), np.float32(1)))


def budget_of(level: PrivacyLevel, name: str, size: int) -> tuple[float | None, float]:
    """A party's epsilon (none when the noise is given instead) and delta."""
    own = level.budgets.get(name, Budget(level.epsilon, level.delta) if level.epsilon else None)
    delta = (own.delta if own else None) or level.delta or accounting.default_delta(int(size))
    return (own.epsilon if own else None), delta


def _noise(
    level: PrivacyLevel,
    ids: Sequence[str],
    sizes: np.ndarray,
    rates: np.ndarray,
    counts: np.ndarray,
    overflow: np.ndarray,
    choices: Sequence[accounting.Charge],
) -> np.ndarray:
    noise = np.full(len(sizes), level.noise_multiplier or 1.0)
    places, cases = [], []
    for k, name in enumerate(ids):
        epsilon, delta = budget_of(level, name, sizes[k])
        if level.noise_multiplier is None and epsilon is not None and counts[k]:
            places.append(k)
            spilt = float(np.float32(overflow[k]))
            also = (choices[k],) if choices[k][1] else ()
            cases.append(Case(epsilon, delta, int(counts[k]), float(rates[k]), level.relation, spilt, also))
    noise[places] = accounting.noise_multipliers(cases)
    return noise


def check_deltas(level: PrivacyLevel, ids: Sequence[str], sizes: np.ndarray) -> None:
    """Refuses a delta of 1/n or more, and warns from 1/(10 n) on; n is the number of protected units."""
    if level.level == "none":
        return
    unknown = sorted(set(level.budgets) - set(ids))
    if unknown:
        raise BudgetError(f"budgets name clients that are not in the data: {', '.join(unknown[:5])}")
    clients = zip(ids, sizes.tolist(), strict=True)
    parties = [("the federation", len(sizes))] if level.level == "client" else list(clients)
    deltas = {who: (budget_of(level, who, n)[1], n) for who, n in parties}
    worst = max(deltas, key=lambda who: deltas[who][0] * deltas[who][1])
    delta, n = deltas[worst]
    if delta >= 1 / n and not level.allow_large_delta:
        raise BudgetError(
            f"delta={delta:g} is not below 1/{n}, one over the number of units of {worst!r}: such a guarantee would "
            f"allow publishing a whole unit. Use {accounting.default_delta(n):.2g} or less, or set allow_large_delta"
        )
    if delta > 1 / (10 * n) and not level.allow_large_delta:
        text = f"delta={delta:g} is above a tenth of 1/{n} ({worst!r}): choose a smaller one, or set allow_large_delta"
        warnings.warn(text, stacklevel=2)
