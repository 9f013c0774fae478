"""The page about learned strengths, written from what `run.py` measured: docs/results/strength.md and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.report import line_chart

TEXT = Path(__file__).with_name("page.md")
"""The words of the page, with the places where tables go in double braces."""


def summary(results: dict[str, Any]) -> str:
    """The headline numbers as plain text."""
    parts = []
    for row in results.get("school", []):
        parts.append(
            f"School {row['scaling']}, epsilon {row['epsilon']:g}: auto {row['auto']:.5f}, "
            f"ratio {row['ratio_averaged']:.3f} (averaged), {row['ratio_last']:.3f} (last), "
            f"{row['ratio_tuned_with_luck']:.3f} (tuned, with luck)"
        )
    for name in ("sweep", "mixed"):
        if rows := results.get(name):
            parts.append(f"{name}: {_spread([row['ratio_averaged'] for row in rows])}")
    if rows := results.get("sweep"):
        parts.append(_against_tuning(rows))
    return "\n".join(parts)


def _spread(ratios: Any) -> str:
    values = np.asarray(ratios)
    return (
        f"{len(values)} settings, median {np.median(values):.3f}, geometric mean {np.exp(np.log(values).mean()):.3f}, "
        f"worst {values.max():.3f}, best {values.min():.3f}, {(values > 1.05).sum()} above 1.05"
    )


def _against_tuning(rows: list[dict[str, Any]]) -> str:
    usual, lucky = (np.array([row[name] for row in rows]) for name in ("ratio_tuned", "ratio_tuned_with_luck"))
    return (
        f"Against tuning by repetition: better in {(usual < 1).sum()} of {len(usual)}, {_spread(usual)}. Against one "
        f"that always finds the best of the grid: better in {(lucky < 1).sum()} of {len(lucky)}, {_spread(lucky)}"
    )


def write(results: dict[str, Any], path: Path) -> None:
    """The page, and the picture of mean estimation in the folder for pictures."""
    picture = path.parents[1] / "pictures" / "strength_means.svg"
    picture.write_text(means_picture(results["means"]))
    tables = {
        "school": _school(results["school"]),
        "sweep": _sweep(results["sweep"]),
        "sweep_summary": _sweep_summary(results["sweep"]),
        "mixed": _mixed(results["mixed"]),
        "means": _means(results["means"]),
        "picture": f"../pictures/{picture.name}",
        "cpu": ", ".join(f"{name} {value:.0f}" for name, value in results["cpu_seconds"].items()),
    }
    text = TEXT.read_text()
    for name, table in tables.items():
        text = text.replace("{{" + name + "}}", table)
    path.write_text(text)


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _bold(ratio: float) -> str:
    """Losses in bold: nobody should have to look for them."""
    return f"**{ratio:.3f}**" if ratio > 1 else f"{ratio:.3f}"


def _school(rows: list[dict[str, Any]]) -> str:
    head = ["scaling", "epsilon", "auto", "best single, averaged (its strength)", "ratio"]
    head += ["best single, last model (its strength)", "ratio", "ratio to tuning", "with luck"]
    body = [
        [
            row["scaling"],
            f"{row['epsilon']:g}",
            f"{row['auto']:.5f}",
            f"{min(row['averaged']):.5f} ({row['best_averaged']:g})",
            _bold(row["ratio_averaged"]),
            f"{min(row['last']):.5f} ({row['best_last']:g})",
            _bold(row["ratio_last"]),
            _bold(row["ratio_tuned"]),
            _bold(row["ratio_tuned_with_luck"]),
        ]
        for row in rows
    ]
    return _table(head, body)


def _sweep(rows: list[dict[str, Any]]) -> str:
    head = ["model", "sizes", "batch", "tau", "epsilon", "auto", "alone", "averaging", "best single (its strength)"]
    head += ["ratio to best", "ratio to tuning", "with luck"]
    body = [
        [
            row["model"],
            row["sizes"],
            str(row["batch"] or "full"),
            f"{row['tau']:g}",
            f"{row['epsilon']:g}",
            f"{row['auto']:.4f}",
            f"{row['averaged'][0]:.4f}",
            f"{row['averaged'][-1]:.4f}",
            f"{min(row['averaged']):.4f} ({row['best_averaged']:g})",
            _bold(row["ratio_averaged"]),
            _bold(row["ratio_tuned"]),
            _bold(row["ratio_tuned_with_luck"]),
        ]
        for row in rows
    ]
    return _table(head, body)


def _sweep_summary(rows: list[dict[str, Any]]) -> str:
    endpoint = np.array([row["ratio_endpoint"] for row in rows])
    alone = sum(row["best_averaged"] == row_min(rows) for row in rows)
    return (
        f"Against the best single strength in hindsight: {_spread([row['ratio_averaged'] for row in rows])}. "
        f"{_against_tuning(rows)}. Against the better of training alone and averaging: {_spread(endpoint)}. Training "
        f"alone was the best single strength in {alone}."
    )


def row_min(rows: list[dict[str, Any]]) -> float:
    """The smallest strength that was ever best: training alone."""
    return min(row["best_averaged"] for row in rows)


def _mixed(rows: list[dict[str, Any]]) -> str:
    head = ["sizes", "tau", "e", "auto", "best single, averaged (its strength)", "ratio"]
    body = [
        [
            row["sizes"],
            f"{row['tau']:g}",
            f"{row['epsilon']:g}",
            f"{row['auto']:.4f}",
            f"{min(row['averaged']):.4f} ({row['best_averaged']:g})",
            _bold(row["ratio_averaged"]),
        ]
        for row in rows
    ]
    return _table(head, body)


def _means(rows: list[dict[str, Any]]) -> str:
    head = ["tau", "alone", "averaging", "best strength", "tuned for it", "free", "tuned / best", "free / best"]
    names = ("local", "averaging", "best", "tuned", "free")
    body = [
        [
            f"{row['tau']:g}",
            *(f"{row[name]:.5f}" for name in names),
            f"{row['tuned_ratio']:.2f}",
            f"{row['free_ratio']:.2f}",
        ]
        for row in rows
    ]
    return _table(head, body)


def means_picture(rows: list[dict[str, Any]]) -> str:
    names = {
        "training alone": "local",
        "federated averaging": "averaging",
        "best strength (oracle)": "best",
        "tuned by repetition": "tuned",
        "free (this package)": "free",
    }
    series = {label: [(row["tau"], row[name]) for row in rows] for label, name in names.items()}
    title = "Mean estimation: K 20, n 200, sigma 0.4, epsilon 0.25, delta 1e-5"
    return line_chart.lines(
        title, series, "tau: how much clients differ", "mean squared error", log_across=True, log_up=True
    )
