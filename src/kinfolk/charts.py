"""Line charts as self-contained SVG: what people would rather look at than read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 62, 260, 44, 48
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#222222", "#ee7733", "#009988")
"""Tell apart with any kind of colour vision; lines are also marked by shape."""
Points = Sequence[tuple[float, float]]


def lines(
    title: str, series: Mapping[str, Points], across: str, up: str, *, log_across: bool = False, log_up: bool = False
) -> str:
    """One line per entry of `series`, named at the right; points that are not finite are left out."""
    kept = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)] for name, points in series.items()
    }
    everything = [point for points in kept.values() for point in points] or [(1.0, 1.0)]
    place_x = _axis([x for x, _ in everything], LEFT, WIDTH - RIGHT, log_across)
    place_y = _axis([y for _, y in everything], HEIGHT - BOTTOM, TOP, log_up)
    parts = _frame(across, up)
    for x in _ticks([x for x, _ in everything], log_across):
        parts.append(_text(place_x(x), HEIGHT - BOTTOM + 16, f"{x:.3g}", anchor="middle"))
    for y in _ticks([y for _, y in everything], log_up):
        parts.append(_text(LEFT - 6, place_y(y) + 4, f"{y:.3g}", anchor="end"))
        parts.append(
            f'<line x1="{LEFT}" y1="{place_y(y):.1f}" x2="{WIDTH - RIGHT}" y2="{place_y(y):.1f}" stroke="#eee"/>'
        )
    for number, (name, points) in enumerate(kept.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts += [_mark(number, place_x(x), place_y(y), colour, f"{name}: {x:.4g}, {y:.4g}") for x, y in points]
        parts.append(_mark(number, WIDTH - RIGHT + 16, TOP + 18 * number, colour, name))
        parts.append(_text(WIDTH - RIGHT + 28, TOP + 4 + 18 * number, name))
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
        f'<line x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - RIGHT}" y2="{HEIGHT - BOTTOM}" stroke="#222"/>',
        f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{HEIGHT - BOTTOM}" stroke="#222"/>',
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, anchor="middle"),
        f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(up)}</text>",
    ]


def _mark(number: int, x: float, y: float, colour: str, about: str) -> str:
    shape = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"',
        f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"',
        f'<path d="M{x:.1f} {y - 4:.1f} l4 7 h-8 z"',
    )[number % 3]
    tag = shape.split(" ", 1)[0][1:]
    return f'{shape} fill="{colour}"><title>{escape(about)}</title></{tag}>'


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
