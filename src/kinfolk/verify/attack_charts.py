"""Pictures of attacks, as self-contained SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kinfolk import svg
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

    across = svg.scale(low, high, MARGIN, WIDTH - MARGIN)
    down = svg.scale(0, tallest, HEIGHT - MARGIN, MARGIN)
    parts = []
    for share, colour in zip(shares, (ABSENT, PRESENT), strict=True):
        corners = [(across(low), down(0))]
        for left, right, value in zip(edges[:-1], edges[1:], share, strict=True):
            corners += [(across(left), down(value)), (across(right), down(value))]
        corners.append((across(high), down(0)))
        parts.append(svg.tag("polygon", points=svg.corners(corners), fill=colour, fill_opacity=0.5, stroke=colour))
    x = across(finding.threshold)
    parts.append(svg.line(x, MARGIN, x, HEIGHT - MARGIN, stroke=svg.INK))
    parts.append(svg.text(x + 4, MARGIN + 10, "counted from here on"))
    parts.append(svg.text(MARGIN, HEIGHT - 24, "without the canary", fill=ABSENT))
    parts.append(svg.text(MARGIN + 150, HEIGHT - 24, "with it", fill=PRESENT))
    parts.append(svg.text(MARGIN, HEIGHT - 8, "across: score of a run; up: share of runs"))
    return svg.drawing(_title(finding.record()), WIDTH, HEIGHT, parts)


def claims_and_bounds(rows: Sequence[Mapping[str, Any]]) -> str:
    """One bar per attack: what is claimed, and what was proved to leak."""
    largest = max(1e-12, *(float(row[key]) for row in rows for key in ("claim", "lower_bound")))
    step, left = 24, 330
    parts = []
    for number, row in enumerate(rows):
        y = MARGIN + step * number
        name = f"{row['name']}, {row['level']}, {row['view']}" + (", sampled" if row.get("sampled") else "")
        parts.append(svg.text(8, y + 12, name))
        for value, height, colour in ((row["claim"], 16, CLAIM), (row["lower_bound"], 8, PRESENT)):
            width = float(value) / largest * (WIDTH - left - MARGIN)
            parts.append(svg.tag("rect", x=left, y=y + 8 - height / 2, width=width, height=height, fill=colour))
        parts.append(svg.text(WIDTH - MARGIN + 4, y + 12, f"{row['lower_bound']:.2f}"))
    title = "Epsilon: claimed (grey) and proved to be spent (red)"
    return svg.drawing(title, WIDTH, 2 * MARGIN + step * len(rows), parts)


def _title(row: Mapping[str, Any]) -> str:
    return (
        f"{row['name']} ({row['level']}, {row['view']}): claim {row['claim']:.2f}, lower bound {row['lower_bound']:.2f}"
    )
