"""Standing promises: a budget is a promise to every unit of the release that named it, for as long as the ledger lives.

Before a release is begun, every promise whose units lie in it is computed again with it, its own among them; one that
would break refuses it. Units are sets of rows, or clients by their names, and not what a table was called that day.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import Ledger
from kinfolk.accounting.members import PERSON, Members
from kinfolk.accounting.overlap import ANY, Met, Names, comparable, of_clients, of_rows
from kinfolk.accounting.plans import PLAN, plans
from kinfolk.accounting.promise import Promise, by_party
from kinfolk.accounting.records import LedgerError, Line, Note
from kinfolk.data.identity import label
from kinfolk.privacy.levels import Level
from kinfolk.privacy.release import Cost

SLACK = 1 + 1e-9
SPENT, ASKED = 0.99, 4
"""From this share of a promise on it is spent; and of how many parties that is asked before anything is calibrated."""
MANY = 10_000
"""Units that a person may have been in, in releases that were known by name only: no budget covers that."""
PROMISE, APART = "promise", "disjoint"
"""Kinds of notes."""
Charge = tuple[str, Cost, int]
"""Run, cost, uses."""


class Store(Protocol):
    """Where memberships are kept."""

    def load(self, digest: str) -> Members: ...


@dataclass(frozen=True)
class Worst:
    """What the unit of a promise that has lost most has lost."""

    epsilon: float
    delta: float
    releases: tuple[str, ...]
    """The runs that its rows were in."""


@dataclass(frozen=True)
class Release:
    """Runs with the same members, and what was charged in them."""

    members: Members
    charged: dict[str, dict[int, dict[tuple[str, Cost], int]]] = field(default_factory=dict)
    """For every run and client's number: uses by kind and cost."""
    places: dict[str, int] = field(default_factory=dict)
    """Of parties, as the ledger calls them."""

    def of(self, run: str, party: str) -> dict[tuple[str, Cost], int]:
        """What a party was charged in a run."""
        if party not in self.places:
            if not self.members.clients:
                self.places[party] = len(self.places)
            else:
                self.places[party] = 0 if self.members.level == Level.CLIENT else self.members.place(party)
        return self.charged.setdefault(run, {}).setdefault(self.places[party], {})

    def draws(self, where: int) -> list[tuple[str, Mapping[tuple[str, Cost], int]]]:
        """What was charged in each run for the draws of one client, or of whichever cost most."""
        if where != ANY:
            return [(run, parties[where]) for run, parties in self.charged.items() if where in parties]
        every = ((run, list(parties.values())) for run, parties in self.charged.items())
        return [(run, costs[0] if len(costs) == 1 else _dearest(costs)) for run, costs in every]


@dataclass(frozen=True)
class Standing:
    """All that a ledger says, with one more release added."""

    lines: Sequence[Line]
    """Of the ledger and of what is planned."""
    notes: Sequence[Note]
    store: Store

    @cached_property
    def names(self) -> Names:
        """Which data sets were declared disjoint."""
        pairs = (
            (note.about["data"], other) for note in self.notes if note.note == APART for other in note.about["from"]
        )
        return Names(frozenset(frozenset(pair) for pair in pairs))

    @cached_property
    def releases(self) -> dict[str, Release]:
        """All releases, those of the same members together, by their digest."""
        found: dict[str, Release] = {}
        costs: dict[Cost, Cost] = {}
        for line in self.lines:
            digest = line.members or f"name\0{line.data}\0{line.unit}"
            if digest not in found:
                found[digest] = Release(self._members(line))
            charged, cost = found[digest].of(line.run, line.party), costs.setdefault(line.cost, line.cost)
            charged[line.kind, cost] = charged.get((line.kind, cost), 0) + line.uses
        for about in plans(self.notes).values():
            digest = about["members"]
            if digest not in found:
                found[digest] = Release(self.store.load(digest))
            for kind, cost, uses, names in about["plan"]:
                key = (kind, Cost(**cost))
                for party in names:
                    charged = found[digest].of(about["run"], party)
                    charged[key] = max(charged.get(key, 0), uses)
        return found

    def _members(self, line: Line) -> Members:
        """Who was in it; of a line from before accounts followed rows, everybody that its data set's name has."""
        if line.members:
            return self.store.load(line.members)
        return Members(label(line.data), line.unit, "", (), ())

    @cached_property
    def promises(self) -> tuple[Promise, ...]:
        """All that stand."""
        return tuple(self._promise(note.about) for note in self.notes if note.note == PROMISE)

    def _promise(self, about: Mapping[str, Any]) -> Promise:
        limits = (by_party(about.get(name, ())) for name in ("budgets", "alone"))
        return Promise(about["run"], self.store.load(about["members"]), about["relation"], about["tasks"], *limits)

    def worst(
        self, promise: Promise, party: str, *, met: str | None = None, seen: bool = False, alone: bool = False
    ) -> Worst:
        """What the worst unit of a party has lost over all releases.

        `met`: only units that are in this run. `seen`: against somebody who sees who takes part, so that sampling saves
        nothing. `alone`: only people who were at one client in every release.
        """
        _, delta = (promise.alone if alone else promise.budgets)[party]
        found = Worst(0.0, delta, ())
        every = self._profiles(promise, party)
        for profile in filter(_at_one, every) if alone else every:
            charges = self._charges(promise, profile)
            if seen:
                charges = [(run, replace(cost, rate=1.0), uses) for run, cost, uses in charges]
            runs = tuple(dict.fromkeys(run for run, _, _ in charges))
            if met is not None and met not in runs:
                continue
            lost = composition.epsilon(composition.by_run(charges), delta, adaptive=len(runs) > 1)
            if lost > found.epsilon:
                found = Worst(lost, delta, runs)
        return found

    def _profiles(self, promise: Promise, party: str) -> Iterable[tuple[tuple[str, Met], ...]]:
        """For the units of a party, each different way to lie in the releases, once."""
        mine, digests = promise.members, list(self.releases)
        if mine.level == Level.CLIENT:
            every = [self._clients_in(promise, digest) for digest in digests]
            return {tuple(zip(digests, met, strict=True)) for met in zip(*every, strict=True)}
        client = mine.place(party)
        combined, meanings = np.zeros(mine.sizes[client], np.int64), [()]
        for digest in digests:
            codes, meaning = self._rows_in(mine, client, digest)
            both, combined = _numbered(combined * len(meaning) + codes, len(meanings) * len(meaning))
            pairs = (divmod(int(code), len(meaning)) for code in both)
            meanings = [(*meanings[before], (digest, meaning[now])) for before, now in pairs]
        return meanings

    def _rows_in(self, mine: Members, client: int, digest: str) -> tuple[np.ndarray, list[Met]]:
        release = self.releases[digest].members
        if not release.clients:  # known by name only
            met: Met = ((ANY, 1, 0),) if release.level == "example" else ((0, 0, 1),)
            if mine.level == PERSON:
                met = ((met[0][0], 0, MANY),)
            met = () if self.names.disjoint(release.data, mine.data) else met
            return np.zeros(mine.sizes[client], np.int64), [met]
        return of_rows(mine, client, release, self.names)

    def _clients_in(self, promise: Promise, digest: str) -> list[Met]:
        mine, release = promise.members, self.releases[digest].members
        if not release.clients:
            if self.names.disjoint(release.data, mine.data):
                return [()] * len(mine.clients)
            most = [size * promise.tasks for size in mine.sizes]
            return [((ANY, size, 0),) if release.level == "example" else ((0, 0, size),) for size in most]
        history = (other.members for other in self.releases.values())
        return [
            tuple((where, whole * promise.tasks, parts * promise.tasks) for where, whole, parts in met)
            for met in of_clients(history, mine, release, self.names)
        ]

    def _charges(self, promise: Promise, profile: tuple[tuple[str, Met], ...]) -> list[Charge]:
        found: list[Charge] = []
        seen: dict[tuple[Cost, int, int], Cost] = {}
        for digest, met in profile:
            for where, whole, parts in met:
                if not whole + parts:
                    continue
                for run, costs in self.releases[digest].draws(where):
                    for (_, cost), uses in costs.items():
                        key = (cost, whole, parts)
                        if key not in seen:
                            seen[key] = replace(cost, relation=promise.relation, group=whole, parts=parts)
                        found.append((run, seen[key], uses))
        return found


def _at_one(profile: tuple[tuple[str, Met], ...]) -> bool:
    return all(len({where for where, _, _ in met}) <= 1 for _, met in profile)


def lost(ledger: Ledger, data: str, delta: float) -> Worst:
    """What the worst unit that was promised something under this data name has lost so far, whatever runs are called.

    What is planned and not charged yet is left out. `delta`: where nothing was promised yet.
    """
    assert ledger.store is not None
    standing = Standing(ledger.lines, [note for note in ledger.notes if note.note != PLAN], ledger.store)
    mine = (promise for promise in standing.promises if promise.members.data == label(data))
    every = [standing.worst(promise, party) for promise in mine for party in promise.budgets]
    return max(every, key=lambda worst: worst.epsilon, default=Worst(0.0, delta, ()))


def _numbered(codes: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The codes that occur, sorted, and for each place the number of its code; all are below `limit`."""
    if limit > 2**22:
        return np.unique(codes, return_inverse=True)
    occurs = np.bincount(codes, minlength=limit) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[codes]


def _dearest(parties: Sequence[Mapping[tuple[str, Cost], int]]) -> dict[tuple[str, Cost], int]:
    """Costs that dominate those of each party: for every kind the least noise, the highest rate, the most uses."""
    kinds: dict[tuple[str, str], list[list[tuple[Cost, int]]]] = {}
    for costs in parties:
        own: dict[tuple[str, str], list[tuple[Cost, int]]] = {}
        for (kind, cost), uses in costs.items():
            own.setdefault((kind, cost.mechanism), []).append((cost, uses))
        for key, pairs in own.items():
            kinds.setdefault(key, []).append(pairs)
    out = {}
    for (kind, _), several in kinds.items():
        every = [cost for pairs in several for cost, _ in pairs]
        cost = replace(
            every[0],
            noise_multiplier=min(cost.noise_multiplier for cost in every),
            rate=max(cost.rate for cost in every),
            delta=max(cost.delta for cost in every),
            covers=min(cost.covers for cost in every),
        )
        out[kind, cost] = max(sum(uses for _, uses in pairs) for pairs in several)
    return out


def require(standing: Standing, planned: Promise) -> None:
    """Refuses a release that would break a promise: its own, or one that stands already.

    `standing`: with the planned lines among its own. `planned`: what the release promises.
    """
    others = (promise for promise in standing.promises if promise.run != planned.run)
    for promise in (planned, *others):
        own = promise.run == planned.run
        limits = [(False, *one) for one in promise.budgets.items()] + [(True, *one) for one in promise.alone.items()]
        for alone, party, (epsilon, delta) in limits:
            worst = standing.worst(promise, party, met=None if own else planned.run, alone=alone)
            if worst.epsilon <= epsilon * SLACK:
                continue
            met = [run for run in worst.releases if run != promise.run]
            also = f" Its rows are also in {', '.join(met)}." if met else ""
            whose = party if own else f"{party} was promised epsilon={epsilon:.4g} by run {promise.run} and"
            limit = "its budget of" if own else "that"
            remedy = "promise more in all (--promise) if its owner agrees" if own else "leave those rows out"
            raise LedgerError(
                f"{whose} would reach {worst.epsilon:.4g}, beyond {limit} {epsilon:.4g} at delta={delta:g}.{also} "
                f"Spend less (a smaller epsilon, fewer rounds), or {remedy}"
            )


def require_left(standing: Standing, planned: Promise, spends: Mapping[str, float]) -> None:
    """Refuses a release that takes all that was ever promised where that is spent already: nothing has to be
    calibrated to know it. A few parties are asked; `require` asks all, once it is known what the release costs. Where
    an evaluation is planned with it, the promise will grow by what that takes, and so still leave nothing: noise that
    is calibrated to a budget leaves none of it over.

    `standing`: the ledger alone. `planned`: what the release promises. `spends`: epsilon of the release by party.
    """
    for party, (epsilon, delta) in list(planned.budgets.items())[:ASKED]:
        worst = standing.worst(planned, party) if spends[party] >= epsilon else Worst(0.0, delta, ())
        if worst.epsilon >= SPENT * epsilon:
            raise LedgerError(
                f"{party} has spent {worst.epsilon:.4g} at delta={delta:g}, in {', '.join(worst.releases)}: a release "
                f"of epsilon={spends[party]:.4g} would reach beyond its budget of {epsilon:.4g}. Promise more in all "
                "(--promise) if its owner agrees"
            )


def require_known(standing: Standing, planned: Promise, because: str | None) -> dict[str, Any] | None:
    """Refuses the first release under a new name in a ledger that has others, until its owner says how they overlap.

    Returns what to note down where the owner said that nobody is in both.
    """
    mine = planned.members
    before = [other.members for other in standing.releases.values() if any(run != planned.run for run in other.charged)]
    others = [m for m in before if m.data != mine.data and not comparable(m, mine)]
    open_names = sorted({m.data for m in others if not standing.names.disjoint(m.data, mine.data)})
    known = any(members.data == mine.data for members in before)
    if because is not None and open_names:
        return {"data": mine.data, "from": open_names, "because": because}
    if known or not open_names:
        return None
    raise LedgerError(
        f"data name={mine.data!r} is new in this ledger, which also holds {', '.join(map(repr, open_names))}. Could a "
        "row or a person of it be in them? If it is the same data, use the same --name. If nobody is in both, say why, "
        'once: --disjoint-because "another hospital". If some may be, declare identity columns (row or person) in both '
        "schemas"
    )


def with_reason(standing: Standing, planned: Promise, because: str | None) -> tuple[Standing, dict[str, Any] | None]:
    """The same with what the owner says now of other data, and that, to be noted down; refused as by `require_known`.

    `standing`: the ledger, with what is planned. `planned`: what the release promises. `because`: why nobody in its
    data is in any other, where the owner says so.
    """
    apart = require_known(standing, planned, because)
    return (replace(standing, notes=[*standing.notes, Note(APART, apart)]) if apart else standing), apart


def refuse_another(ledger: Ledger, run: str, promise: Mapping[str, Any]) -> None:
    """Refuses a run whose name another release has, or that went on with other rows, budgets or clients.

    `ledger`: all that it holds. `run`: its name. `promise`: what it would note down.
    """
    noted = [note.about for note in ledger.notes if note.note == PROMISE and note.about["run"] == run]
    others = {line.members for line in ledger.lines if line.run == run} - {promise["members"]}
    if others or any(about != json.loads(json.dumps(promise)) for about in noted):
        raise LedgerError(
            f"run {run!r} is in ledger {ledger.path} already, with other rows, clients or budgets: what was promised "
            "stays. Begin a new run"
        )
