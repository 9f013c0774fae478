"""Pieces of SVG, scales and round numbers for axes: what every picture here is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

NAMESPACE = "http://www.w3.org/2000/svg"
INK = "#222"
Scale = Callable[[float], float]
"""Where on the page a value lies."""


def tag(name: str, content: str = "", /, **attributes: str | float) -> str:
    """One element around `content`, which is SVG already; numbers that are not integers get one decimal.

    >>> tag("line", x1=3, x2=2.25, stroke_width="1.8", class_="grid")
    '<line x1="3" x2="2.2" stroke-width="1.8" class="grid"/>'
    """
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{name}{words}>{content}</{name}>" if content else f"<{name}{words}/>"


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value)
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def text(x: float, y: float, words: str, anchor: str = "start", **attributes: str | float) -> str:
    """Words at a place; `anchor` says which end of them is there: start, middle or end."""
    return tag("text", escape(words), x=x, y=y, text_anchor=anchor, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: str | float) -> str:
    """A straight line from (x1, y1) to (x2, y2)."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def corners(points: Iterable[tuple[float, float]]) -> str:
    """Points as `polyline` and `polygon` want them."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def drawing(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """A file of its own: black on white, with a title that screen readers find too."""
    head = [
        tag("title", escape(title)),
        tag("rect", width="100%", height="100%", fill="white"),
        text(10, 22, title, font_size=14),
    ]
    size, content = f"0 0 {width:.0f} {height:.0f}", "\n".join(["", *head, *parts, ""])
    style = {"font_family": "sans-serif", "font_size": "11", "role": "img", "aria_label": title}
    return tag("svg", content, xmlns=NAMESPACE, viewBox=size, **style) + "\n"


def scale(low: float, high: float, begin: float, end: float, log: bool = False) -> Scale:
    """From values between `low` and `high` to places between `begin` and `end`; values beyond are put at the ends.

    >>> scale(1, 100, 0, 10, log=True)(10)
    5.0
    """
    bottom, top = (math.log(low), math.log(high)) if log else (low, high)

    def place(value: float) -> float:
        value = min(max(value, low), high)
        return begin + ((math.log(value) if log else value) - bottom) / (top - bottom) * (end - begin)

    return place


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
