"""`kinfolk evaluate`: metrics of a finished run that may be published, paid for from the same budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk.cli.data import in_directory
from kinfolk.cli.kept_programs import keep_programs
from kinfolk.cli.output import DataDir, Json, console, emit


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
    from kinfolk.training import published, run_directory
    from kinfolk.training.inputs import federations_of

    keep_programs()
    given = None
    if data_dir is not None:
        experiment = run_directory.open_run(run).experiment()
        given = federations_of(replace(experiment, data=in_directory(experiment.data, data_dir)), None)
    found = published.evaluate(run, epsilon, by=by, data=given)
    if as_json:
        emit("evaluate", {"run": str(run), "may_be_shown": found})
        return
    show(found)
    console.print(f"Written to {run}/public: evaluation.json, and the statement.", highlight=False, soft_wrap=True)


def show(found: Mapping[str, Any]) -> None:
    """An evaluation as a table."""
    mark = " (simulated)" if found["simulated"] else ""
    title = f"May be shown: epsilon {found['epsilon']:g}{mark}, {found['counted']} {found['unit']}"
    table = Table("metric", "value", "95 % interval", title=escape(title))
    for metric in found["metrics"]:
        _row(table, metric, "")
    for group in found["groups"]:
        for metric in (*group["metrics"], *group["differences"]):
            _row(table, metric, f"{group['group']}: ")
    console.print(table)


def _row(table: Table, metric: Mapping[str, Any], lead: str) -> None:
    unit = f" {metric['unit']}" if metric["unit"] else ""
    table.add_row(
        escape(f"{lead}{metric['name']}"),
        escape(f"{metric['value']:.3g}{unit}"),
        f"{metric['low']:.3g} to {metric['high']:.3g}",
    )
