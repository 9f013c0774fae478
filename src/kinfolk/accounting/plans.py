"""What a run has reserved in its owner's ledger before it begins: nobody else may have that, charged or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from kinfolk.accounting.records import Line, Note
from kinfolk.privacy.release import Cost

PLAN = "plan"
"""The kind of note."""


def plans(notes: Iterable[Note]) -> dict[str, Mapping[str, Any]]:
    """For every run what it has planned, charged or not: nobody else may have that. A later plan never takes away."""
    found: dict[str, Mapping[str, Any]] = {}
    for note in notes:
        if note.note == PLAN:
            before = found.get(note.about["run"], {"plan": []})
            found[note.about["run"]] = {**note.about, "plan": [*before["plan"], *note.about["plan"]]}
    return found


def plan_of(run: str, digest: str, lines: Iterable[Line]) -> dict[str, Any]:
    """All charges of a run as the ledger notes them down before the first."""
    each: dict[tuple[str, str, Cost], int] = {}
    for line in lines:
        if line.run == run:
            each[line.party, line.kind, line.cost] = each.get((line.party, line.kind, line.cost), 0) + line.uses
    grouped: dict[tuple[str, Cost, int], list[str]] = {}
    for (party, kind, cost), uses in each.items():
        grouped.setdefault((kind, cost, uses), []).append(party)
    plan = [[kind, asdict(cost), uses, names] for (kind, cost, uses), names in grouped.items()]
    return {"run": run, "members": digest, "plan": plan}


def more(plan: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Whether a plan has charges that one before it did not have."""
    if before is None:
        return True
    had: dict[tuple[str, Cost, str], int] = {}
    for kind, cost, uses, names in before["plan"]:
        for party in names:
            had[kind, Cost(**cost), party] = max(uses, had.get((kind, Cost(**cost), party), 0))
    return any(
        uses > had.get((kind, Cost(**cost), party), 0) for kind, cost, uses, names in plan["plan"] for party in names
    )
