"""The account of a run: who pays what for which releases. Every runtime goes through these functions, in this order.

`calibrate.calibrated` makes the terms (draft, count, calibrate) and `verify.round_check` checks the flow; then, round
by round: `require` (the budget covers it), `charge` (on disk), compute with `privacy.noise_tape`, `require_metered`
(the meters counted what was charged), publish, and at the end `statement`. Simulation, release, offload, a silo and the
server of a federation each hold an `Account`; none of them has steps of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from kinfolk.accounting import joint
from kinfolk.accounting.budgets import budget_of
from kinfolk.accounting.calibrate import Uses
from kinfolk.accounting.ledger import RELEASED, SIMULATED, Allowance, Ledger, LedgerError, Line
from kinfolk.accounting.members import PERSON, Source
from kinfolk.accounting.noise_for_budget import times
from kinfolk.accounting.owner import reasons
from kinfolk.accounting.plans import PLAN, more, plan_of, plans
from kinfolk.accounting.promise import Promise
from kinfolk.accounting.standing import (
    APART,
    PROMISE,
    Standing,
    Worst,
    refuse_another,
    require,
    require_left,
    with_reason,
)
from kinfolk.accounting.statement import Book, Statement, statement
from kinfolk.accounting.views import trusted
from kinfolk.data.identity import label
from kinfolk.privacy import exact_noise
from kinfolk.privacy.choice import Chooser
from kinfolk.privacy.gates import CHOICE
from kinfolk.privacy.levels import Level, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Cost, PrivacyError


@dataclass(frozen=True)
class Preparation:
    """How data were prepared, for the statement: nothing of this has an account."""

    scaling: str = "declared bounds"
    is_private: bool = True


@dataclass(frozen=True)
class Account:
    """Who pays in a run, for what, and how much may be spent."""

    privacy: PrivacyLevel
    data: str
    """The data set's name, as its owner calls it."""
    parties: tuple[str, ...]
    units: tuple[int, ...]
    """How many units each party's account protects."""
    terms: Terms
    uses: Uses
    """Releases of each kind in every round by every party: (rounds, parties), counted on the program itself."""
    released: bool
    """Noise from the operating system; else a simulation's, which can be repeated."""
    source: Source | None = None
    """Whose rows these are, where the account follows them (`owner.py`)."""

    @property
    def level(self) -> Level:
        """Of the account: whose noise, which unit."""
        return self.privacy.level

    @property
    def unit(self) -> str:
        """What ledger lines call the protected unit: the level, or `person` where that is all rows of one."""
        return PERSON if self.source is not None and self.source.people else self.level.value

    @property
    def at_several(self) -> bool:
        """Whether people are the units, and may be at several of these parties."""
        return self.unit == PERSON and 1 < self.privacy.clients_per_person <= len(self.parties)

    @property
    def noise(self) -> str:
        """Where noise comes from, as ledgers say it."""
        return RELEASED if self.released else SIMULATED

    def mechanism(self, kind: str) -> Mechanism | Chooser:
        """What makes releases of this kind."""
        if kind == CHOICE:
            return self.terms.choice
        return self.terms.inbox if self.level.server_pays else self.terms.data

    def factors(self, rounds: range) -> np.ndarray:
        """What the noise is multiplied by in these rounds."""
        return np.take(np.asarray(self.terms.noise_factors), np.arange(rounds.start, rounds.stop), mode="clip")

    def costs(self, factor: float = 1.0) -> dict[str, tuple[Cost, ...]]:
        """For every kind of release, what one use costs each party in rounds whose noise has this factor.

        Choices have no schedule.
        """
        return {
            kind: tuple(
                cost if kind == CHOICE else replace(cost, noise_multiplier=times(cost.noise_multiplier, factor))
                for cost in self.mechanism(kind).costs()
            )
            for kind in self.uses
        }

    def most(self, kind: str) -> int:
        """Most releases of a kind that a party makes in a round; at least 1."""
        return max(1, int(self.uses[kind].max(initial=0)))

    def scales(self, kind: str, rounds: range, count: int) -> np.ndarray:
        """Noise multipliers of `count` releases of a kind, (parties, count), from the first of these rounds on.

        Places that nobody uses get noise too.
        """
        noise = np.array([cost.noise_multiplier for cost in self.mechanism(kind).costs()])
        scales = np.repeat(noise[:, None], count, axis=1)
        for k, column in enumerate(self._in(kind, rounds).T if kind != CHOICE else ()):
            factors = np.repeat(self.factors(rounds), column)
            scales[k, : len(factors)] = [times(noise[k], factor) for factor in factors]
        return scales

    def require_exact(self) -> None:
        """Refuses releases whose sums or noise do not fit the integers of exact noise."""
        for kind, counts in self.uses.items():
            if counts.any():
                exact_noise.check_grid(self.mechanism(kind), max(self.units))

    def budgets(self) -> dict[str, Allowance]:
        """What each party may spend; empty where noise was given instead of a budget."""
        found = self._budgets()
        return {party: Allowance(epsilon, delta) for party, (epsilon, delta) in found.items() if epsilon is not None}

    def deltas(self) -> dict[str, float]:
        """Every party's delta; empty where nothing is private."""
        return {party: delta for party, (_, delta) in self._budgets().items()} if self.level.private else {}

    def _budgets(self) -> dict[str, tuple[float | None, float]]:
        pairs = zip(self.parties, self.units, strict=True)
        return {party: budget_of(self.privacy, party, units) for party, units in pairs}

    def _in(self, kind: str, rounds: range) -> np.ndarray:
        return self.uses[kind][rounds.start : rounds.stop]

    def lines(self, run: str, rounds: range) -> list[Line]:
        """The ledger's lines for these rounds of a run."""
        factors, span = self.factors(rounds), (rounds.start, rounds.stop)
        return [
            Line(
                party=party,
                data=self.data,
                unit=self.unit,
                kind=kind,
                cost=cost,
                uses=int(uses),
                run=run,
                rounds=span,
                noise=self.noise,
            )
            for factor in dict.fromkeys(factors.tolist())
            for kind in self.uses
            for party, cost, uses in zip(
                self.parties,
                self.costs(factor)[kind],
                self._in(kind, rounds)[factors == factor].sum(axis=0),
                strict=True,
            )
        ]

    def disjoint(self, because: str | None) -> Account:
        """The same account, whose owner says why nobody in its data is in any other."""
        if because is None or self.source is None:
            return self
        return replace(self, source=replace(self.source, disjoint_because=because))

    def require_left(self, ledger: Ledger) -> None:
        """Refuses a release for which nothing is left, before anything was counted or calibrated: only where noise will
        be calibrated to its budget, as noise that is given, or Laplace's, may cost less."""
        calibrated = self.privacy.noise_multiplier is None and self.privacy.noise == "gaussian"
        if self.level.private and calibrated and ledger.store is not None and self.source is not None:
            own, found = self.promise(ledger, ""), Standing(ledger.lines, ledger.notes, ledger.store)
            spends = {party: budget.epsilon for party, budget in self.budgets().items()}
            require_left(with_reason(found, own, self.source.disjoint_because)[0], own, spends)

    def require(self, ledger: Ledger, run: str, parts: Iterable[range]) -> None:
        """Refuses rounds that would take a party beyond its budget, together with all that its ledger holds."""
        if not self.level.private:
            return
        lines = [line for rounds in parts for line in self.lines(run, rounds)]
        if ledger.store is not None and self.source is not None:
            with ledger.turn():
                self._promise(ledger, run, lines)
            return
        planned: dict[str, list[tuple[str, Cost, int]]] = {party: [] for party in self.parties}
        for line in lines:
            planned[line.party].append((run, line.cost, line.uses))
        ledger.require(self.data, self.unit, planned, self.budgets())

    def _digest(self, ledger: Ledger) -> str:
        """What the ledger calls those who are in this release; empty where it knows names only."""
        if ledger.store is None or self.source is None:
            return ""
        return ledger.store.of(self.source, self.unit)

    def _promise(self, ledger: Ledger, run: str, lines: list[Line]) -> None:
        """Checks all promises with these lines added; notes this run's promise and its whole plan before it begins."""
        assert ledger.store is not None
        assert self.source is not None
        digest = self._digest(ledger)
        every = [*ledger.lines, *(replace(line, members=digest) for line in lines if line.uses)]
        own = self.promise(ledger, run)
        refuse_another(ledger, run, own.note(digest))
        known, declared = own.members.most_clients, self.privacy.clients_per_person
        if self.unit == PERSON and known > declared:
            raise LedgerError(
                f"clients_per_person={declared}, and somebody has rows at {known} clients, whose accounts compose: "
                f"declare clients_per_person={known}, or leave those rows out"
            )
        standing = Standing(every, ledger.notes, ledger.store)
        standing, apart = with_reason(standing, own, self.source.disjoint_because)
        require(standing, own)
        ledger.store.save(digest)
        if apart:
            ledger.note(APART, apart)
        if not any(promise.run == run for promise in standing.promises):
            ledger.note(PROMISE, own.note(digest))
        plan = plan_of(run, digest, every)
        if more(plan, plans(ledger.notes).get(run)):
            ledger.note(PLAN, plan)

    def promised(self) -> dict[str, float]:
        """The most that each party's units may ever reach."""
        most = self.privacy.promise or 0.0
        own = self.privacy.budgets
        return {p: found.epsilon if p in own else max(found.epsilon, most) for p, found in self.budgets().items()}

    def promise(self, ledger: Ledger, run: str) -> Promise:
        """What a run promises to its units."""
        assert ledger.store is not None
        members = ledger.store.load(self._digest(ledger))
        budgets = {party: (epsilon, self.budgets()[party].delta) for party, epsilon in self.promised().items()}
        count, alone = self.privacy.clients_per_person, {}
        if self.at_several and count <= len(budgets):
            budgets, alone = dict.fromkeys(budgets, joint.budget(list(budgets.values()), count)), budgets
        return Promise(run, members, self.privacy.relation, count, budgets, alone)

    def standing(self, ledger: Ledger, run: str) -> dict[str, Worst]:
        """What the worst unit of each party has lost in all releases of this ledger: for the owner's eyes."""
        if ledger.store is None or self.source is None:
            return {}
        own, found = self.promise(ledger, run), Standing(ledger.lines, ledger.notes, ledger.store)
        return {party: found.worst(own, party) for party in own.budgets}

    def charge(self, ledger: Ledger, run: str, rounds: range) -> None:
        """Charges these rounds: on disk when this returns, and before anything is computed.

        In an owner's ledger nothing is charged that was not planned: all promises were checked with the plan alone.
        """
        digest, lines = self._digest(ledger), [line for line in self.lines(run, rounds) if line.uses]
        with ledger.turn():
            own = [replace(line, members=digest) for line in lines]
            if digest and own and more(plan_of(run, digest, [*ledger.lines, *own]), plans(ledger.notes).get(run)):
                raise LedgerError(
                    f"run {run!r} would be charged for rounds {rounds.start} to {rounds.stop} beyond what it planned "
                    f"in ledger {ledger.path}: nothing was charged. Begin a new run"
                )
            ledger.charge(own)

    def require_charged(self, ledger: Ledger, run: str, parts: Sequence[range]) -> None:
        """Refuses to go on with a run whose earlier rounds are not in the ledger."""
        done = max((rounds.stop for rounds in parts), default=0)
        found: dict[tuple[str, str, Cost], int] = {}
        for line in ledger.lines:
            if line.run == run and line.noise == self.noise and line.rounds[1] <= done:
                found[line.party, line.kind, line.cost] = found.get((line.party, line.kind, line.cost), 0) + line.uses
        for line in (line for rounds in parts for line in self.lines(run, rounds)):
            found[line.party, line.kind, line.cost] = found.get((line.party, line.kind, line.cost), 0) - line.uses
        if any(left < 0 for left in found.values()):
            raise PrivacyError(f"ledger {ledger.path} does not hold the {done} rounds that this run has behind it")

    def require_metered(self, before: Mapping[str, ArrayLike], after: Mapping[str, ArrayLike], rounds: range) -> None:
        """Refuses a result whose meters counted other uses than were charged. The last axis is the parties'."""
        for kind in {*before, *after, *self.uses}:
            if kind not in self.uses or kind not in after:
                raise PrivacyError(f"{kind}: the meters and the ledger know different kinds; nothing is published")
            charged = self._in(kind, rounds).sum(axis=0)
            if not (np.asarray(after[kind]) - np.asarray(before[kind]) == charged).all():
                raise PrivacyError(
                    f"{kind}: the meters counted other uses than the ledger was charged; nothing is published"
                )

    def statement(
        self, ledger: Ledger, run: str, *, program: Sequence[str], prepared: Preparation | None = None
    ) -> Statement:
        """What is promised, from the ledger's lines; refused for a run that made releases and has no line."""
        prepared, book = prepared or Preparation(), self._book(ledger, run)
        lines = ledger.about(self.data, self.unit, self.privacy.relation)
        if book is not None:  # what else these units were in is in the promise, and stays with their owner
            lines = [line for line in lines if line.run == run]
        if not any(line.run == run for line in lines) and any(counts.sum() for counts in self.uses.values()):
            raise PrivacyError(
                f"ledger {ledger.path} has no line of this run, which made releases: no statement is written"
            )
        return statement(
            self.privacy,
            lines,
            self.deltas(),
            data=self.data,
            noise=self.noise,
            program=program,
            scaling=prepared.scaling,
            scaling_is_private=prepared.is_private,
            people=0 if self.source is None else self.source.people,
            other_accounts=book is None and len(lines) < len([x for x in ledger.lines if x.data == self.data]),
            book=book,
        )

    def _seen(self, ledger: Ledger, run: str) -> float:
        """Epsilon over several runs against somebody who sees who takes part; 0 where there is one run alone."""
        assert ledger.store is not None
        own, found = self.promise(ledger, run), Standing(ledger.lines, ledger.notes, ledger.store)
        every = [found.worst(own, party, seen=True) for party in own.budgets] if self.level.server_pays else []
        return max((worst.epsilon for worst in every if len(worst.releases) > 1), default=0.0)

    def _book(self, ledger: Ledger, run: str) -> Book | None:
        """What the statement says of an owner's ledger."""
        if ledger.store is None or self.source is None:
            return None
        name = label(self.data)
        declared = [note.about for note in ledger.notes if note.note == APART]
        apart = [about for about in declared if name == about["data"] or name in about["from"]]
        known, together = self.source.identity, list(self.promise(ledger, run).budgets.values())
        return Book(
            promised=self.promised(),
            records=len(ledger),
            head=ledger.head,
            because=reasons(ledger),
            apart=tuple((", ".join(sorted({x["data"], *x["from"]} - {name})), x["because"]) for x in apart),
            identity="" if known is None else f"{known.kind}s known by {known.column}",
            seen=self._seen(ledger, run),
            together=together[0] if self.at_several and len(together) >= self.privacy.clients_per_person else None,
            trusted=trusted(ledger, ledger.store.load(self._digest(ledger))),
        )
