"""The privacy-utility picture of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.report import line_chart


def privacy_utility(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per method: the budget across (logarithmic), the mean client's error up, whiskers over seeds.

    Rows have `method`, `budget` (the epsilon that was asked for), `measured` (a scorecard) and `error_spread`. Each
    client's constant is a line of its own.
    """
    series: dict[str, list[tuple[float, ...]]] = {}
    placed = sorted((row for row in rows if row["budget"] and row["measured"]), key=lambda row: row["budget"])
    for row in placed:
        series.setdefault(row["method"], []).append(
            (row["budget"], row["measured"]["scores"][0]["value"], row["error_spread"])
        )
    up = "not measured"
    for card in [row["measured"] for row in placed][:1]:
        score = card["scores"][0]
        up = f"{score['metric']} of the mean client" + (f" ({score['unit']})" if score["unit"] else "")
        if score["constant"] is not None:
            budgets = dict.fromkeys(row["budget"] for row in placed)
            series[f"constant ({card['constant_is']})"] = [(at, score["constant"], 0.0) for at in budgets]
    return line_chart.lines("Error against privacy budget", series, "epsilon (simulated)", up, log_across=True)
