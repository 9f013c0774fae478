"""What a run will cost, chunk by chunk, and the ledger that has to cover it before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinfolk.accounting.ledger import RELEASED, SIMULATED, Ledger, Line
from kinfolk.accounting.noise_for_budget import largest
from kinfolk.engines.resident import State
from kinfolk.privacy.release import Cost, PrivacyError
from kinfolk.training.noise_tape import tape_bytes
from kinfolk.training.prepare import Job, releases_per_round
from kinfolk.training.run_directory import Run

CHUNKS = 20
"""A run is computed in about this many chunks of rounds, each charged beforehand and saved afterwards."""
TAPE_BYTES = 2**27


@dataclass(frozen=True)
class Chunk:
    """Some rounds of one phase."""

    phase: int
    begin: int
    end: int
    first: int
    """The phase's first round."""


def chunks_of(job: Job, done: int) -> Iterator[Chunk]:
    """The run in chunks, from round `done` on; chunk borders do not depend on where it was interrupted."""
    most = chunk_rounds(job)
    first = 0
    for number, phase in enumerate(job.experiment.phases):
        for begin in range(first, first + phase.rounds, most):
            end = min(begin + most, first + phase.rounds)
            if end > done:
                yield Chunk(number, max(begin, done), end, first)
        first += phase.rounds


def chunk_rounds(job: Job) -> int:
    """Rounds in a chunk: a twentieth of the run, or what noise for a release fits into memory."""
    rounds = -(-job.experiment.rounds // CHUNKS)
    if job.experiment.seed is None:
        rounds = min(rounds, TAPE_BYTES // max(1, tape_bytes(job)))
    return max(1, rounds)


def lines_of(job: Job, where: Run, chunk: Chunk, released: bool) -> list[Line]:
    noise = RELEASED if released else SIMULATED
    rounds = slice(chunk.begin - chunk.first, chunk.end - chunk.first)
    factors = job.noise_factors(chunk.begin, chunk.end)
    return [
        Line(
            party,
            job.federations[0].name,
            job.plan.level,
            kind,
            cost,
            int(uses),
            where.name,
            (chunk.begin, chunk.end),
            noise,
        )
        for factor in dict.fromkeys(factors.tolist())
        for kind, counted in job.uses[chunk.phase].items()
        for party, cost, uses in zip(
            job.parties, job.costs(factor)[kind], counted[rounds][factors == factor].sum(axis=0), strict=True
        )
    ]


def affordable(job: Job, where: Run, ledger: Ledger, chunks: list[Chunk], released: bool) -> list[Chunk]:
    """The chunks that the budgets still cover.

    All of them, or an error, except after a crash of a release: what was charged then and never published stays
    charged, so the last rounds may have to be given up.
    """
    budgets, level = job.budgets(), job.plan.level
    data = job.federations[0].name

    def require(count: int) -> None:
        planned: dict[str, list[Any]] = {party: [] for party in job.parties}
        for chunk in chunks[:count]:
            for line in lines_of(job, where, chunk, released):
                if released or not _already_charged(ledger, where, chunk):
                    planned[line.party].append((where.name, line.cost, line.uses))
        ledger.require(data, level, planned, budgets)

    crashed = released and any(line.run == where.name for line in ledger.lines)
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


def _already_charged(ledger: Ledger, where: Run, chunk: Chunk) -> bool:
    return any(x.run == where.name and x.rounds[0] <= chunk.begin and chunk.end <= x.rounds[1] for x in ledger.lines)


def charge(job: Job, where: Run, ledger: Ledger, chunk: Chunk, released: bool) -> None:
    """Charges a chunk before it is computed. A simulation's repeated chunk has the same noise: charged once."""
    require_bounded(job, chunk.phase)
    if released or not _already_charged(ledger, where, chunk):
        ledger.charge(lines_of(job, where, chunk, released))


def require_bounded(job: Job, phase: int) -> None:
    """Refuses a phase in whose rounds more releases were counted than the traced program makes."""
    bound = releases_per_round(job, phase)
    for kind, counted in job.uses[phase].items():
        if counted.max(initial=0) > bound.get(kind, 0):
            raise PrivacyError(
                f"{kind}: {counted.max()} uses in a round, but the traced program makes {bound.get(kind, 0)}"
            )


def require_charged(job: Job, where: Run, ledger: Ledger, done: int) -> None:
    """Refuses to go on with a release whose earlier rounds are not in the ledger."""
    found: dict[tuple[str, str, Cost], int] = {}
    for line in ledger.lines:
        if line.run == where.name and line.noise == RELEASED and line.rounds[1] <= done:
            key = (line.party, line.kind, line.cost)
            found[key] = found.get(key, 0) + line.uses
    for line in (
        line for chunk in chunks_of(job, 0) if chunk.end <= done for line in lines_of(job, where, chunk, True)
    ):
        key = (line.party, line.kind, line.cost)
        found[key] = found.get(key, 0) - line.uses
    if any(left < 0 for left in found.values()):
        raise PrivacyError(f"ledger {ledger.path} does not hold the {done} rounds that this run has behind it")


def uses_of(job: Job, state: State) -> dict[str, np.ndarray]:
    """Uses so far of the kinds that are paid for, per sweep point, seed and party."""
    data = {kind: np.array(uses, copy=True) for kind, uses in state.meters.uses.items()}
    return {**data, **{kind: np.array(uses, copy=True)[..., None] for kind, uses in state.server.uses.items()}}
