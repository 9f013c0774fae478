"""What commands print: one JSON object or tables, a progress bar, and one shape for errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from kinfolk.toml import ConfigError

if TYPE_CHECKING:
    from kinfolk.training.run_directory import Run
    from kinfolk.training.scorecard import Score, Scorecard

VERSION = 1
"""Version of the shapes that --json prints."""

console = Console(stderr=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Seed = Annotated[
    int | None,
    typer.Option(help="Makes a simulation, which can be repeated. Without a seed the run is a release (OS entropy)."),
]
Output = Annotated[Path, typer.Option(help="Where run directories go.")]
Level = Annotated[str, typer.Option(help="example, client or none: what one unit of privacy is.")]
Epsilon = Annotated[float | None, typer.Option(help="Privacy budget.")]
Delta = Annotated[float | None, typer.Option(help="Default: min(1e-5, n^-1.1), n the number of protected units.")]
DataName = Annotated[
    str,
    typer.Option("--data", help="A set of `kinfolk data list`, or package.module:function that loads one."),
]
DataDir = Annotated[Path | None, typer.Option(help="Where built-in sets' files are; default: as KINFOLK_DATA says.")]
ClientColumn = Annotated[
    str | None, typer.Option("--client", help="Column that says whose row it is; without it every file is one client.")
]
Target = Annotated[str | None, typer.Option(help="Column to predict; default: as the schema says.")]
SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", help="What the columns are (`kinfolk schema` drafts one); a release needs it."),
]
SetName = Annotated[
    str | None,
    typer.Option("--name", help="What its owner calls the data, in every file and year: releases add up by it."),
]
RelationFile = Annotated[
    Path | None,
    typer.Option(
        "--relation",
        help="Who is related to whom, if that is public: JSON (client to group, a matrix, or a graph or omega under "
        "that name), CSV (client,group), a graph as CSV (client,neighbour,weight), or column:NAME, a column of the "
        "tables that names groups.",
    ),
]
PullOption = Annotated[
    str | None,
    typer.Option("--pull", help="When a model is pulled towards the shared one: in every local step, or once a round."),
]
TestFraction = Annotated[float, typer.Option(help="Part of every client's rows that is kept for testing.")]


def emit(command: str, value: Mapping[str, object]) -> None:
    print(json.dumps({"version": VERSION, "command": command, **value}))


def tell(notes: Iterable[str], silent: bool, most: int = 20) -> None:
    """Messages for the person at the screen, on standard error."""
    if silent:
        return
    found = list(notes)
    shown = Console(stderr=True)
    for note in found[:most]:
        shown.print(f"[yellow]Note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)
    if len(found) > most:
        shown.print(f"[yellow]Note:[/yellow] and {len(found) - most} more such messages (all of them with --json)")


PRIVATE = ("error", "worst_decile_error", "measured", "self_selection", "metrics", "error_spread")
"""Numbers from test rows, which belong to the protected units."""
PRIVATE_NOTE = "Test errors are private: they depend on test rows, and no ledger covers them. Publish public/ only."


def private_numbers(row: Mapping[str, Any]) -> list[str]:
    """Which of a run's numbers are private: what comes from test rows, where a release protects them."""
    released = not row["simulated"] and row["level"] != "none"
    return [name for name in PRIVATE if released and row.get(name) is not None]


PLAIN = ("loss", "error", "worst_decile_error", "epsilon")
"""Numbers of a run in progress that stand for themselves; others stand under the name and unit of a metric."""


class _Left(ProgressColumn):
    """How long it has taken while nothing can be said about the rest, and then how long that will take."""

    def render(self, task: Task) -> Text:
        ends = task.fields["ends"]
        if ends is not None:
            return Text(f"left: {timedelta(seconds=int(max(0.0, ends - time.monotonic())))}")
        return Text(str(timedelta(seconds=int(task.elapsed or 0))) if task.total is None else "")


class _Pace:
    """When work will be done, by how long it took since it was first looked at; before that programs were compiled."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def ends(self, done: int, total: int) -> float | None:
        """The moment, on the monotonic clock; None while too little was seen to tell."""
        now = time.monotonic()
        began, before = self._first = self._first or (now, done)
        known = done > before and now - began > SEEN
        return now + (total - done) * (now - began) / (done - before) if known else None


SEEN = 0.5
"""Seconds that have to be seen before the rest can be told: to start a round takes a moment by itself."""
LONG = 60
"""Seconds that are announced where no bar is shown."""


def about(seconds: float) -> str:
    """A time as people say it."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * length:
            return f"about {seconds / length:.0f} {unit}"
    return f"about {seconds:.0f} seconds"


class bar:
    """A progress bar for one run, on standard error; silent with --json."""

    def __init__(self, silent: bool, name: str, simulated: bool = True) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds{task.fields[note]}"),
            _Left(),
        )
        self._simulated = " (simulated)" if simulated else ""
        self._private = "" if simulated else " (private)"
        self._name, self._last = name, ""
        self._console = Console(stderr=True)
        self._plain = not silent and not self._console.is_terminal
        self._progress = Progress(*columns, console=self._console, disable=silent or self._plain)
        self._pace, self._announced = _Pace(), False
        self._task = self._progress.add_task(name, total=None, note=": counting, calibrating, compiling", ends=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        if self._plain and self._last:  # into a file or a pipe: one whole line when it is done
            self._console.print(self._last, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, done: int, total: int, numbers: dict[str, float]) -> None:
        ends = self._pace.ends(done, total)
        if ends is not None and not self._announced:
            left, self._announced = ends - time.monotonic(), True
            if self._plain and left > LONG:
                said = f"{self._name}: {about(left)} for the other {total - done} of {total} rounds"
                self._console.print(said, highlight=False, markup=False, soft_wrap=True)
        spent = numbers.get("epsilon")
        paid = f", epsilon {spent:.3g}{self._simulated}" if spent is not None else ""
        told = [f"{name} {value:.3g}" for name, value in numbers.items() if name not in PLAIN]
        note = f", {', '.join(told) or 'not measured'}{self._private if told else ''}{paid}"
        note = note if numbers or done == total else ""
        self._last = f"{self._name}: {done} of {total} rounds{note}"
        self._progress.update(self._task, completed=done, total=total, note=note, ends=ends)


class count_bar:
    """A progress bar over pieces of work, on standard error: how many are done, and how many of them failed."""

    def __init__(self, silent: bool, name: str, total: int) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        console = Console(stderr=True)
        hidden = silent or not console.is_terminal
        self._progress = Progress(*columns, TimeElapsedColumn(), _Left(), console=console, disable=hidden)
        self._task = self._progress.add_task(name, total=total, ends=None)
        self._total, self._done, self._failed, self._name, self._pace = total, 0, 0, name, _Pace()
        self._pace.ends(0, total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, outcome: object) -> None:
        """Counts one more: a result, or an error."""
        self._failed += isinstance(outcome, Exception)
        self._done += 1
        said = f"{self._name}, {self._failed} failed" if self._failed else self._name
        ends = self._pace.ends(self._done, self._total)
        self._progress.update(self._task, advance=1, description=said, ends=ends)


def result_row(run: Run) -> dict[str, Any]:
    """A finished run in a few numbers."""
    from kinfolk.training import run_files, scorecard

    statement, last = run.statement(), (run.metrics() or [{}])[-1]
    chosen = run.private / "self_selection.json"
    gains = {"self_selection": run_files.read_json(chosen, dict[str, float])} if chosen.exists() else {}
    row = {
        "method": run.experiment().phases[-1].method,
        "run": str(run.path),
        "error": last.get("error"),
        "worst_decile_error": last.get("worst_decile_error"),
        "measured": scorecard.read(run),
        "epsilon": statement["epsilon"],
        "delta": statement["delta"],
        "simulated": statement["simulated"],
        "level": statement["level"],
        **gains,
    }
    return {**row, "private": private_numbers(row)}


def show_results(command: str, rows: list[dict[str, Any]], as_json: bool, **more: object) -> None:
    """Finished runs side by side."""
    if as_json:
        emit(command, {"results": rows, **more})
        return
    mark = " (private)" if any(row["private"] for row in rows) else ""
    cards = [row["measured"] for row in rows if row["measured"]]
    metric = headings(cards)
    constant = f"constant ({cards[0]['constant_is']})" if cards and cards[0]["constant_is"] else "constant"
    columns = ("method", f"{metric[0]}{mark}", "worst tenth", constant, "shared model", *metric[1:], "epsilon")
    deltas = {f"{row['delta']:.2g}" for row in rows if row["epsilon"] is not None}
    table = Table(title=f"Test results, mean client{', delta ' + deltas.pop() if len(deltas) == 1 else ''}")
    for column in columns:
        table.add_column(column, no_wrap=column in ("method", "epsilon"))
    for row in rows:
        table.add_row(row["method"], *judged(row["measured"], len(metric)), spent(row))
    console.print(table)
    if mark:
        console.print(PRIVATE_NOTE, highlight=False, soft_wrap=True)
    warn(rows)
    for row in rows:
        console.print(f"{row['method']}: {row['run']}", highlight=False, markup=False, soft_wrap=True)
        if gains := row.get("self_selection"):
            console.print(
                f"  against training alone {gains['gained']:g} of {gains['clients']} clients gained, {gains['lost']:g} "
                f"lost, {gains['lost_more_than_5_percent']:g} of them more than 5 % (private: no ledger covers it)",
                highlight=False,
                soft_wrap=True,
            )


def headings(cards: Sequence[Scorecard]) -> list[str]:
    """The metrics of runs by name and unit, that which they are judged by first; one word where they differ."""
    words = {tuple(_words(score) for score in card["scores"]) for card in cards}
    return list(words.pop()) if len(words) == 1 else ["test error"]


def _words(score: Score) -> str:
    return f"{score['metric']} ({score['unit']})" if score["unit"] else score["metric"]


def judged(card: Scorecard | None, metrics: int = 1) -> list[str]:
    """A run by its first metric (the mean client, the worst tenth, the constant, the shared model), then by others."""
    if card is None:
        return ["not measured"] * 4 + [""] * (metrics - 1)
    first, *others = card["scores"]
    shared = "none" if first["shared"] is None else number(first["shared"])
    own = [number(first[key]) for key in ("value", "worst_tenth", "constant")]
    return [*own, shared, *(number(other["value"]) for other in others[: metrics - 1])]


def warn(rows: Sequence[Mapping[str, Any]]) -> None:
    """Says in words which runs are worse than a constant."""
    from kinfolk.training import scorecard

    for row in rows:
        if said := scorecard.warning(row["measured"]):
            text = f"[yellow]Warning:[/yellow] {escape(str(row['method']))} is {escape(said)}."
            console.print(text, highlight=False, soft_wrap=True)


def spent(row: dict[str, Any]) -> str:
    """An epsilon with what it is worth."""
    mark = " (simulated)" if row["simulated"] else ""
    return "no privacy" if row["epsilon"] is None else f"{row['epsilon']:.3g}{mark}"


def in_words(card: Scorecard | None) -> str:
    """What a run is worth, in a line: every metric with its unit, and the constant beside it."""
    from kinfolk.training.scorecard import told

    if card is None:
        return "not measured"
    said = []
    for score in card["scores"]:
        beside = [f"{card['constant_is'] or 'constant'} {number(score['constant'])}"]
        beside += [] if score["shared"] is None else [f"shared model {number(score['shared'])}"]
        said.append(f"{told(score, score['value'])} ({', '.join(beside)})")
    return "; ".join(said)


def number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3g}"


def refuse_unused(context: typer.Context, names: Sequence[str], why: str, only: bool = False) -> None:
    """Refuses options that were typed and would change nothing: all but these names, or only these."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if (name in names) is only and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--{name.replace('_', '-')}: {why}")
