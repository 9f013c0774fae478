"""`kinfolk runs` (list, show, resume, export): what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk.cli.kept_programs import keep_programs
from kinfolk.cli.output import (
    Json,
    bar,
    console,
    emit,
    in_words,
    private_numbers,
    result_row,
    show_results,
    spent,
    tell,
    warn,
)
from kinfolk.toml import ConfigError

if TYPE_CHECKING:
    from kinfolk.training.run_directory import Run

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]

runs_app = typer.Typer(no_args_is_help=True, help="List, show, resume and export run directories.")


@runs_app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where run directories are.")] = Path("runs"), as_json: Json = False
) -> None:
    """All runs in a folder, the newest last."""
    from kinfolk.training import run_directory

    if not folder.is_dir():
        raise run_directory.RunError(f"{folder} is not a folder: give the one where runs are kept (train's --output)")
    found = [path.parent.parent for path in sorted(folder.glob("*/public/experiment.toml"))]
    found = [path for path in found if not path.is_symlink()]  # `latest` is one of the others
    rows, damaged = [], []
    for path in sorted(found, key=lambda path: path.stat().st_mtime):
        try:
            rows.append(_summary(run_directory.open_run(path)))
        except (ConfigError, run_directory.RunError) as error:
            damaged.append(str(error))
    if as_json:
        emit("runs list", {"runs": rows, "damaged": damaged})
        return
    tell(damaged, False)
    table = Table("method", "data", "level", "rounds", "epsilon", "mean client's test rows", title=f"Runs in {folder}")
    for row in rows:
        mark = " (private)" if row["private"] else ""
        error = f"{in_words(row['measured'])}{mark}"
        epsilon = spent(row) if row["finished"] else "not finished"
        done = f"{row['rounds']}/{row['planned']}"
        table.add_row(row["method"], escape(row["data"]), row["level"], done, epsilon, escape(error))
    console.print(table)
    for row in rows:
        console.print(row["run"], highlight=False, markup=False, soft_wrap=True)


def _summary(run: Run) -> dict[str, Any]:
    from kinfolk.training import scorecard

    experiment, metrics = run.experiment(), run.metrics()
    known: dict[str, object] = {"epsilon": None, "delta": None, "simulated": experiment.seed is not None, "error": None}
    known["measured"] = scorecard.read(run)
    if metrics:
        known["error"] = metrics[-1].get("error")
    if run.done():
        known |= {key: run.statement()[key] for key in ("epsilon", "delta", "simulated")}
    row = {
        "name": run.name,
        "run": str(run.path),
        "method": experiment.phases[-1].method,
        "data": experiment.data.name,
        "level": experiment.privacy.level,
        "rounds": metrics[-1]["round"] if metrics else 0,
        "planned": experiment.rounds,
        "finished": run.done(),
        **known,
    }
    return {**row, "private": private_numbers(row)}


@runs_app.command("show")
def show(path: RunPath, as_json: Json = False) -> None:
    """A run's settings, results and privacy statement."""
    from kinfolk.training import run_directory, run_files

    run = run_directory.open_run(path)
    row = _summary(run)
    if as_json:
        whole = {**row, "statement": run.statement() if run.done() else None, "metrics": run.metrics()}
        emit("runs show", {**whole, "private": private_numbers(whole)})
        return
    table = Table("", "", show_header=False, title=escape(row["name"]))
    for key in ("method", "data", "level", "planned", "rounds"):
        table.add_row(key, escape(str(row[key])))
    mark = " (private)" if "measured" in row["private"] else ""
    console.print(table)
    said = f"The mean client on its test rows{mark}: {in_words(row['measured'])}"
    console.print(said, highlight=False, markup=False, soft_wrap=True)
    warn([row])
    if run.done():
        console.print(run_files.read_text(run.public / "statement.txt"), highlight=False, markup=False, soft_wrap=True)
    else:
        console.print(f"Not finished: kinfolk runs resume {path}", highlight=False, soft_wrap=True)


@runs_app.command("resume")
def resume(path: RunPath, as_json: Json = False) -> None:
    """Go on with a run that was stopped. A simulation continues bit for bit, a release draws fresh noise."""
    from kinfolk.training import loop, run_directory

    keep_programs()
    experiment = run_directory.open_run(path).experiment()
    with bar(as_json, experiment.name, experiment.seed is not None) as progress:
        run = loop.resume(path, progress=progress)
    show_results("runs resume", [result_row(run)], as_json)


@runs_app.command("export")
def export(
    path: RunPath,
    output: Annotated[Path, typer.Option(help="A folder for the files.")],
    with_private: Annotated[bool, typer.Option(help="Also metrics and per-client results, which are private.")] = False,
    as_json: Json = False,
) -> None:
    """Write a run's ledger (and, if asked, its metrics) as Parquet files, for other tools."""
    from kinfolk.data.tables.read import polars
    from kinfolk.training import run_directory

    run = run_directory.open_run(path)
    with run_directory.writing(output):
        output.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in run_tables(run, with_private).items():
        if rows:
            with run_directory.writing(output):
                polars().DataFrame(rows).write_parquet(output / f"{name}.parquet")
            written.append(f"{name}.parquet")
    if as_json:
        emit("runs export", {"output": str(output), "files": written, "private": with_private})
        return
    console.print(f"{output}: {', '.join(written) or 'nothing to write yet'}", highlight=False, soft_wrap=True)
    if not with_private:
        console.print("Metrics are private and were left out: --with-private writes them.", highlight=False)


def run_tables(run: Run, with_private: bool) -> dict[str, Sequence[Mapping[str, object]]]:
    """What a run left behind, as plain rows: public ones, and private ones only if asked for."""
    from dataclasses import asdict

    from kinfolk.accounting.ledger import read_lines

    found: dict[str, Sequence[Mapping[str, object]]] = {}
    if (run.public / "ledger.jsonl").exists():
        flat = []
        for line in read_lines(run.public / "ledger.jsonl"):
            values = asdict(line)
            first, last = values.pop("rounds")
            flat.append({**values.pop("cost"), **values, "first_round": first, "end_round": last})
        found["ledger"] = flat
    if run.done():
        found["parties"] = [
            {key: value for key, value in party.items() if key != "releases"} for party in run.statement()["parties"]
        ]
    if with_private:
        found["metrics"] = run.metrics()
        if (run.private / "clients.json").exists():
            found["clients"] = [
                {"client": row["client"], "seed": n, "loss": loss, "error": error}
                for row in run.clients()
                for n, (loss, error) in enumerate(zip(row["loss"], row["error"], strict=True))
            ]
    return found
