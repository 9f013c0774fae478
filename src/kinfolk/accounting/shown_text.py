"""What may be shown of an evaluation, in the words of a statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LAWS = {"laplace": "Laplace", "normal": "Gaussian"}


def metric_text(metric: Mapping[str, Any]) -> str:
    """A metric, its unit and its interval, in words."""
    unit = f" {metric['unit']}" if metric["unit"] else ""
    value, low, high = (f"{metric[key]:.3g}" for key in ("value", "low", "high"))
    return f"{metric['name']} {value}{unit} (95 % interval {low} to {high})"


def in_words(shown: Mapping[str, Any]) -> list[str]:
    """What may be shown of test rows, and what it cost."""
    mark = " (simulated)" if shown["simulated"] else ""
    law = LAWS[shown.get("noise", "laplace")]
    lines = [
        "",
        f"MAY BE SHOWN: an evaluation on the test rows, epsilon {shown['epsilon']:.4g}{mark}, paid from the same "
        f"account in one release with {law} noise; counted: {shown['counted']} {shown['unit']}.",
        *(f"  {metric_text(metric)}" for metric in shown["metrics"]),
    ]
    for pair in shown.get("confusion", ()):
        words = f"{pair['outcome']} came out, {pair['predicted']} was predicted: {pair['share']:.3g} of all"
        lines.append(f"  {words} (95 % interval {pair['low']:.3g} to {pair['high']:.3g})")
    for group in shown["groups"]:
        found = "; ".join(metric_text(metric) for metric in (*group["metrics"], *group["differences"]))
        lines.append(f"  {group['group']}: {found or 'too few to tell'}")
    if silent := shown.get("without"):
        lines.append(f"  Not in it, as they did not answer: {', '.join(silent)}.")
    lines.append(
        "Intervals hold noise, sampling and binning, each for itself and for an evaluation fixed beforehand; choosing "
        "models by evaluations is not covered by them."
    )
    return [*lines, ""]


def sets_in_words(sets: Mapping[str, Any]) -> str:
    """That prediction sets were released, what they promise, and what they cost."""
    mark = " (simulated)" if sets["simulated"] else ""
    return (
        f"Prediction sets that hold with a chance of at least {sets['coverage']:.0%} may be shown too, epsilon "
        f"{sets['epsilon']:.4g}{mark}, paid from the same account: public/prediction_sets.json."
    )
