"""A table of wards in hospitals, accounts of its releases, and a second account from distances alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import gaussian_mechanism

from kinfolk.accounting.account import Account
from kinfolk.accounting.calibrate import Population, calibrated
from kinfolk.accounting.ledger import Ledger
from kinfolk.accounting.members import Source
from kinfolk.data.identity import Identity
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.privacy.release import Cost

DELTA, USES = 1e-5, 4
WARDS = tuple(f"ward {k}" for k in range(20))
HOSPITALS = ("north", "south")


@dataclass(frozen=True)
class Table:
    """Forty rows, two in each of twenty wards, ten wards in each of two hospitals."""

    name: str = "patients"
    client: str = "ward"
    known_by: str | None = None
    rows: tuple[int, ...] = tuple(range(40))

    def source(self, because: str | None = None) -> Source:
        of = {"ward": lambda row: WARDS[row // 2], "hospital": lambda row: HOSPITALS[row // 20]}[self.client]
        groups: dict[str, list[int]] = {}
        for row in self.rows:
            groups.setdefault(of(row), []).append(row)
        identity = None
        if self.known_by:
            values = tuple(np.array([f"visit {row}" for row in rows]) for rows in groups.values())
            identity = Identity(self.known_by, "visit", values)
        sizes = tuple(map(len, groups.values()))
        return Source(self.name, f"column {self.client}", tuple(groups), sizes, identity, because)


def account(source: Source, level: str, epsilon: float = 1.0, noise: float | None = None, **options: object) -> Account:
    privacy = PrivacyLevel(level, epsilon, DELTA, noise_multiplier=noise, **options)  # type: ignore[arg-type]
    sizes = np.array(source.sizes)
    parties, units = privacy.level.parties(source.clients), tuple(privacy.level.units(sizes))
    kinds = privacy.level.kinds

    def count(_: object) -> dict[str, np.ndarray]:
        used = {kind: np.zeros((USES, len(parties)), int) for kind in kinds}
        used[kinds[0]][:] = 1
        return used

    terms, uses = calibrated(replace(privacy, allow_large_delta=True), Population(source.clients, sizes), count)
    return Account(privacy, source.data, parties, units, terms, uses, True, source)


def release(ledger: Ledger, run: str, of: Account) -> None:
    everything = range(USES)
    of.require(ledger, run, [everything])
    of.charge(ledger, run, everything)


def worst(ledger: Ledger, run: str, of: Account) -> float:
    return max(found.epsilon for found in of.standing(ledger, run).values())


def exact(*draws: tuple[float, Cost]) -> float:
    """Epsilon of a unit at these distances, without an odometer: no account may state less."""
    mu = np.sqrt(sum(USES * (distance / cost.noise_multiplier) ** 2 for distance, cost in draws))
    return float(gaussian_mechanism.get_epsilon_gaussian(1 / mu, DELTA))


def noise_of(of: Account) -> Cost:
    return of.lines("x", range(1))[0].cost
