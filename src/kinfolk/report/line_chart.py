"""Line charts as self-contained SVG: what people would rather look at than read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import pairwise

from kinfolk import svg

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 62, 260, 44, 48
ROW = 18
"""Between two lines of the key."""
MOST_TICKS = 8
"""On a logarithmic axis; beyond, powers of ten alone."""
LETTER = 6.0
"""Width of a letter in the key, about."""
PANEL = 210
"""Height of a chart among others."""
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


@dataclass(frozen=True)
class Others:
    """Values from elsewhere, drawn dashed and open beside a line of ours, in its colour."""

    name: str
    like: str
    """The line of ours; one that is not there gives these a colour of their own."""
    points: Points
    joined: bool = True
    """Whether a dashed line goes through them."""


@dataclass(frozen=True)
class Axes:
    """What both axes say."""

    across: str
    log_across: bool = False
    log_up: bool = False
    names: Mapping[float, str] = field(default_factory=dict)
    """Words instead of numbers at places across."""
    spread: str = "standard deviation"
    """What whiskers show."""

    def shows(self, point: tuple[float, ...]) -> bool:
        """Whether a point can be drawn."""
        x, y = point[:2]
        return math.isfinite(x) and math.isfinite(y) and (x > 0 or not self.log_across) and (y > 0 or not self.log_up)


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
    return chart(title, series, up, Axes(across, log_across, log_up), marks=marks)


def chart(
    title: str,
    series: Mapping[str, Points],
    up: str,
    axes: Axes,
    beside: Sequence[Others] = (),
    marks: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """As `lines`, with values from elsewhere beside ours."""
    parts, height = _chart(series, up, axes, beside, marks or {}, HEIGHT)
    return svg.drawing(title, _width([*series, *(o.name for o in beside)]), height, parts)


def _width(names: Sequence[str]) -> float:
    """Of a drawing whose key has these names."""
    return max(WIDTH, WIDTH - RIGHT + 40 + LETTER * max(map(len, names), default=0))


def panels(
    title: str,
    charts: Mapping[str, Mapping[str, Points]],
    axes: Axes,
    beside: Mapping[str, Sequence[Others]] | None = None,
) -> str:
    """Charts one below the other, by what each shows."""
    parts, height = [], 0.0
    for up, series in charts.items():
        own, tall = _chart(series, up, axes, (beside or {}).get(up, ()), {}, PANEL)
        parts.append(svg.tag("g", "\n".join(own), transform=f"translate(0 {height:.0f})"))
        height += tall - TOP / 2  # only the first has the title above it
    names = [
        *(n for series in charts.values() for n in series),
        *(o.name for own in (beside or {}).values() for o in own),
    ]
    return svg.drawing(title, _width(names), height + TOP / 2, parts)


def _chart(
    series: Mapping[str, Points],
    up: str,
    axes: Axes,
    beside: Sequence[Others],
    marks: Mapping[str, tuple[float, float]],
    height: float,
) -> tuple[list[str], float]:
    """The parts of one chart, and how tall it came out."""
    kept = {name: [point for point in points if axes.shows(point)] for name, points in series.items()}
    others = [replace(o, points=[p for p in o.points if axes.shows(p)]) for o in beside]
    drawn_points: list[Points] = [*kept.values(), *(o.points for o in others), [*marks.values()]]
    everything = [point for points in drawn_points for point in points] or [(1.0, 1.0)]
    whiskers = not axes.log_up and any(point[2:] and point[2] > 0 for point in everything)
    wide, high = [point[0] for point in everything], [y for point in everything for y in _reach(point, whiskers)]
    end, bottom = WIDTH - RIGHT, height - BOTTOM
    place = _axis(wide, LEFT, end, axes.log_across), _axis(high, bottom, TOP, axes.log_up)
    parts = _frame(up, axes, wide, high, place, (end, bottom))
    numbers = {name: n for n, name in enumerate(kept)}
    for o in others:
        numbers.setdefault(o.like, len(numbers))
    drawn: list[tuple[str, int, Points, Others | None]] = [(n, numbers[n], p, None) for n, p in kept.items()]
    drawn += [(o.name, numbers[o.like], o.points, o) for o in others]
    for row, (name, number, points, other) in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        apart = SIDE * (number - (len(numbers) - 1) / 2) if whiskers else None
        if other is None or other.joined:
            parts.append(_path(points, place, colour, dashed=other is not None))
        parts += _points(name, number, points, place, colour, axes.names, apart, hollow=other is not None)
        parts.append(_mark("key", number, end + 16, TOP + ROW * row, colour, name, other is not None))
        parts.append(svg.text(end + 28, TOP + 4 + ROW * row, name))
    rows = len(drawn)
    if whiskers:
        y = TOP + ROW * rows
        parts.append(svg.line(end + 16, y - 6, end + 16, y + 6, stroke=svg.INK, class_="key"))
        parts.append(svg.text(end + 28, y + 4, f"± 1 {axes.spread} over seeds"))
    for name, (x, y) in marks.items():
        parts.append(_mark("point", 0, place[0](x), place[1](y), svg.INK, f"{name}: {x:.4g}, {y:.4g}"))
        parts.append(svg.text(place[0](x), place[1](y) + 18, name, "middle"))
    return parts, max(height, TOP + ROW * (rows + whiskers) + 20)


def _frame(
    up: str,
    axes: Axes,
    wide: Sequence[float],
    high: Sequence[float],
    place: tuple[svg.Scale, svg.Scale],
    corner: tuple[float, float],
) -> list[str]:
    """The axes with their numbers and words."""
    end, bottom = corner
    parts = [
        svg.line(LEFT, bottom, end, bottom, stroke=svg.INK),
        svg.line(LEFT, TOP, LEFT, bottom, stroke=svg.INK),
        svg.text((LEFT + end) / 2, bottom + BOTTOM - 10, axes.across, "middle"),
        svg.text(0, 0, up, "middle", transform=f"translate(14 {(TOP + bottom) / 2:.0f}) rotate(-90)"),
    ]
    numbers = _ticks([x for x in wide if x not in axes.names] or wide, axes.log_across)
    words = {x: f"{x:.4g}" for x in numbers} | {x: axes.names[x] for x in set(wide) & set(axes.names)}
    parts += [svg.text(place[0](x), bottom + 16, said, "middle") for x, said in words.items()]
    for y in _ticks(high, axes.log_up, few=0):
        parts.append(svg.text(LEFT - 6, place[1](y) + 4, f"{y:.3g}", "end"))
        parts.append(svg.line(LEFT, place[1](y), end, place[1](y), stroke="#eee"))
    return parts


def _path(points: Points, place: tuple[svg.Scale, svg.Scale], colour: str, *, dashed: bool) -> str:
    """A line through points."""
    path = svg.corners((place[0](p[0]), place[1](p[1])) for p in points)
    dashes: dict[str, str | float] = {"stroke_dasharray": "5 4"} if dashed else {}
    return svg.tag("polyline", points=path, fill="none", stroke=colour, stroke_width=1.8, **dashes)


def _points(
    name: str,
    number: int,
    points: Points,
    place: tuple[svg.Scale, svg.Scale],
    colour: str,
    words: Mapping[float, str],
    apart: float | None,
    *,
    hollow: bool,
) -> list[str]:
    """Marked points, with whiskers so far `apart` from them; `words` for places that are not what they seem."""
    parts = []
    for x, y, *spread in points:
        if apart is not None and spread and spread[0] > 0:
            reach = place[1](y - spread[0]), place[1](y + spread[0])
            side = place[0](x) + apart
            parts.append(svg.line(side, reach[0], side, reach[1], stroke=colour, class_="whisker"))
        said = f"{name}: {words.get(x, f'{x:.4g}')}, {y:.4g}"
        parts.append(_mark("point", number, place[0](x), place[1](y), colour, said, hollow))
    return parts


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
    if log and len(covering) > MOST_TICKS:
        covering = [value for value in covering if math.log10(value) == round(math.log10(value))]
    return [value for value in covering if low <= value <= high] or found


def _crowded(values: Sequence[float], log: bool) -> bool:
    """Whether two labels would stand on each other."""
    places = [math.log(value) for value in values] if log else list(values)
    room = 0.06 * (places[-1] - places[0])
    return any(b - a < room for a, b in pairwise(places))


def _mark(role: str, number: int, x: float, y: float, colour: str, about: str, hollow: bool = False) -> str:
    content = SHAPES[number % len(SHAPES)] + svg.tag("title", escape(about))
    paint = {"fill": "white", "stroke": colour} if hollow else {"fill": colour}
    return svg.tag("g", content, class_=role, transform=f"translate({x:.1f} {y:.1f})", **paint)
