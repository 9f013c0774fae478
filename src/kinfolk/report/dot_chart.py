"""One number per name, as dots on rows: self-contained SVG."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from kinfolk import svg
from kinfolk.report.line_chart import COLOURS

WIDTH, LEFT, RIGHT, TOP, BOTTOM, ROW = 760, 300, 60, 44, 48, 24


def dots(
    title: str,
    values: Mapping[str, tuple[float, float]],
    along: str,
    beside: Mapping[str, float] | None = None,
    *,
    spread: str = "standard error",
) -> str:
    """A dot with a whisker for every name; `beside`: values from elsewhere, as rings on the same rows.

    Rows of `beside` that have no value of ours come last.
    """
    theirs = beside or {}
    names = list(dict.fromkeys([*values, *theirs]))
    ends = [value + side * error for value, error in values.values() for side in (-1, 1)] + list(theirs.values())
    ticks = svg.ticks(min(ends, default=0.0), max(ends, default=1.0))
    place = svg.scale(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT)
    bottom = TOP + ROW * len(names)
    parts = [svg.line(place(tick), TOP, place(tick), bottom, stroke="#eee") for tick in ticks]
    parts += [svg.text(place(tick), bottom + 16, f"{tick:.3g}", "middle") for tick in ticks]
    parts.append(svg.line(LEFT, bottom, WIDTH - RIGHT, bottom, stroke=svg.INK))
    whiskers = f", ± 1 {spread}" if any(error for _, error in values.values()) else ""
    rings = "; rings: the paper" if theirs else ""
    parts.append(svg.text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, f"{along} (dots: here{whiskers}{rings})", "middle"))
    for number, name in enumerate(names):
        y, colour = TOP + ROW * (number + 0.5), COLOURS[number % len(COLOURS)]
        parts.append(svg.text(LEFT - 12, y + 4, name, "end"))
        if name in values:
            value, error = values[name]
            parts.append(svg.line(place(value - error), y, place(value + error), y, stroke=colour, class_="whisker"))
            parts.append(_dot(place(value), y, f"{name}: {value:.4g}", fill=colour))
        if name in theirs:
            parts.append(
                _dot(place(theirs[name]), y, f"paper, {name}: {theirs[name]:.4g}", fill="none", stroke=svg.INK)
            )
    return svg.drawing(title, WIDTH, bottom + BOTTOM, parts)


def _dot(x: float, y: float, about: str, **paint: str) -> str:
    return svg.tag(
        "circle", svg.tag("title", escape(about)), cx=x, cy=y, r=5.5 if paint["fill"] == "none" else 4, **paint
    )
