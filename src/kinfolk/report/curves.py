"""The curves of a report: epsilon against error, both over the rounds, and strengths."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kinfolk.algorithms import REGISTRY
from kinfolk.report.content import Chart, Paragraph, Part, Series, Table, Value, number
from kinfolk.report.reading import Record, Spending

WIDE = 6
"""Errors that differ by more than this factor are drawn on a logarithmic axis."""
HIDDEN = "Errors are measured on clients' test rows and lie in private/: they are shown with --with-private only."


def error_name(records: Sequence[Record]) -> str:
    """What these runs are judged by: a metric and its unit."""
    scores = [record.measured for record in records if record.measured is not None]
    names = {f"{one['metric']} ({one['unit']})" if one["unit"] else one["metric"] for one in scores}
    return names.pop() if len(names) == 1 else "test error"


def constant_name(records: Sequence[Record]) -> str:
    """What each client's constant is called."""
    names = {record.card["constant_is"] for record in records if record.card is not None} - {""}
    return f"constant ({names.pop()})" if len(names) == 1 else "constant"


def judged(record: Record) -> tuple[str | Value, ...]:
    """The mean client, the worst tenth, the constant and the shared model, by what the run is judged by."""
    score = record.measured
    if score is None:
        return ("not measured",) * 4
    constant = "not measured" if score["constant"] is None else number(score["constant"])
    shared = "none" if score["shared"] is None else number(score["shared"])
    return number(score["value"]), number(score["worst_tenth"]), constant, shared


def judged_by(records: Sequence[Record]) -> tuple[str, ...]:
    """The heads of the columns that `judged` fills."""
    return f"mean client {error_name(records)}", "worst tenth of clients", constant_name(records), "shared model"


def far_apart(heights: Sequence[float]) -> bool:
    """Whether they are to be drawn on a logarithmic axis."""
    return min(heights) > 0 and max(heights) > WIDE * min(heights)


def utility(records: Sequence[Record], with_private: bool) -> tuple[Part, ...]:
    """Epsilon across, error upwards: a point per run, a line per method and level."""
    if not with_private:
        return (Paragraph((HIDDEN,), "small"),)
    known = [(record, record.measured) for record in records if record.measured is not None]
    if not known:
        return (Paragraph(("Not measured: no client has test rows.",), "small"),)
    measured, values = [record for record, _ in known], {record.run.name: score["value"] for record, score in known}
    groups: dict[str, list[Record]] = {}
    for record in measured:
        groups.setdefault(f"{record.method}, {record.statement['level']} level", []).append(record)
    positive = [record.epsilon for record in measured if record.epsilon]
    ends = (min(positive, default=0.5), max(positive, default=1.0))
    if math.isclose(*ends, rel_tol=0.05):  # one budget: what is the same for all still lies all across
        ends = (0.0, 1.5 * ends[1])
    series = []
    for name, group in groups.items():
        placed = sorted((r for r in group if r.epsilon), key=lambda r: r.epsilon or 0.0)
        if placed:
            points = tuple((float(r.epsilon or 0), values[r.run.name]) for r in placed)
            spreads = tuple(r.spread for r in placed) if any(r.spread for r in placed) else ()
            series.append(Series(name, points, tuple(_point(r, name) for r in placed), spreads=spreads))
        for record in (r for r in group if not r.epsilon):
            label = f"{name}: {_point(record, '')}"
            height = values[record.run.name]
            series.append(Series(name, ((ends[0], height), (ends[1], height)), (label, label), "level"))
    error, heights = error_name(measured), list(values.values())
    if constant := {score["constant"] for _, score in known if score["constant"] is not None}:
        name, height = constant_name(measured), sum(constant) / len(constant)
        series.append(Series(name, ((ends[0], height), (ends[1], height)), (f"{name}: {number(height)}",) * 2, "level"))
        heights.append(height)
    wide = far_apart(heights)
    rows = tuple(
        (
            record.run.name,
            record.method,
            "no privacy" if record.epsilon is None else number(record.epsilon, record.note),
            *judged(record),
            number(record.spread) if record.spread else "",
        )
        for record in measured
    )
    header = ("run", "method", "epsilon", *judged_by(measured), "\u00b1 over repetitions")
    whiskers = " Whiskers are one standard deviation over repetitions." if any(r.spread for r in measured) else ""
    chart = Chart(
        f"Mean client's {error} against epsilon",
        f"One point per run: {len(measured)} in all. Left is more private, down is more accurate.{whiskers}",
        _epsilon_axis(measured),
        f"{error} (logarithmic axis)" if wide else error,
        tuple(series),
        Table("Epsilon and error of every run", header, rows),
        log_x=len(positive) > 1 and max(positive) > 3 * min(positive),
        log_y=wide,
        from_zero=True,
    )
    looking = (
        "To choose between runs by looking at these errors is not covered by any of their statements."
        if len(measured) > 1
        else "One run is one point. Give several run directories, at several epsilons, to see a curve."
    )
    return chart, Paragraph((looking,), "small")


def _point(record: Record, name: str) -> str:
    score, spread = record.measured, f" \u00b1 {number(record.spread)}" if record.spread else ""
    error = "not measured" if score is None else f"{error_name([record])} {number(score['value'])}{spread}"
    epsilon = "no privacy" if record.epsilon is None else f"epsilon {number(record.epsilon, record.note)}"
    return f"{name}: {epsilon}, {error}" if name else f"{epsilon}, {error}"


def _epsilon_axis(records: Sequence[Record]) -> str:
    return "epsilon (simulated)" if any(record.note for record in records) else "epsilon"


def short_names(records: Sequence[Record]) -> list[str]:
    """A short name of each run: its method, and what tells it from the others."""
    names = [record.method for record in records]
    if len(set(names)) < len(names):
        names = [
            f"{name}, {'no privacy' if r.epsilon is None else f'epsilon {number(r.epsilon, r.note)}'}"
            for name, r in zip(names, records, strict=True)
        ]
    if len(set(names)) < len(names):
        names = [record.run.name for record in records]
    return names


def leading(named: Sequence[tuple[str, Record]]) -> list[tuple[str, Record]]:
    """Every method at the middle budget first: a chart shows its first few series, and the others on demand."""
    budgets = sorted({r.epsilon for _, r in named if r.epsilon})
    middle = budgets[len(budgets) // 2] if budgets else 1.0

    def far(pair: tuple[str, Record]) -> float:
        return round(abs(math.log((pair[1].epsilon or middle) / middle)), 2)

    return sorted(named, key=far)


def over_rounds(records: Sequence[Record]) -> tuple[Part, ...]:
    """Epsilon over rounds from the ledger; test loss from the metrics."""
    named = list(zip(short_names(records), records, strict=True))
    spent, measured = [(name, r) for name, r in named if r.spending], [(name, r) for name, r in named if r.metrics]
    return (*([_spent(spent)] if spent else []), *([_losses(leading(measured))] if measured else []))


def _spent(spent: Sequence[tuple[str, Record]]) -> Chart:
    """Runs with the same curve share a line."""
    groups: dict[Spending, list[tuple[str, Record]]] = {}
    for name, record in spent:
        if record.spending:
            groups.setdefault(record.spending, []).append((name, record))
    series, rows = [], []
    for found, group in groups.items():
        (name, record), methods = group[0], dict.fromkeys(record.method for _, record in group)
        values = [number(epsilon, record.note) for epsilon in found.epsilons]
        if len(group) > 1:
            name = f"{', '.join(methods)}, epsilon {values[-1]}"
        labels = tuple(f"{name}: round {n}, epsilon {v}" for n, v in zip(found.rounds, values, strict=True))
        points = tuple(zip(map(float, found.rounds), found.epsilons, strict=True))
        series.append(Series(name, points, labels))
        rows += [(name, number(n), v) for n, v in zip(found.rounds, values, strict=True)]
    parties = ", ".join(dict.fromkeys(found.party for found in groups))
    return Chart(
        "Epsilon over the rounds",
        f"What the party that spends most in the end has spent after each round, computed from the ledger ({parties}).",
        "round",
        _epsilon_axis([record for _, record in spent]),
        tuple(series),
        Table("Epsilon after a round", ("run", "round", "epsilon"), tuple(rows)),
        from_zero=True,
    )


def _losses(measured: Sequence[tuple[str, Record]]) -> Chart:
    series, rows = [], []
    for name, record in measured:
        numbers = [(int(line["round"]), float(line["loss"])) for line in record.metrics]
        labels = tuple(f"{name}: round {n}, test loss {number(loss)}" for n, loss in numbers)
        series.append(Series(name, tuple((float(n), loss) for n, loss in numbers), labels))
        rows += [(name, number(n), number(loss)) for n, loss in numbers]
    heights = [loss for one in series for _, loss in one.points]
    wide = far_apart(heights)
    return Chart(
        "Test loss over the rounds",
        "The mean client's loss on its test rows, mean over repetitions.",
        "round",
        "test loss (logarithmic axis)" if wide else "test loss",
        tuple(series),
        Table("Test loss after a round", ("run", "round", "test loss"), tuple(rows)),
        log_y=wide,
        from_zero=True,
    )


def strengths(records: Sequence[Record]) -> tuple[Part, ...]:
    """Strengths over the rounds where a run wrote them down, otherwise those that were set."""
    parts: list[Part] = []
    fixed: list[tuple[str | Value, ...]] = []
    for name, record in zip(short_names(records), records, strict=True):
        if record.strengths:
            parts.append(_learned(name, record))
            continue
        for phase in record.experiment.phases:
            known = REGISTRY[phase.method].options() if phase.method in REGISTRY else {}
            value = phase.options.get("strength", known.get("strength"))
            if value is not None:
                fixed.append((name, phase.method, _setting(value)))
    if fixed:
        parts.append(Table("Strengths that were set beforehand", ("run", "method", "strength"), tuple(fixed)))
    return tuple(parts)


def _setting(value: object) -> str | Value:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return number(float(value)) if isinstance(value, int | float) else str(value)


def _learned(name: str, record: Record) -> Chart:
    blocks: dict[str, list[tuple[int, float]]] = {}
    for line in record.strengths:
        found = line.get("strength")
        named = found if isinstance(found, dict) else {"strength": found}
        for block, value in named.items():
            if isinstance(value, int | float):
                blocks.setdefault(block, []).append((int(line["round"]), float(value)))
    series = tuple(
        Series(
            block,
            tuple((float(n), value) for n, value in points),
            tuple(f"{block}: round {n}, strength {number(value)}" for n, value in points),
        )
        for block, points in blocks.items()
    )
    rows = tuple((block, number(n), number(value)) for block, points in blocks.items() for n, value in points)
    return Chart(
        f"Strength over the rounds: {name}",
        "How hard each block of the personal models is pulled towards the shared one.",
        "round",
        "strength",
        series,
        Table("Strength after a round", ("block", "round", "strength"), rows),
        from_zero=True,
    )
