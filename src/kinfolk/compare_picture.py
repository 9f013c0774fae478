"""The privacy-utility picture of a comparison, as a self-contained SVG file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kinfolk.privacy.picture import HEIGHT, MARGIN, WIDTH, _page, _text

COLOURS = ("#4477aa", "#cc6677", "#228833", "#aa3377", "#66ccee", "#997700", "#555555", "#ee8866")
LEGEND = 150


def privacy_utility(rows: Sequence[dict[str, Any]]) -> str:
    """One line per method: the budget across (logarithmic), the mean client's error up, whiskers over seeds.

    Rows have `method`, `budget` (the epsilon that was asked for), `error` and `error_spread`.
    """
    drawn = [row for row in rows if row["budget"] is not None and row["error"] is not None]
    budgets = sorted({row["budget"] for row in drawn}) or [1.0]
    low, high = math.log(budgets[0]), math.log(budgets[-1])
    if low == high:
        low, high = low - 1, high + 1
    top = max((row["error"] + row["error_spread"] for row in drawn), default=1.0) or 1.0
    right = WIDTH - LEGEND

    def across(budget: float) -> float:
        return MARGIN + 14 + (math.log(budget) - low) / (high - low) * (right - MARGIN - 28)

    def down(error: float) -> float:
        return HEIGHT - MARGIN - max(error, 0) / top * (HEIGHT - 2 * MARGIN)

    axis = f'<line x1="{MARGIN}" y1="{HEIGHT - MARGIN}" x2="{right}" y2="{HEIGHT - MARGIN}" stroke="#222"/>'
    parts = [axis, _text(MARGIN, HEIGHT - 8, "across: epsilon (simulated); up: test error of the mean client")]
    for budget in budgets:
        parts.append(_text(across(budget) - 8, HEIGHT - MARGIN + 16, f"{budget:g}"))
    for share in (0.0, 0.5, 1.0):
        parts.append(_text(4, down(share * top) + 4, f"{share * top:.2g}"))
    for number, method in enumerate(dict.fromkeys(row["method"] for row in drawn)):
        colour = COLOURS[number % len(COLOURS)]
        own = sorted((row for row in drawn if row["method"] == method), key=lambda row: row["budget"])
        points = " ".join(f"{across(row['budget']):.1f},{down(row['error']):.1f}" for row in own)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for row in own:
            x, spread = across(row["budget"]), row["error_spread"]
            ends = f'y1="{down(row["error"] - spread):.1f}" y2="{down(row["error"] + spread):.1f}"'
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{colour}"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{down(row["error"]):.1f}" r="3" fill="{colour}"/>')
        parts.append(_text(right + 8, MARGIN + 16 * number, method, colour))
    return _page("Error against privacy budget", HEIGHT, parts)
