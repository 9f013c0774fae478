"""Charts as SVG text. Colours come from the page's style sheet, so that they follow light, dark and print."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kinfolk import svg
from kinfolk.report.content import Chart, Series

MARKS = 6
"""Series have one of this many colours, shapes and dashes; a seventh looks like the first, and is hidden at first."""
LONGEST = 15
"""Letters of a name below an axis."""
LETTER = 5
"""Room across that a letter of a name aslant takes; where there is less for the longest, names stand upright."""
DEEP = 62
"""Room below an axis for names."""
SIDE = 3
"""How far whiskers of different series stand apart, so that none hides another."""
DENSE = 30
"""Of more points than this, the marks on a line are seen only when one is looked at."""


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


def draw(chart: Chart, frame: Frame, number: int) -> str:
    """The chart as SVG; `number` tells it from others on the page."""
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for y in _heights(series) if math.isfinite(y)] or [0.0]
    logarithmic = chart.log_x and min(xs) > 0
    x_ticks = svg.log_ticks(min(xs), max(xs)) if logarithmic else svg.ticks(*_room(xs), 4 if frame is NARROW else 6)
    if chart.names:
        x_ticks = [0.5, *map(float, range(1, len(chart.names) + 1)), len(chart.names) + 0.5]
    stems = any(series.kind in ("stems", "bars") for series in chart.series)
    log_y = chart.log_y and min(y for series in chart.series for _, y in series.points) > 0
    ys = [y for y in ys if y > 0] if log_y else ys
    if log_y:
        y_ticks = svg.log_ticks(min(ys), max(ys))
    else:
        y_ticks = svg.ticks(min(0.0, *ys) if chart.from_zero or stems else min(ys), max(0.0, *ys) if stems else max(ys))
    x_end, bottom = frame.width - frame.right, frame.height - frame.bottom
    across = svg.scale(x_ticks[0], x_ticks[-1], frame.left, x_end, logarithmic)
    down = svg.scale(y_ticks[0], y_ticks[-1], bottom, frame.top, log_y)
    parts = []
    if chart.shaded:
        begin, end, name = across(chart.shaded[0]), across(chart.shaded[1]), chart.shaded[2]
        height = bottom - frame.top
        parts.append(svg.tag("rect", class_="shade", x=begin, y=frame.top, width=end - begin, height=height))
        parts.append(svg.text(begin - 6, frame.top + 12, name, "end", class_="label"))
    for value in y_ticks:
        y = down(value)
        parts.append(svg.line(frame.left, y, x_end, y, class_="zero" if value == 0 and stems else "grid"))
        parts.append(svg.text(frame.left - 8, y + 4, f"{value:g}", "end", class_="label"))
    height = frame.height + (DEEP if chart.names else 0)
    longest = max((min(LONGEST, len(name)) for name in chart.names), default=0)
    upright = across(2) - across(1) < LETTER * longest
    for value in x_ticks[1:-1] if chart.names else x_ticks:
        x = across(value)
        parts.append(svg.line(x, bottom, x, bottom + 5, class_="tick"))
        if chart.names:
            parts.append(_name(chart.names[int(value) - 1], x + 4, bottom + 14, upright))
        else:
            parts.append(svg.text(x, bottom + 19, f"{value:g}", "middle", class_="label"))
    parts.append(svg.text((frame.left + x_end) / 2, height - 8, chart.x_label, "middle", class_="axis"))
    wide, beside = _bar_width(chart, across), min(MARKS, len(chart.series))
    parts += [_series(series, place, across, down, wide, beside) for place, series in enumerate(chart.series)]
    size = "wide" if frame is WIDE else "narrow"
    return svg.tag(
        "svg",
        "".join(parts),
        class_=size,
        id=f"chart-{number}-{size}",
        viewBox=f"0 0 {frame.width} {height}",
        role="group",
        aria_label=f"{chart.title}. {chart.summary}",
    )


def _heights(series: Series) -> list[float]:
    """The heights that a series needs: of its points, and of the ends of their whiskers."""
    heights = [y for _, y in series.points]
    ends = [(y - s, y + s) for y, s in zip(heights, series.spreads, strict=False)]
    return [*heights, *(end for pair in ends for end in pair)]


def _room(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (min(0.0, low), max(high * 1.5, 1.0))


def _name(name: str, x: float, y: float, upright: bool) -> str:
    """A name below an axis, aslant, or upright where there is little room; its end is left out where it is long."""
    longest, turn = (LONGEST * 2 // 3, 90) if upright else (LONGEST, 40)
    short = name if len(name) <= longest else f"{name[: longest - 1]}\u2026"
    return svg.text(0, 0, short, "end", class_="label", transform=f"translate({x:.1f} {y:.1f}) rotate(-{turn})")


def _bar_width(chart: Chart, across: svg.Scale) -> float:
    """How wide one of the bars that stand side by side is; 0 where there are none."""
    side_by_side = min(MARKS, sum(series.kind == "bars" for series in chart.series))
    return min(24.0, 0.76 * (across(2) - across(1)) / side_by_side) if side_by_side and len(chart.names) > 1 else 24.0


def _series(series: Series, place: int, across: svg.Scale, down: svg.Scale, wide: float, beside: int) -> str:
    aside = wide * (place % MARKS - (beside - 1) / 2) if series.kind == "bars" else 0.0
    spots = [(across(x) + aside, down(y)) for x, y in series.points]
    mark, dense = place % MARKS, len(spots) > DENSE
    parts = []
    if series.kind in ("line", "level") and len(spots) > 1:
        parts.append(svg.tag("polyline", class_=series.kind, points=svg.corners(spots)))
    if series.kind in ("stems", "bars"):
        lines = "".join(f"M{x:.1f},{down(0.0):.1f}V{y:.1f}" for x, y in spots)
        width = {"style": f"stroke-width:{0.8 * wide:.1f}"} if series.kind == "bars" else {}
        parts.append(svg.tag("path", class_="stem", d=lines, **width))
    for (x, _), (_, y), spread in zip(spots, series.points, series.spreads, strict=False):
        apart = x + SIDE * (place % MARKS - (beside - 1) / 2)
        parts.append(svg.line(apart, down(y - spread), apart, down(y + spread), class_="whisker"))
    shown = list(zip(spots, series.labels, strict=True))[: 1 if series.kind == "level" else None]
    points = "".join(
        svg.tag(
            "g",
            svg.tag("circle", class_="reach", r=9) + _mark(mark, dense),
            class_="point",
            role="img",
            tabindex="-1",
            aria_label=label,
            transform=f"translate({x:.1f},{y:.1f})",
        )
        for (x, y), label in shown
    )
    parts.append(svg.tag("g", points, class_="dense") if dense and series.kind != "stems" else svg.tag("g", points))
    hidden = " hidden" if place >= MARKS else ""
    return svg.tag("g", "".join(parts), class_=f"series s{mark}{hidden}", data_series=place)


def _mark(mark: int, small: bool = False) -> str:
    """A shape per series: told apart without colour."""
    r = 2.6 if small else 4.2
    if mark % 3 == 0:
        return svg.tag("circle", class_="mark", r=r)
    if mark % 3 == 1:
        return svg.tag("rect", class_="mark", x=-r * 0.9, y=-r * 0.9, width=r * 1.8, height=r * 1.8)
    return svg.tag("path", class_="mark", d=f"M0,{-1.25 * r:.1f}L{1.15 * r:.1f},{0.85 * r:.1f}H{-1.15 * r:.1f}Z")


def sample(place: int) -> str:
    """The mark of a series, for the legend."""
    mark = place % MARKS
    line = svg.tag("polyline", class_="line", points="-13,0 13,0")
    drawn = svg.tag("g", line + _mark(mark), class_=f"series s{mark}")
    return svg.tag("svg", drawn, class_="sample", viewBox="-14 -7 28 14", aria_hidden="true")
