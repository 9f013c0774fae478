"""The checks a run went through, and two that the report makes itself on the run directory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from kinfolk.report.content import Items, Paragraph, Part, Table, Value, number
from kinfolk.report.reading import Record

OTHERS = (
    ("kinfolk check: the flow check for every method at every level.",),
    ("kinfolk attack --all: attacks on every method, whose proved leak must stay below the claim.",),
    ("make test-all: replay, mechanism tests, and planted bugs that the checks must find.",),
)


def chained(path: Path) -> bool:
    """Whether every line of a ledger names the hash of the line before it."""
    last = ""
    for raw in path.read_bytes().splitlines():
        if f'"previous": "{last}"'.encode() not in raw:
            return False
        last = hashlib.sha256(raw).hexdigest()
    return True


def section(records: Sequence[Record]) -> tuple[Part, ...]:
    """One table of checks over all runs, and how to run the others."""
    rows: list[tuple[str | Value, ...]] = []
    broken = []
    for record in records:
        name = record.run.name
        if record.statement["level"] == "none":
            rows.append((name, "none", "not private: nothing to check"))
            continue
        programs = ", ".join(record.statement["program"])
        rows.append((name, "flow check before training, on the program that ran", f"passed; program {programs}"))
        rows.append((name, "releases counted while training against those charged", "equal, or it would have stopped"))
        ledger = record.run.public / "ledger.jsonl"
        if not ledger.exists():
            rows.append((name, "ledger", "not in public/: ask for the one that the run was charged to"))
            continue
        whole = record.spending is not None and chained(ledger)
        rows.append((name, "ledger's chain of hashes, just now", "unbroken" if whole else "BROKEN"))
        if record.spending is None:
            broken.append(name)
            continue
        again = record.spending.epsilons[-1]
        promised, said = "promise" in record.statement, record.epsilon or 0.0
        same = again <= said * (1 + 1e-9) if promised else math.isclose(again, said, rel_tol=1e-9)
        rows.append((name, "largest epsilon, computed again from the ledger just now", number(again, record.note)))
        within = "within what the statement promises" if promised else "the same as in the statement"
        rows.append((name, within, "yes" if same else "NO"))
        if not (whole and same):
            broken.append(name)
    header: tuple[str, ...] = ("run", "check", "result")
    if len(records) == 1:
        header, rows = header[1:], [row[1:] for row in rows]
    parts: list[Part] = [Table("Checks of each run", header, tuple(rows))]
    if broken:
        says = f"The ledger and the statement of {', '.join(broken)} do not fit together: do not rely on this run."
        parts.insert(0, Paragraph((says,), "warn"))
    return (*parts, Paragraph(("Not part of a run, to be made on the installed kinfolk:",)), Items(OTHERS))
