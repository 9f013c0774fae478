"""Line charts as self-contained SVG: what people would rather look at than read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from kinfolk import svg

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 62, 260, 44, 48
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#222222", "#ee7733", "#009988")
"""Tell apart with any kind of colour vision; lines are also marked by shape."""
SHAPES = (
    svg.tag("circle", r="3.2"),
    svg.tag("rect", x=-3, y=-3, width=6, height=6),
    svg.tag("path", d="M0 -4 l4 7 h-8 z"),
)
SIDE = 3
"""How far whiskers of different lines stand apart, so that none hides another."""
Points = Sequence[tuple[float, ...]]
"""Pairs (across, up); a third number is how far a whisker reaches up and down."""


def lines(
    title: str,
    series: Mapping[str, Points],
    across: str,
    up: str,
    *,
    log_across: bool = False,
    log_up: bool = False,
    marks: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """One line per entry of `series`, named at the right; `marks` are single points with a label beside them.

    Points that are not finite, or not positive on a logarithmic axis, are left out.
    """

    def shown(point: tuple[float, ...]) -> bool:
        x, y = point[:2]
        return math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_across) and (y > 0 or not log_up)

    kept = {name: [point for point in points if shown(point)] for name, points in series.items()}
    everything = [point for points in kept.values() for point in points] + list((marks or {}).values()) or [(1.0, 1.0)]
    whiskers = not log_up and any(point[2:] and point[2] > 0 for point in everything)
    wide, high = [point[0] for point in everything], [y for point in everything for y in _reach(point, whiskers)]
    end, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    place_x, place_y = _axis(wide, LEFT, end, log_across), _axis(high, bottom, TOP, log_up)
    parts = [
        svg.line(LEFT, bottom, end, bottom, stroke=svg.INK),
        svg.line(LEFT, TOP, LEFT, bottom, stroke=svg.INK),
        svg.text((LEFT + end) / 2, HEIGHT - 10, across, "middle"),
        svg.text(0, 0, up, "middle", transform=f"translate(14 {(TOP + bottom) / 2:.0f}) rotate(-90)"),
    ]
    parts += [svg.text(place_x(x), bottom + 16, f"{x:.3g}", "middle") for x in _ticks(wide, log_across)]
    for y in _ticks(high, log_up, few=0):
        parts.append(svg.text(LEFT - 6, place_y(y) + 4, f"{y:.3g}", "end"))
        parts.append(svg.line(LEFT, place_y(y), end, place_y(y), stroke="#eee"))
    for number, (name, points) in enumerate(kept.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = svg.corners((place_x(p[0]), place_y(p[1])) for p in points)
        parts.append(svg.tag("polyline", points=path, fill="none", stroke=colour, stroke_width=1.8))
        for x, y, *spread in points:
            if whiskers and spread and spread[0] > 0:
                apart = place_x(x) + SIDE * (number - (len(kept) - 1) / 2)
                reach = place_y(y - spread[0]), place_y(y + spread[0])
                parts.append(svg.line(apart, reach[0], apart, reach[1], stroke=colour, class_="whisker"))
            parts.append(_mark("point", number, place_x(x), place_y(y), colour, f"{name}: {x:.4g}, {y:.4g}"))
        parts.append(_mark("key", number, end + 16, TOP + 18 * number, colour, name))
        parts.append(svg.text(end + 28, TOP + 4 + 18 * number, name))
    if whiskers:
        y = TOP + 18 * len(kept)
        parts.append(svg.line(end + 16, y - 6, end + 16, y + 6, stroke=svg.INK, class_="key"))
        parts.append(svg.text(end + 28, y + 4, "± 1 standard deviation over seeds"))
    for name, (x, y) in (marks or {}).items():
        parts.append(_mark("point", 0, place_x(x), place_y(y), svg.INK, f"{name}: {x:.4g}, {y:.4g}"))
        parts.append(svg.text(place_x(x), place_y(y) + 18, name, "middle"))
    return svg.drawing(title, WIDTH, max(HEIGHT, TOP + 18 * (len(kept) + whiskers) + 20), parts)


def _reach(point: tuple[float, ...], whiskers: bool) -> tuple[float, ...]:
    """The heights that a point needs: its own, and the ends of its whisker."""
    y, spread = point[1], point[2] if whiskers and len(point) > 2 else 0.0
    return y - spread, y, y + spread


def _axis(values: Sequence[float], begin: float, end: float, log: bool) -> svg.Scale:
    """A scale with a little room at both ends."""
    low, high = min(values), max(values)
    if log:
        pad = (high / low) ** 0.04 if high > low else math.exp(0.5)
        return svg.scale(low / pad, high * pad, begin, end, log)
    pad = 0.04 * (high - low) or 0.5
    return svg.scale(low - pad, high + pad, begin, end)


def _ticks(values: Sequence[float], log: bool, few: int = 6) -> list[float]:
    """The values themselves where there are few and none too close to the next, else round numbers among them."""
    low, high = min(values), max(values)
    found = sorted(set(values))
    if high <= low or (len(found) <= few and not _crowded(found, log)):
        return found
    covering = svg.log_ticks(low, high) if log else svg.ticks(low, high, 6)
    return [value for value in covering if low <= value <= high] or found


def _crowded(values: Sequence[float], log: bool) -> bool:
    """Whether two labels would stand on each other."""
    places = [math.log(value) for value in values] if log else list(values)
    room = 0.06 * (places[-1] - places[0])
    return any(b - a < room for a, b in pairwise(places))


def _mark(role: str, number: int, x: float, y: float, colour: str, about: str) -> str:
    content = SHAPES[number % len(SHAPES)] + svg.tag("title", escape(about))
    return svg.tag("g", content, class_=role, transform=f"translate({x:.1f} {y:.1f})", fill=colour)
