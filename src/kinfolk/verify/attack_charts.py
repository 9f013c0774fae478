"""Pictures of attacks, as self-contained SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from kinfolk.verify.attack import Finding

WIDTH, HEIGHT, MARGIN = 640, 300, 46
ABSENT, PRESENT, CLAIM = "#4477aa", "#cc6677", "#bbbbbb"


def two_worlds(finding: Finding) -> str:
    """Histograms of the scores without and with the canary, and where the rejection set begins."""
    joined = np.concatenate(finding.scores)
    low, high = (float(v) for v in np.quantile(joined, [0.0005, 0.9995])) if joined.size else (0.0, 1.0)
    low, high = min(low, finding.threshold), max(high, finding.threshold)
    if high <= low:
        low, high = low - 1, high + 1
    edges = np.linspace(low, high, 61)
    shares = [np.histogram(np.clip(s, low, high), edges)[0] / max(1, s.size) for s in finding.scores]
    tallest = max(1e-12, *(float(share.max()) for share in shares))

    def across(value: float) -> float:
        return MARGIN + (value - low) / (high - low) * (WIDTH - 2 * MARGIN)

    def down(share: float) -> float:
        return HEIGHT - MARGIN - share / tallest * (HEIGHT - 2 * MARGIN)

    parts = []
    for share, colour in zip(shares, (ABSENT, PRESENT), strict=True):
        corners = [(across(low), down(0))]
        for left, right, value in zip(edges[:-1], edges[1:], share, strict=True):
            corners += [(across(left), down(value)), (across(right), down(value))]
        corners.append((across(high), down(0)))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        parts.append(f'<polygon points="{points}" fill="{colour}" fill-opacity="0.5" stroke="{colour}"/>')
    x = across(finding.threshold)
    parts.append(f'<line x1="{x:.1f}" y1="{MARGIN}" x2="{x:.1f}" y2="{HEIGHT - MARGIN}" stroke="#222"/>')
    parts.append(_text(x + 4, MARGIN + 10, "counted from here on"))
    parts.append(_text(MARGIN, HEIGHT - 24, "without the canary", ABSENT))
    parts.append(_text(MARGIN + 150, HEIGHT - 24, "with it", PRESENT))
    parts.append(_text(MARGIN, HEIGHT - 8, "across: score of a run; up: share of runs"))
    return _page(_title(finding.record()), HEIGHT, parts)


def claims_and_bounds(rows: Sequence[dict[str, Any]]) -> str:
    """One bar per attack: what is claimed, and what was proved to leak."""
    largest = max(1e-12, *(float(row[key]) for row in rows for key in ("claim", "lower_bound")))
    step, left = 24, 330
    parts = []
    for number, row in enumerate(rows):
        y = MARGIN + step * number
        name = f"{row['name']}, {row['level']}, {row['view']}" + (", sampled" if row.get("sampled") else "")
        parts.append(_text(8, y + 12, name))
        for value, height, colour in ((row["claim"], 16, CLAIM), (row["lower_bound"], 8, PRESENT)):
            width = float(value) / largest * (WIDTH - left - MARGIN)
            parts.append(
                f'<rect x="{left}" y="{y + 8 - height / 2:.0f}" width="{width:.1f}" height="{height}" fill="{colour}"/>'
            )
        parts.append(_text(WIDTH - MARGIN + 4, y + 12, f"{row['lower_bound']:.2f}"))
    title = "Epsilon: claimed (grey) and proved to be spent (red)"
    return _page(title, 2 * MARGIN + step * len(rows), parts)


def _title(row: dict[str, Any]) -> str:
    return (
        f"{row['name']} ({row['level']}, {row['view']}): claim {row['claim']:.2f}, lower bound {row['lower_bound']:.2f}"
    )


def _text(x: float, y: float, text: str, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{escape(text)}</text>'


def _page(title: str, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="22" font-size="14">{escape(title)}</text>'
    )
    return "\n".join([head, *parts, "</svg>", ""])
