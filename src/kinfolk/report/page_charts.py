"""Charts as SVG text. Colours come from the page's style sheet, so that they follow light, dark and print."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from kinfolk.report.content import Chart, Series

MARKS = 6
"""Series have one of this many colours, shapes and dashes; a seventh looks like the first, and is hidden at first."""
DENSE = 30
"""Of more points than this, the marks on a line are seen only when one is looked at."""
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Frame:
    """Sizes of a drawing."""

    width: int
    height: int
    left: int = 58
    right: int = 18
    top: int = 16
    bottom: int = 50


WIDE, NARROW = Frame(760, 330), Frame(360, 270, left=50, right=12)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover low to high.

    >>> ticks(0, 3.2)
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next((unit * m for m in (1, 2, 2.5, 5) if unit * m >= raw * 0.999), 10 * unit)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten times 1, 2 or 5 that cover low to high.

    >>> log_ticks(0.5, 8)
    [0.5, 1.0, 2.0, 5.0, 10.0]
    """
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [float(f"{m}e{k}") for k in decades for m in (1, 2, 5)]
    first = max(k for k, step in enumerate(steps) if step <= low * 1.02)
    last = min(k for k, step in enumerate(steps) if step >= high * 0.98)
    return steps[first : last + 1]


def draw(chart: Chart, frame: Frame, number: int) -> str:
    """The chart as SVG; `number` tells it from others on the page."""
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points if math.isfinite(y)] or [0.0]
    logarithmic = chart.log_x and min(xs) > 0
    x_ticks = log_ticks(min(xs), max(xs)) if logarithmic else ticks(*_room(xs), 4 if frame is NARROW else 6)
    stems = any(series.kind == "stems" for series in chart.series)
    log_y = chart.log_y and min(ys) > 0
    if log_y:
        y_ticks = log_ticks(min(ys), max(ys))
    else:
        y_ticks = ticks(min(0.0, *ys) if chart.from_zero or stems else min(ys), max(0.0, *ys) if stems else max(ys))
    x_end = frame.width - frame.right
    across = _scale(x_ticks[0], x_ticks[-1], frame.left, x_end, logarithmic)
    down = _scale(y_ticks[0], y_ticks[-1], frame.height - frame.bottom, frame.top, log_y)
    bottom = frame.height - frame.bottom
    parts = []
    if chart.shaded:
        begin, end, name = across(chart.shaded[0]), across(min(chart.shaded[1], x_ticks[-1])), chart.shaded[2]
        parts.append(
            f'<rect class="shade" x="{begin:.1f}" y="{frame.top}" width="{end - begin:.1f}" '
            f'height="{bottom - frame.top}"/>'
        )
        parts.append(_text(begin - 6, frame.top + 12, name, "end"))
    for value in y_ticks:
        y = down(value)
        kind = "zero" if value == 0 and stems else "grid"
        parts.append(f'<line class="{kind}" x1="{frame.left}" x2="{x_end}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(frame.left - 8, y + 4, f"{value:g}", "end"))
    for value in x_ticks:
        x = across(value)
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>')
        parts.append(_text(x, bottom + 19, f"{value:g}", "middle"))
    parts.append(_text((frame.left + x_end) / 2, frame.height - 8, chart.x_label, "middle", "axis"))
    for place, series in enumerate(chart.series):
        parts.append(_series(series, place, across, down))
    title = escape(f"{chart.title}. {chart.summary}")
    size = "wide" if frame is WIDE else "narrow"
    return (
        f'<svg class="{size}" id="chart-{number}-{size}" viewBox="0 0 {frame.width} {frame.height}" role="group" '
        f'aria-label="{title}">' + "".join(parts) + "</svg>"
    )


def _room(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (min(0.0, low), max(high * 1.5, 1.0))


def _scale(low: float, high: float, start: float, end: float, logarithmic: bool) -> Scale:
    if logarithmic:
        low, high = math.log(low), math.log(high)

    def place(value: float) -> float:
        value = math.log(value) if logarithmic else min(max(value, low), high)
        return start + (value - low) / (high - low) * (end - start)

    return place


def _series(series: Series, place: int, across: Scale, down: Scale) -> str:
    spots = [(across(x), down(y)) for x, y in series.points]
    mark = place % MARKS
    hidden = " hidden" if place >= MARKS else ""
    parts = [f'<g class="series s{mark}{hidden}" data-series="{place}">']
    if series.kind in ("line", "level") and len(spots) > 1:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline class="{series.kind}" points="{corners}"/>')
    if series.kind == "stems":
        zero = down(0.0)
        lines = "".join(f"M{x:.1f},{zero:.1f}V{y:.1f}" for x, y in spots)
        parts.append(f'<path class="stem" d="{lines}"/>')
    shown = (
        zip(spots[:1], series.labels[:1], strict=True)
        if series.kind == "level"
        else zip(spots, series.labels, strict=True)
    )
    dense = ' class="dense"' if len(spots) > DENSE and series.kind != "stems" else ""
    parts.append(f"<g{dense}>")
    for (x, y), label in shown:
        parts.append(
            f'<g class="point" role="img" tabindex="-1" aria-label="{escape(label)}" '
            f'transform="translate({x:.1f},{y:.1f})"><circle class="reach" r="9"/>{_mark(mark, len(spots) > DENSE)}</g>'
        )
    return "".join(parts) + "</g></g>"


def _mark(mark: int, small: bool = False) -> str:
    """A shape per series: told apart without colour."""
    r = 2.6 if small else 4.2
    if mark % 3 == 0:
        return f'<circle class="mark" r="{r}"/>'
    if mark % 3 == 1:
        return (
            f'<rect class="mark" x="{-r * 0.9:.1f}" y="{-r * 0.9:.1f}" width="{r * 1.8:.1f}" height="{r * 1.8:.1f}"/>'
        )
    return f'<path class="mark" d="M0,{-1.25 * r:.1f}L{1.15 * r:.1f},{0.85 * r:.1f}H{-1.15 * r:.1f}Z"/>'


def sample(place: int) -> str:
    """The mark of a series, for the legend."""
    mark = place % MARKS
    return (
        f'<svg class="sample" viewBox="-14 -7 28 14" aria-hidden="true"><g class="series s{mark}">'
        f'<polyline class="line" points="-13,0 13,0"/>{_mark(mark)}</g></svg>'
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
