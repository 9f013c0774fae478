"""The privacy-utility picture of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.report import line_chart


def privacy_utility(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per method: the budget across (logarithmic), the mean client's error up, whiskers over seeds.

    Rows have `method`, `budget` (the epsilon that was asked for), `error` and `error_spread`.
    """
    series: dict[str, list[tuple[float, ...]]] = {}
    for row in sorted((row for row in rows if row["budget"] and row["error"] is not None), key=lambda r: r["budget"]):
        series.setdefault(row["method"], []).append((row["budget"], row["error"], row["error_spread"]))
    up = "test error of the mean client"
    return line_chart.lines("Error against privacy budget", series, "epsilon (simulated)", up, log_across=True)
