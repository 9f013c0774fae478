"""Line charts, as self-contained SVG files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 400, 74, 44, 20, 92
COLOURS = ("#4477aa", "#cc6677", "#228833", "#aa7733", "#7755aa", "#555555", "#66aacc")


def lines(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    across: str,
    up: str,
    marks: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """Curves of positive points on logarithmic axes, with a legend below; `marks` are single points with a label."""
    marks = marks or {}
    points = [p for curve in series.values() for p in curve] + list(marks.values())
    if not points or any(value <= 0 or not math.isfinite(value) for point in points for value in point):
        raise ValueError("a picture on logarithmic axes needs points, all of them positive and finite")
    (left, right), (low, high) = (_span([p[axis] for p in points]) for axis in (0, 1))

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in _ticks(left, right):
        parts.append(f'<line x1="{x(value):.1f}" y1="{TOP}" x2="{x(value):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>')
        parts.append(_text(x(value), HEIGHT - BOTTOM + 14, f"{value:g}", anchor="middle"))
    for value in _ticks(low, high):
        parts.append(f'<line x1="{LEFT}" y1="{y(value):.1f}" x2="{WIDTH - RIGHT}" y2="{y(value):.1f}" stroke="#eee"/>')
        parts.append(_text(LEFT - 6, y(value) + 4, f"{value:g}", anchor="end"))
    for number, (name, curve) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        column, row = number % 3, number // 3
        parts.append(_text(LEFT + column * 190, HEIGHT - BOTTOM + 52 + 16 * row, name, colour))
    for name, (a, b) in marks.items():
        parts.append(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="4" fill="#222"/>')
        parts.append(_text(x(a), y(b) + 18, name, anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 32, across, anchor="middle"))
    parts.append(_text(8, TOP - 6, up))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="20" font-size="14">{escape(title)}</text>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis, in powers of ten, a little beyond the values."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.03, 0.05 * (high - low))
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two powers of ten: decades, or 1, 2 and 5 of each where there are few."""
    steps = (1,) if high - low > 3 else (1, 2, 5) if high - low > 0.7 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    values = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    return [value for value in values if low <= math.log10(value) <= high]


def _text(x: float, y: float, text: str, colour: str = "#222", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
