"""`kinfolk evaluate` and `kinfolk sets`: what may be known of test rows, paid for from the same budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk.cli.data import in_directory
from kinfolk.cli.kept_programs import keep_programs
from kinfolk.cli.output import DataDir, Json, console, emit

if TYPE_CHECKING:
    from kinfolk.data.federation import Federation


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory that is finished.")],
    *,
    epsilon: Annotated[float, typer.Option(help="What the evaluation costs each unit, beside training.")],
    by: Annotated[str | None, typer.Option(help="A column with declared values: metrics of its groups too.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Metrics on the test rows that may be published, with 95 % intervals: one more release, charged to the ledger.

    `kinfolk train ... --epsilon 1 --promise 2`, then `kinfolk evaluate runs/latest --epsilon 0.5`; or at once:
    `kinfolk train ... --evaluate 0.5`.
    """
    from kinfolk.training import published

    keep_programs()
    found = published.evaluate(run, epsilon, by=by, data=_given(run, data_dir))
    if as_json:
        emit("evaluate", {"run": str(run), "may_be_shown": found})
        return
    show(found)
    console.print(f"Written to {run}/public: evaluation.json, and the statement.", highlight=False, soft_wrap=True)


def sets(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory that is finished.")],
    *,
    coverage: Annotated[float, typer.Option(help="The chance with which a set is to hold what comes out.")] = 0.9,
    epsilon: Annotated[
        float | None, typer.Option(help="Example level: what it costs each unit. At client level it costs nothing.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """How far predictions have to reach to hold with a chosen chance, client by client; `kinfolk predict` uses it.

    `kinfolk sets runs/latest --coverage 0.9 --epsilon 0.5`: one more release at example level; free at client level.
    """
    from kinfolk.training.prediction_sets import prediction_sets

    keep_programs()
    found = prediction_sets(run, coverage, epsilon=epsilon, data=_given(run, data_dir))
    if as_json:
        emit("sets", {"run": str(run), "sets": found, "private": ["sets"] if found["epsilon"] is None else []})
        return
    mark = " (simulated)" if found["simulated"] else ""
    cost = "private, at no cost" if found["epsilon"] is None else f"epsilon {found['epsilon']:g}{mark}"
    about = "reach" + (f" ({found['unit']})" if found["unit"] else " (1 - least chance of a label)")
    table = Table("client", about, "from", "rows", title=escape(f"Sets that hold in {coverage:.0%} of cases: {cost}"))
    for one in found["clients"]:
        reach = "everything" if one["score"] is None else f"{found['factor'] * one['score']:.3g}"
        whose = "own rows" if one["of"] == "own" else "everybody's rows"
        table.add_row(escape(one["client"]), reach, whose, str(one["rows"]))
    console.print(table)


def _given(run: Path, data_dir: Path | None) -> Sequence[Federation] | None:
    """The run's data, where they are in another directory now."""
    from kinfolk.training import run_directory
    from kinfolk.training.inputs import federations_of

    if data_dir is None:
        return None
    experiment = run_directory.open_run(run).experiment()
    return federations_of(replace(experiment, data=in_directory(experiment.data, data_dir)), None)


def show(found: Mapping[str, Any]) -> None:
    """An evaluation as a table."""
    mark = " (simulated)" if found["simulated"] else ""
    title = f"May be shown: epsilon {found['epsilon']:g}{mark}, {found['counted']} {found['unit']}"
    table = Table("metric", "value", "95 % interval", title=escape(title))
    for metric in found["metrics"]:
        _row(table, metric, "")
    for group in found["groups"]:
        if not group["metrics"]:
            table.add_row(escape(group["group"]), "too few to tell", "")
        for metric in (*group["metrics"], *group["differences"]):
            _row(table, metric, f"{group['group']}: ")
    console.print(table)
    if pairs := found.get("confusion"):
        console.print(_confusion(pairs))


def _confusion(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """What came out, down, against what was predicted, across."""
    labels = list(dict.fromkeys(pair["outcome"] for pair in pairs))
    table = Table("came out", *(escape(f"predicted {label}") for label in labels), title="Shares of everybody")
    for label in labels:
        own = [pair for pair in pairs if pair["outcome"] == label]
        table.add_row(escape(label), *(f"{p['share']:.3g} ({p['low']:.3g} to {p['high']:.3g})" for p in own))
    return table


def _row(table: Table, metric: Mapping[str, Any], lead: str) -> None:
    unit = f" {metric['unit']}" if metric["unit"] else ""
    table.add_row(
        escape(f"{lead}{metric['name']}"),
        escape(f"{metric['value']:.3g}{unit}"),
        f"{metric['low']:.3g} to {metric['high']:.3g}",
    )
