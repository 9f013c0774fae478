"""What a release promises to its units, and how the ledger keeps that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinfolk.accounting.members import Members


@dataclass(frozen=True)
class Promise:
    """What a release promised to its units, once and for all."""

    run: str
    members: Members
    relation: str
    tasks: int
    """In how many clients one person may be, as it declared (client level)."""
    budgets: Mapping[str, tuple[float, float]]
    """Epsilon and delta of each party."""
    alone: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Of people who are at one client, where `budgets` are for those at several; else empty."""

    def note(self, digest: str) -> dict[str, Any]:
        """As the ledger keeps it."""
        return {
            "run": self.run,
            "members": digest,
            "relation": self.relation,
            "tasks": self.tasks,
            "budgets": grouped(self.budgets),
            **({"alone": grouped(self.alone)} if self.alone else {}),
        }


def grouped(budgets: Mapping[str, tuple[float, float]]) -> list[list[Any]]:
    """Each different budget once, with the parties that have it."""
    found: dict[tuple[float, float], list[str]] = {}
    for party, budget in budgets.items():
        found.setdefault(budget, []).append(party)
    return [[*budget, parties] for budget, parties in found.items()]


def by_party(every: Iterable[Sequence[Any]]) -> dict[str, tuple[float, float]]:
    """Budgets of parties, from what `grouped` made of them."""
    return {party: (epsilon, delta) for epsilon, delta, parties in every for party in parties}
