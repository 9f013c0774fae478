"""The checks a run went through, and two that the report makes itself on the run directory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfolk.report.content import Items, Paragraph, Part, Table, Value, number
from kinfolk.report.reading import Record

OTHERS = (
    ("kinfolk check: the flow check for every method at every level.",),
    ("kinfolk attack --all: attacks on every method, whose proved leak must stay below the claim.",),
    ("make test-all: replay, mechanism tests, and planted bugs that the checks must find.",),
)


SHOWN = 16
"""Digits of a program's fingerprint that are shown; the statement has all of them."""


def chained(path: Path) -> bool:
    """Whether every line of a ledger names the hash of the line before it."""
    last = ""
    for raw in path.read_bytes().splitlines():
        if f'"previous": "{last}"'.encode() not in raw:
            return False
        last = hashlib.sha256(raw).hexdigest()
    return True


@dataclass(frozen=True)
class Checked:
    """What a run's files say of themselves, and whether they fit together."""

    program: str
    chain: str
    again: str | Value
    """The largest epsilon, computed from the ledger just now."""
    verdict: str
    fits: bool = True


def check(record: Record) -> Checked:
    """The checks of one private run."""
    programs = f"passed; program {', '.join(name[:SHOWN] for name in record.statement['program'])}"
    ledger = record.run.public / "ledger.jsonl"
    if not ledger.exists():
        return Checked(programs, "not in public/: ask for the one that the run was charged to", "", "")
    whole = record.spending is not None and chained(ledger)
    chain = "unbroken" if whole else "BROKEN"
    if record.spending is None:
        return Checked(programs, chain, "", "NO", fits=False)
    again, said = record.spending.epsilons[-1], record.epsilon or 0.0
    promised = "promise" in record.statement
    same = again <= said * (1 + 1e-9) if promised else math.isclose(again, said, rel_tol=1e-9)
    words = "within what the statement promises" if promised else "the same as in the statement"
    return Checked(programs, chain, number(again, record.note), f"{words}: {'yes' if same else 'NO'}", whole and same)


NAMES = (
    "flow check before training, on the program that ran",
    "ledger's chain of hashes, just now",
    "largest epsilon, computed again from the ledger just now",
    "does it fit the statement?",
)


def section(records: Sequence[Record]) -> tuple[Part, ...]:
    """One table of checks over all runs, and how to run the others."""
    found = [(record, check(record)) for record in records if record.statement["level"] != "none"]
    every = [(r.run.name, c.program, c.chain, c.again, c.verdict) for r, c in found]
    every += [
        (r.run.name, "not private: nothing to check", "", "", "") for r in records if r.statement["level"] == "none"
    ]
    if len(records) == 1:
        table = Table("Checks of this run", ("check", "result"), tuple(zip(NAMES, every[0][1:], strict=True)))
    else:
        table = Table("Checks of each run", ("run", *NAMES), tuple(every))
    parts: list[Part] = [table]
    counted = "Releases were counted while training and compared with those charged: were they not equal, it would have"
    parts.append(Paragraph((f"{counted} stopped.",), "small"))
    broken = [record.run.name for record, checked in found if not checked.fits]
    if broken:
        says = f"The ledger and the statement of {', '.join(broken)} do not fit together: do not rely on this run."
        parts.insert(0, Paragraph((says,), "warn"))
    return (*parts, Paragraph(("Not part of a run, to be made on the installed kinfolk:",)), Items(OTHERS))
