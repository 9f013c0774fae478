"""Line charts as self-contained SVG: what people would rather look at than read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 62, 260, 44, 48
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#222222", "#ee7733", "#009988")
"""Tell apart with any kind of colour vision; lines are also marked by shape."""
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
    wide, high = [point[0] for point in everything], [point[1] for point in everything]
    place_x = _axis(wide, LEFT, WIDTH - RIGHT, log_across)
    place_y = _axis(high, HEIGHT - BOTTOM, TOP, log_up)
    parts = _frame(across, up)
    for x in _ticks(wide, log_across):
        parts.append(_text(place_x(x), HEIGHT - BOTTOM + 16, f"{x:.3g}", anchor="middle"))
    for y in _ticks(high, log_up):
        parts.append(_text(LEFT - 6, place_y(y) + 4, f"{y:.3g}", anchor="end"))
        parts.append(_line(LEFT, place_y(y), WIDTH - RIGHT, place_y(y), "#eee"))
    for number, (name, points) in enumerate(kept.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{place_x(p[0]):.1f},{place_y(p[1]):.1f}" for p in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        for x, y, *spread in points:
            if spread and spread[0] > 0 and not log_up:
                parts.append(_line(place_x(x), place_y(y - spread[0]), place_x(x), place_y(y + spread[0]), colour))
            parts.append(_mark("point", number, place_x(x), place_y(y), colour, f"{name}: {x:.4g}, {y:.4g}"))
        parts.append(_mark("key", number, WIDTH - RIGHT + 16, TOP + 18 * number, colour, name))
        parts.append(_text(WIDTH - RIGHT + 28, TOP + 4 + 18 * number, name))
    for name, (x, y) in (marks or {}).items():
        parts.append(_mark("point", 0, place_x(x), place_y(y), "#222", f"{name}: {x:.4g}, {y:.4g}"))
        parts.append(_text(place_x(x), place_y(y) + 18, name, anchor="middle"))
    height = max(HEIGHT, TOP + 18 * len(kept) + 20)
    return _page(title, height, parts)


def _axis(values: Sequence[float], begin: float, end: float, log: bool):
    """Where on the page a value lies."""
    low, high = min(values), max(values)
    if log:
        low, high = math.log(low), math.log(high)
    pad = 0.04 * (high - low) or 0.5
    low, high = low - pad, high + pad
    return lambda value: begin + ((math.log(value) if log else value) - low) / (high - low) * (end - begin)


def _ticks(values: Sequence[float], log: bool) -> list[float]:
    """The values themselves where there are few, else round numbers among them."""
    low, high = min(values), max(values)
    found = sorted(set(values))
    if len(found) <= 6 or high <= low:
        return found
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        return [x for power in powers for x in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if low <= x <= high]
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(s * power for s in (1, 2, 5, 10) if (high - low) / (s * power) <= 6)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _frame(across: str, up: str) -> list[str]:
    return [
        _line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "#222"),
        _line(LEFT, TOP, LEFT, HEIGHT - BOTTOM, "#222"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, anchor="middle"),
        f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(up)}</text>",
    ]


def _mark(role: str, number: int, x: float, y: float, colour: str, about: str) -> str:
    shape = ('<circle r="3.2"/>', '<rect x="-3" y="-3" width="6" height="6"/>', '<path d="M0 -4 l4 7 h-8 z"/>')[
        number % 3
    ]
    return (
        f'<g class="{role}" transform="translate({x:.1f} {y:.1f})" fill="{colour}">'
        f"{shape}<title>{escape(about)}</title></g>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _page(title: str, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif" '
        f'font-size="11" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'
        '<rect width="100%" height="100%" fill="white"/>'
        f'<text x="10" y="22" font-size="14">{escape(title)}</text>'
    )
    return "\n".join([head, *parts, "</svg>", ""])
