"""What a run will cost, chunk by chunk, and the ledger that has to cover it before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kinfolk.accounting.ledger import Ledger
from kinfolk.accounting.noise_for_budget import largest
from kinfolk.privacy.release import Meter, PrivacyError
from kinfolk.training.noise_tape import tape_bytes
from kinfolk.training.prepare import Job

CHUNKS = 20
"""A run is computed in about this many chunks of rounds, each charged beforehand and saved afterwards."""
TAPE_BYTES = 2**27


class Counted(Protocol):
    """An engine's state, as far as meters go."""

    @property
    def meters(self) -> Meter: ...
    @property
    def server(self) -> Meter: ...


@dataclass(frozen=True)
class Chunk:
    """Some rounds of one phase."""

    phase: int
    begin: int
    end: int

    @property
    def rounds(self) -> range:
        """The rounds, by their numbers in the run."""
        return range(self.begin, self.end)


def chunks_of(job: Job, done: int) -> Iterator[Chunk]:
    """The run in chunks, from round `done` on; chunk borders do not depend on where it was interrupted."""
    most = chunk_rounds(job)
    for number, span in enumerate(job.experiment.spans):
        for begin in range(span.start, span.stop, most):
            end = min(begin + most, span.stop)
            if end > done:
                yield Chunk(number, max(begin, done), end)


def chunk_rounds(job: Job) -> int:
    """Rounds in a chunk: a twentieth of the run, or what noise for a release fits into memory."""
    rounds = -(-job.experiment.rounds // CHUNKS)
    if job.account.released:
        rounds = min(rounds, TAPE_BYTES // max(1, tape_bytes(job)))
    return max(1, rounds)


def affordable(job: Job, run: str, ledger: Ledger, chunks: list[Chunk]) -> list[Chunk]:
    """The chunks that the budgets still cover.

    All of them, or an error, except after a crash of a release: what was charged then and never published stays
    charged, so the last rounds may have to be given up.
    """
    account = job.account
    due = [chunk for chunk in chunks if account.released or not _already_charged(ledger, run, chunk)]

    def require(count: int) -> None:
        account.require(ledger, run, [chunk.rounds for chunk in chunks[:count] if chunk in due])

    crashed = account.released and any(line.run == run for line in ledger.lines)
    if not crashed:
        require(len(chunks))
        return chunks

    def fits(count: int) -> bool:
        try:
            require(count)
        except PrivacyError:
            return False
        return True

    return chunks[: largest(fits, len(chunks)) if chunks else 0]


def _already_charged(ledger: Ledger, run: str, chunk: Chunk) -> bool:
    return any(x.run == run and x.rounds[0] <= chunk.begin and chunk.end <= x.rounds[1] for x in ledger.lines)


def charge(job: Job, run: str, ledger: Ledger, chunk: Chunk) -> None:
    """Charges a chunk before it is computed. A simulation's repeated chunk has the same noise: charged once."""
    if job.account.released or not _already_charged(ledger, run, chunk):
        job.account.charge(ledger, run, chunk.rounds)


def uses_of(state: Counted) -> dict[str, np.ndarray]:
    """Uses so far of the kinds that are paid for, per sweep point, seed and party."""
    data = {kind: np.array(uses, copy=True) for kind, uses in state.meters.uses.items()}
    return {**data, **{kind: np.array(uses, copy=True)[..., None] for kind, uses in state.server.uses.items()}}
