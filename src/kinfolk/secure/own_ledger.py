"""What a silo pays for a secure sum, from its own ledger: before anything is masked, and again for every attempt."""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.accounting.ledger import RELEASED, Allowance, Ledger, LedgerError, Line
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import UPDATE
from kinfolk.privacy.levels import Level
from kinfolk.privacy.noise_shares import LAW, SecureError
from kinfolk.privacy.release import Cost
from kinfolk.secure.agreement import Agreement
from kinfolk.secure.messages import Attempt


@dataclass(frozen=True)
class OwnLedger:
    """Pays for attempts: call it with one. The silo as a whole is the unit, and the noise is that of the fewest honest
    survivors, whoever survives."""

    ledger: Ledger
    silo: str
    data: str
    """The data set's name, as its owner calls it."""
    agreement: Agreement
    budget: Allowance
    kind: str = UPDATE
    """The kind of release."""
    relation: str = "zero_out"

    @property
    def cost(self) -> Cost:
        """Of one attempt."""
        return Cost(LAW, self.agreement.deviation / GRID_STEPS, relation=self.relation)

    def __call__(self, attempt: Attempt) -> None:
        unit = Level.CLIENT.value
        try:
            with self.ledger.turn():
                planned = {self.silo: [(attempt.run, self.cost, 1)]}
                self.ledger.require(self.data, unit, planned, {self.silo: self.budget})
                self.ledger.charge(
                    [
                        Line(
                            party=self.silo,
                            data=self.data,
                            unit=unit,
                            kind=self.kind,
                            cost=self.cost,
                            uses=1,
                            run=attempt.run,
                            rounds=(attempt.round, attempt.round + 1),
                            noise=RELEASED,
                        )
                    ]
                )
        except LedgerError as error:
            raise SecureError(f"not paid: {error}") from error
