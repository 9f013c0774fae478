"""The section "may be shown": metrics that were paid for, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.metrics.survival import WITHOUT
from kinfolk.report.content import Chart, Details, Paragraph, Part, Series, Table, Value, number
from kinfolk.report.reading import Record


def section(records: Sequence[Record]) -> tuple[Part, ...]:
    """What may be shown of every run that was evaluated; nothing where none was."""
    parts: list[Part] = []
    for record in records:
        for shown in record.statement.get("may_be_shown", ()):
            parts += _one(record, shown, named=len(records) > 1)
    return tuple(parts)


def _one(record: Record, shown: Mapping[str, Any], named: bool) -> list[Part]:
    rows = [_row(metric, "") for metric in shown["metrics"]]
    for group in shown["groups"]:
        rows += [_row(metric, f"{group['group']}: ") for metric in (*group["metrics"], *group["differences"])]
        rows += [] if group["metrics"] else [(group["group"], "too few to tell", "", "")]
    about = f"{record.method} ({record.run.name}): " if named else ""
    cost = number(shown["epsilon"], "simulated" if shown["simulated"] else "")
    several = f"{shown['parties']} tables, one of each client, with noise of its own"
    tables = several if shown["parties"] > 1 else "one table"
    return [
        Paragraph(
            (
                f"{about}These numbers may be published. They come from {shown['counted']} {shown['unit']} that were "
                f"kept for testing, through {tables}, and cost every unit epsilon ",
                cost,
                ", which is in the account above." + _without(shown),
            ),
            "lead",
        ),
        Table("Metrics that may be shown", ("metric", "value", "95 % interval from", "to"), tuple(rows)),
        *_without_event(shown),
        *_confusion(shown.get("confusion", ())),
        Details(
            "What the intervals hold",
            (
                Paragraph(
                    (
                        "Noise, sampling (other people like these) and what bins of scores hide. Each interval stands "
                        "for itself, and for an evaluation that was fixed before results were seen: choosing models by "
                        "their evaluations makes the best of them look too good. Metrics are of all rows together, not "
                        "means of clients' metrics; at client level every client counts alike.",
                    )
                ),
            ),
            printed=True,
        ),
    ]


def _without(shown: Mapping[str, Any]) -> str:
    """Which silos are not in it."""
    silent = shown.get("without", ())
    return f" Not in it, as they did not answer: {', '.join(silent)}." if silent else ""


def _without_event(shown: Mapping[str, Any]) -> list[Part]:
    """Kaplan and Meier's curve, where there are times until an event."""
    times = shown.get("times", [])
    if not times:
        return []
    found = [metric for metric in shown["metrics"] if metric["name"].startswith(WITHOUT)]

    def line(name: str, key: str) -> Series:
        points = [(0.0, 1.0), *zip(times, (metric[key] for metric in found), strict=True)]
        return Series(name, tuple(points), tuple(f"{name}: {y:.3g} by {x:g}" for x, y in points))

    lines = (line("released", "value"), line("95 % interval, from", "low"), line("95 % interval, to", "high"))
    rows = [
        (f"{time:g}", *(_three(metric[key]) for key in ("value", "low", "high")))
        for time, metric in zip(times, found, strict=True)
    ]
    return [
        Chart(
            "Without the event (Kaplan and Meier)",
            f"The share without the event falls to {found[-1]['value']:.3g} by {times[-1]:g}.",
            "time",
            "share without the event",
            lines,
            Table("Share without the event", ("time", "share", "from", "to"), tuple(rows)),
            from_zero=True,
        )
    ]


def _confusion(pairs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """What came out against what was predicted, where there are labels."""
    rows = tuple(
        (pair["outcome"], pair["predicted"], *(_three(pair[key]) for key in ("share", "low", "high"))) for pair in pairs
    )
    head = ("came out", "predicted", "share of everybody", "95 % interval from", "to")
    return [Table("What came out against what was predicted", head, rows)] if rows else []


def _row(metric: Mapping[str, Any], lead: str) -> tuple[str | Value, ...]:
    unit = f" ({metric['unit']})" if metric["unit"] else ""
    return (f"{lead}{metric['name']}{unit}", *(_three(metric[key]) for key in ("value", "low", "high")))


def _three(value: float) -> Value:
    return Value(f"{value:.3g}", float(value))
