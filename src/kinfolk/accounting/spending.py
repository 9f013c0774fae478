"""What parties have spent, read from a ledger without opening it for writing."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import Line, read_lines
from kinfolk.accounting.records import Content
from kinfolk.accounting.standing import PROMISE


class Spent(TypedDict):
    """What a party has spent on one data set, unit and neighbour relation."""

    party: str
    data: str
    unit: str
    relation: str
    runs: int
    releases: int
    epsilon: float
    delta: float
    noise: str


class Promised(TypedDict):
    """What a run promised, and to how many parties."""

    run: str
    epsilon: float
    delta: float
    parties: int


def promises(content: Content) -> list[Promised]:
    """All promises that stand, by run and budget."""
    return [
        {"run": note.about["run"], "epsilon": epsilon, "delta": delta, "parties": len(parties)}
        for note in content.notes
        if note.note == PROMISE
        for epsilon, delta, parties in note.about["budgets"]
    ]


def spending(path: Path, delta: float) -> list[Spent]:
    """One row per party, data set, unit and neighbour relation: lines that differ in these are never composed."""
    groups: dict[tuple[str, str, str, str], list[Line]] = {}
    for line in read_lines(path):
        groups.setdefault((line.party, line.data, line.unit, line.cost.relation), []).append(line)
    rows: list[Spent] = []
    known: dict[tuple[object, bool], float] = {}
    for (party, data, unit, relation), lines in groups.items():
        runs = len({line.run for line in lines})
        charges = tuple(composition.by_run((line.run, line.cost, line.uses) for line in lines))
        if (key := (charges, runs > 1)) not in known:
            known[key] = composition.epsilon(charges, delta, adaptive=runs > 1)
        rows.append(
            {
                "party": party,
                "data": data,
                "unit": unit,
                "relation": relation,
                "runs": runs,
                "releases": sum(line.uses for line in lines),
                "epsilon": known[key],
                "delta": delta,
                "noise": lines[-1].noise,
            }
        )
    return rows
