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

from kinfolk.accounting.calibrate import Uses, budget_of
from kinfolk.accounting.ledger import RELEASED, SIMULATED, Allowance, Ledger, Line
from kinfolk.accounting.noise_for_budget import times
from kinfolk.accounting.statement import Statement, statement
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

    @property
    def level(self) -> Level:
        """Of the account: whose noise, which unit."""
        return self.privacy.level

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
            for kind in self.level.kinds
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
                unit=self.level.value,
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

    def require(self, ledger: Ledger, run: str, parts: Iterable[range]) -> None:
        """Refuses rounds that would take a party beyond its budget, together with all that its ledger holds."""
        planned: dict[str, list[tuple[str, Cost, int]]] = {party: [] for party in self.parties}
        for rounds in parts:
            for line in self.lines(run, rounds):
                planned[line.party].append((run, line.cost, line.uses))
        ledger.require(self.data, self.level.value, planned, self.budgets())

    def charge(self, ledger: Ledger, run: str, rounds: range) -> None:
        """Charges these rounds: on disk when this returns, and before anything is computed."""
        ledger.charge(self.lines(run, rounds))

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
        prepared = prepared or Preparation()
        lines = ledger.about(self.data, self.level.value, self.privacy.relation)
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
            other_accounts=len(lines) < len([x for x in ledger.lines if x.data == self.data]),
        )
