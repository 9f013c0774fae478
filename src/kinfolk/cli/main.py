"""The command line: thin commands over the library. Every command takes --json."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import kinfolk
from kinfolk import limits
from kinfolk.cli.app import app as pages
from kinfolk.cli.arguments import with_argument_help
from kinfolk.cli.attack import attack
from kinfolk.cli.compare import compare
from kinfolk.cli.data import schema
from kinfolk.cli.datasets import data_app
from kinfolk.cli.deploy import deploy
from kinfolk.cli.evaluate import evaluate, sets
from kinfolk.cli.kept_programs import keep_programs
from kinfolk.cli.ledger import ledger_app
from kinfolk.cli.output import VERSION, Delta, Epsilon, Json, console, emit
from kinfolk.cli.plan_defaults import defaults as plan_defaults
from kinfolk.cli.plan_strength import strength as plan_strength
from kinfolk.cli.predict import export, predict
from kinfolk.cli.report import report
from kinfolk.cli.reproduce import reproduce
from kinfolk.cli.runs import runs_app
from kinfolk.cli.train import train
from kinfolk.cli.tune import tune
from kinfolk.toml import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Private multi-task and personalised federated learning: a model per client, and a guarantee that is true.",
)
app.command()(train)
app.command()(compare)
app.command()(evaluate)
app.command()(sets)
app.command()(schema)
app.add_typer(data_app, name="data")
app.command()(predict)
app.command()(export)
app.add_typer(ledger_app, name="ledger")
app.add_typer(runs_app, name="runs")
app.command()(attack)
app.command()(tune)
plan_app = typer.Typer(rich_markup_mode="markdown")
app.add_typer(plan_app, name="plan")
plan_app.command("defaults")(plan_defaults)
plan_app.command("strength")(plan_strength)
app.command()(report)
app.command()(reproduce)
app.command("app")(pages)
app.add_typer(deploy, name="deploy")

COMMAND_LINE_ERROR: Any = getattr(typer, "TyperException", None) or import_module("click").ClickException
"""An older typer, which Flower needs, raises click's."""
INTERRUPTED = 130
OF_JAX = "JAX has removed its internal frames"
"""In a note of JAX on an error while it traces: about a traceback, and none is shown."""
RESUMED = ("train", "runs", "compare", "attack", "reproduce")
"""Commands that can go on where they were interrupted; nothing is left of others."""
LEFT = "interrupted; go on with `kinfolk train --resume RUN`, or with the same command and --resume"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kinfolk {kinfolk.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What stands before the command."""


@plan_app.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
    *,
    level: Annotated[str, typer.Option(help="example or client.")] = "example",
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise standard deviation over clip norm.")] = None,
    clients: Annotated[int | None, typer.Option(help="Client level: how many clients there are.")] = None,
    cohort: Annotated[float | None, typer.Option(help="Client level: expected clients per round.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Client level: rounds.")] = None,
    rows: Annotated[int | None, typer.Option(help="Example level: rows of the client.")] = None,
    batch: Annotated[float | None, typer.Option(help="Example level: expected batch size.")] = None,
    steps: Annotated[int | None, typer.Option(help="Example level: local steps in all.")] = None,
    relation: Annotated[str, typer.Option(help="zero_out or replace_one.")] = "zero_out",
    colluding: Annotated[
        int | None, typer.Option(help="Client level: clients add the noise, against a server with so many of them.")
    ] = None,
    survivors: Annotated[int | None, typer.Option(help="Likewise: the fewest that must be left of a round.")] = None,
    as_json: Json = False,
) -> None:
    """Plan a budget without data: leave out one number and get it. `plan defaults`: what would be chosen for data of a
    size, and why. `plan strength`: the best strength in theory.

    `kinfolk plan --level client --clients 205 --cohort 100 --rounds 1000 --noise-multiplier 5 --delta 0.004878`
    """
    from kinfolk.accounting import planning

    if context.invoked_subcommand is not None:
        return
    if level not in planning.WORDS:
        raise ConfigError(f"level={level!r} is not one of {tuple(planning.WORDS)}")
    own = {"example": (rows, batch, steps), "client": (clients, cohort, rounds)}[level]
    other = {"example": (clients, cohort, rounds), "client": (rows, batch, steps)}[level]
    if any(value is not None for value in other):
        own_words, other_words = (planning.WORDS[level], planning.WORDS["client" if level == "example" else "example"])
        wrong, right = (", ".join(f"--{word}" for word in words.values()) for words in (other_words, own_words))
        raise ConfigError(f"{wrong} belong to the other level: use {right}")
    answer = planning.plan(
        level,
        units=own[0],
        sample=own[1],
        uses=own[2],
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        colluding=colluding,
        survivors=survivors,
    )
    words = planning.WORDS[level]
    values = {words.get(key, key): value for key, value in dataclasses.asdict(answer).items() if value is not None}
    if as_json:
        emit("plan", values)
        return
    table = Table("", "", title=f"A plan at {level} level", show_header=False)
    for key, value in values.items():
        if key not in ("level", "solved", "warning"):
            text = f"{value:.5g}" if isinstance(value, float) else str(value)
            table.add_row(key.replace("_", " "), f"[bold]{text}[/bold]" if key == answer.solved else text)
    console.print(table)
    if answer.warning:
        console.print(f"[yellow]Warning:[/yellow] {answer.warning}")


@app.command()
def check(
    features: Annotated[int, typer.Option(help="Features of the small linear model that is traced.")] = 3,
    as_json: Json = False,
) -> None:
    """Follow data through every method at every level; exit with 1 if anything leaves without a release."""
    from kinfolk.verify.registry_check import check_registry

    keep_programs()
    rows = check_registry(int(limits.checked("features", features)))
    bad = [row for row in rows if row["violations"]]
    if as_json:
        emit("check", {"passed": not bad, "results": rows})
    else:
        table = Table("method", "level", "releases per round (most)", "verdict", title="Flow check")
        for row in rows:
            made = ", ".join(f"{count} {kind}" for kind, count in row["releases"].items()) or "none"
            verdict = "[red]" + "; ".join(row["violations"]) + "[/red]" if row["violations"] else "clean"
            table.add_row(row["method"], row["level"], made, verdict if row["level"] != "none" else "not private")
        console.print(table)
    if bad:
        raise typer.Exit(1)


@cache
def commands() -> Any:
    """All commands, as click has them; made once."""
    return with_argument_help(typer.main.get_command(app))


def main() -> None:
    """Runs the command line; errors a user can cause are one message, without a traceback."""
    wants_json = "--json" in sys.argv
    warnings.showwarning = lambda message, *_, **__: print(f"Warning: {message}", file=sys.stderr)
    try:
        code = commands()(standalone_mode=False)
    except COMMAND_LINE_ERROR as error:
        if not error.format_message():  # nothing was asked for, and the help is on the screen
            sys.exit(2)
        _fail(error.format_message(), type(error).__name__, wants_json, 2)
    except OSError as error:  # a disk that is full, a folder that may not be read
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}", type(error).__name__, wants_json, 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail(_interrupted(), "Interrupted", wants_json, INTERRUPTED)
    except Exception as error:
        if not isinstance(error, _expected()):
            raise
        notes = [note for note in getattr(error, "__notes__", ()) if OF_JAX not in note]
        _fail("\n".join([str(error), *notes]), type(error).__name__, wants_json, 1)
    else:
        if code == INTERRUPTED:  # a newer typer catches Ctrl-C itself
            _fail(_interrupted(), "Interrupted", wants_json, INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)


def _interrupted() -> str:
    """What is said after Ctrl-C, with the way to go on where there is one."""
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    return LEFT if asked in RESUMED else "interrupted"


def _expected() -> tuple[type[Exception], ...]:
    """What a user can cause; named here only when something went wrong, so that `--help` need not wait for JAX."""
    from kinfolk.engines.client_store import StoreError
    from kinfolk.privacy.release import PrivacyError
    from kinfolk.training.run_files import RunError

    return ValueError, PrivacyError, RunError, StoreError


def _fail(message: str, kind: str, as_json: bool, code: int) -> None:
    if as_json:
        print(json.dumps({"version": VERSION, "error": {"kind": kind, "message": message}}))
    else:
        Console(stderr=True).print(f"[red]Error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)
