"""Client by client: how errors are spread, and who gains or loses against training alone. Private numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kinfolk.report.content import Chart, Details, Facts, Paragraph, Part, Series, Table, Value, number
from kinfolk.report.curves import constant_name, error_name, far_apart, leading, short_names
from kinfolk.report.reading import Record

MOST = 150
"""Most clients drawn in a chart, fewer where there are many charts; they are evenly spaced by rank."""
FEW = 20
"""Up to this many clients are named, each with bars of its own."""
OPEN = 3
"""Comparisons that are shown at once; others are opened on demand."""


def section(records: Sequence[Record]) -> tuple[Part, ...]:
    """The spread over clients of every run, and the change against training alone where such a run was given."""
    named = [(name, r) for name, r in zip(short_names(records), records, strict=True) if r.errors]
    if not named:
        return ()
    parts: list[Part] = [_spread(leading(named), max(20, min(MOST, 600 // len(named))))]
    compared = [(name, r, base) for name, r in leading(named) if (base := alone(r, records)) is not None]
    most = max(20, min(MOST, 600 // max(1, len(compared))))
    for place, (name, record, base) in enumerate(compared):
        own = _changes(name, record, base, most)
        parts += own if place < OPEN else [Details(f"{name} against training alone", tuple(own))]
    if not compared:
        says = "Who gains and who loses? Give a run of method local on the same data as one more RUN to see it."
        parts.append(Paragraph((says,), "small"))
    return tuple(parts)


def alone(record: Record, records: Sequence[Record]) -> Record | None:
    """The run of training alone to compare with: same data, clients and level, and the nearest epsilon."""
    if record.method == "local" or not record.errors:
        return None
    fitting = [
        other
        for other in records
        if other.method == "local"
        and other.errors
        and set(other.errors) == set(record.errors)
        and other.statement["data"] == record.statement["data"]
        and other.statement["level"] == record.statement["level"]
    ]
    return min(fitting, key=lambda other: abs((other.epsilon or 0) - (record.epsilon or 0)), default=None)


def _thinned(count: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()


def _some(count: int, most: int) -> str:
    return f" {most} of {count} clients are drawn, evenly spaced by rank." if count > most else ""


def _bars(named: Sequence[tuple[str, Record]]) -> Chart:
    """Each client by name, with a bar for every run."""
    error = error_name([record for _, record in named])
    first = named[0][1].errors or {}
    clients = sorted({client for _, r in named for client in r.errors or {}}, key=lambda c: (first.get(c, 0.0), c))
    series, rows = [], []
    for name, record in named:
        errors = record.errors or {}
        own = [(place, client, errors[client]) for place, client in enumerate(clients, 1) if client in errors]
        points = tuple((float(place), value) for place, _, value in own)
        labels = tuple(f"{name}: {client}, {error} {number(value)}" for _, client, value in own)
        series.append(Series(name, points, labels, "bars"))
        rows += [(name, client, number(value), _constant(record, client)) for _, client, value in own]
    series += _constants(named, {client: float(place) for place, client in enumerate(clients, 1)})
    return Chart(
        f"Each client's {error}",
        f"Mean over repetitions. Clients are in the order of their errors in {named[0][0]}.",
        "client",
        error,
        tuple(series),
        Table("Each client's error", ("run", "client", error, _head(named)), tuple(rows)),
        names=tuple(clients),
    )


def _constant(record: Record, client: str) -> str | Value:
    found = (record.constants or {}).get(client)
    return "not measured" if found is None else number(found)


def _head(named: Sequence[tuple[str, Record]]) -> str:
    return constant_name([record for _, record in named])


def _constants(named: Sequence[tuple[str, Record]], places: Mapping[str, float]) -> list[Series]:
    """Bars of the clients' own constants, which all runs on the same rows share."""
    known = next((record.constants for _, record in named if record.constants), {})
    own = [(places[client], client, value) for client, value in known.items() if client in places]
    labels = tuple(f"{client}: {_head(named)} {number(value)}" for _, client, value in own)
    points = tuple((place, value) for place, _, value in own)
    return [Series(_head(named), points, labels, "bars")] if own else []


def _spread(named: Sequence[tuple[str, Record]], most: int) -> Chart:
    if len({client for _, record in named for client in record.errors or {}}) <= FEW:
        return _bars(named)
    series, rows = [], []
    error = error_name([record for _, record in named])
    for name, record in named:
        ranked = sorted((record.errors or {}).items(), key=lambda item: item[1])
        kept = [(place, *ranked[place]) for place in _thinned(len(ranked), most)]
        points = tuple((100 * (place + 1) / len(ranked), value) for place, _, value in kept)
        labels = tuple(f"{name}: {client}, {error} {number(value)}" for _, client, value in kept)
        series.append(Series(name, points, labels))
        rows += [(name, client, number(value), _constant(record, client)) for _, client, value in kept]
    known = next((record.constants for _, record in named if record.constants), {})
    if ordered := sorted(known.items(), key=lambda item: item[1]):
        at = [(100 * (place + 1) / len(ordered), *ordered[place]) for place in _thinned(len(ordered), most)]
        labels = tuple(f"{_head(named)}: {client}, {number(value)}" for _, client, value in at)
        series.append(Series(_head(named), tuple((across, value) for across, _, value in at), labels))
    count = max(len(record.errors or {}) for _, record in named)
    wide = far_apart([value for one in series for _, value in one.points])
    return Chart(
        f"Each client's {error}",
        "Clients ordered from the smallest error to the largest, mean over repetitions." + _some(count, most),
        "share of clients (%)",
        f"{error} (logarithmic axis)" if wide else error,
        tuple(series),
        Table("Each client's error", ("run", "client", error, _head(named)), tuple(rows)),
        log_y=wide,
        from_zero=True,
        shaded=(90.0, 100.0, "worst tenth"),
    )


def _changes(name: str, record: Record, base: Record, most: int) -> list[Part]:
    own, other = record.errors or {}, base.errors or {}
    ranked = sorted(((own[client] - other[client], client) for client in own), reverse=True)
    gains = [change for change, _ in ranked if change < 0]
    losses = [change for change, _ in ranked if change > 0]
    tenth = max(1, len(ranked) // 10)
    worst = sorted(own, key=lambda client: -other[client])[:tenth]
    helped = sum(own[client] < other[client] for client in worst)
    error = error_name([record])
    pairs = (
        ("Clients that gain", number(len(gains))),
        ("Clients that lose", number(len(losses))),
        (f"Median change of {error}", number(float(np.median([change for change, _ in ranked])))),
        ("Largest loss", number(max(losses, default=0.0))),
        ("Gain among the worst tenth", f"{helped} of {tenth}"),
    )
    kept = [(place, *ranked[place]) for place in _thinned(len(ranked), most)]

    def stems(title: str, keep: bool) -> Series:
        mine = [(place, change, client) for place, change, client in kept if (change < 0) == keep]
        labels = tuple(f"{client}: {number(other[client])} alone, {number(own[client])} here" for _, _, client in mine)
        return Series(title, tuple((place + 1.0, change) for place, change, _ in mine), labels, "stems")

    rows = tuple((client, number(other[client]), number(own[client]), number(change)) for _, change, client in kept)
    chart = Chart(
        f"{name} against training alone",
        f"Change of each client's {error}: below zero a client gains by taking part. Training alone is run "
        f"{base.run.name}, {'no privacy' if base.epsilon is None else f'epsilon {number(base.epsilon, base.note)}'}."
        + _some(len(ranked), most),
        "client, from the largest loss to the largest gain",
        f"change of {error}",
        tuple(s for s in (stems("gains", True), stems("loses or equal", False)) if s.points),
        Table("Change against training alone", ("client", "alone", "here", "change"), rows),
        names=tuple(client for _, client in ranked) if len(ranked) <= FEW else (),
    )
    return [chart, Facts(pairs), Details("How this was computed", (Paragraph((_computed(record),)),))]


def _computed(record: Record) -> str:
    return (
        "The worst tenth are the clients with the largest errors when they train alone. Errors are those of "
        "private/clients.json at the end of both runs, each a mean over "
        f"{record.experiment.seeds} repetition(s), on the clients' test rows. A client with few test rows has a noisy "
        "error, so some of the losses and gains are chance."
    )
