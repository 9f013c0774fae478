"""The command line: thin commands over the library. Every command takes --json."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kinfolk.cli_attack import attack
from kinfolk.cli_strength import strength as plan_strength
from kinfolk.cli_tune import tune
from kinfolk.experiment import ConfigError, DataChoice, Experiment, Phase, Training, load
from kinfolk.privacy.levels import PrivacyLevel

VERSION = 1
"""Version of the shapes that --json prints."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Private multi-task and personalised federated learning: a model per client, and a guarantee that is true.",
)
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
DataName = Annotated[str, typer.Option("--data", help="synthetic_schools (built in) or school.")]
DataDir = Annotated[Path | None, typer.Option(help="Directory with data files; also KINFOLK_DATA.")]


app.command()(attack)
app.command()(tune)
plan_app = typer.Typer(rich_markup_mode="markdown")
app.add_typer(plan_app, name="plan")
plan_app.command("strength")(plan_strength)


def emit(command: str, value: dict[str, Any]) -> None:
    print(json.dumps({"version": VERSION, "command": command, **value}))


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(help="An experiment as TOML; options below are then not needed.")
    ] = None,
    method: Annotated[str, typer.Option(help="One of those that `kinfolk check` lists.")] = "mean_regularized",
    data: DataName = "synthetic_schools",
    level: Level = "example",
    epsilon: Epsilon = None,
    delta: Delta = None,
    clip: Annotated[float, typer.Option(help="Largest norm of one unit's contribution.")] = 1.0,
    cohort: Annotated[float | None, typer.Option(help="Expected clients per round; default all.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 60,
    strength: Annotated[
        str | None, typer.Option(help="Pull towards the shared model: a number, or auto (learned, at no cost).")
    ] = None,
    step_size: Annotated[float, typer.Option(help="Step size of local training.")] = 0.1,
    batch_size: Annotated[int | None, typer.Option(help="Expected batch size; 0 for full batches.")] = 32,
    seed: Seed = None,
    seeds: Annotated[int, typer.Option(help="Repetitions of a simulation, computed together.")] = 1,
    output: Output = Path("runs"),
    ledger: Annotated[Path | None, typer.Option(help="The data set's ledger (release runs).")] = None,
    data_dir: DataDir = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run directory.")] = None,
    as_json: Json = False,
) -> None:
    """Train one model per client.

    `kinfolk train --seed 0` simulates on the built-in data; `kinfolk train experiment.toml` runs a file.
    """
    from kinfolk import train as training

    _use_data(data_dir)
    if resume is not None:
        experiment = _experiment_of(resume)
        with _bar(as_json, experiment.name) as bar:
            run = training.resume(resume, ledger=ledger, progress=bar)
    else:
        if config is not None:
            experiment = load(config)
        else:
            options = {"step_size": step_size} | ({"strength": _strength(strength)} if strength is not None else {})
            experiment = Experiment(
                name=method,
                seed=seed,
                seeds=seeds,
                data=DataChoice(data),
                training=Training(batch_size or None),
                privacy=_level(level, epsilon, delta, clip, cohort),
                phases=(Phase(method, rounds, options),),
            )
        with _bar(as_json, experiment.name) as bar:
            run = training.run(experiment, output, ledger=ledger, progress=bar)
    _report("train", [run], as_json)


@app.command()
def compare(
    method: Annotated[
        list[str] | None, typer.Option(help="A method; repeat for several. Default: local, fedavg, mean_regularized.")
    ] = None,
    data: DataName = "synthetic_schools",
    level: Level = "example",
    epsilon: Epsilon = 3.0,
    delta: Delta = None,
    clip: Annotated[float, typer.Option(help="Largest norm of one unit's contribution.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 60,
    step_size: Annotated[float, typer.Option(help="Step size of local training.")] = 0.1,
    strength: Annotated[float, typer.Option(help="Pull towards the shared model (mean_regularized).")] = 0.5,
    seed: Annotated[int, typer.Option(help="Comparisons are simulations: looking at results costs privacy.")] = 0,
    seeds: Annotated[int, typer.Option(help="Repetitions, computed together.")] = 5,
    output: Output = Path("runs"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Simulate several methods on the same data and budget, and show them side by side."""
    from kinfolk import train as training
    from kinfolk.algorithms import REGISTRY

    _use_data(data_dir)
    privacy = _level(level, epsilon, delta, clip, None)
    results = []
    for name in method or ("local", "fedavg", "mean_regularized"):
        if name not in REGISTRY:
            raise ConfigError(f"method={name!r} is not one of {', '.join(REGISTRY)}")
        entry = REGISTRY[name]
        options = {"step_size": step_size} | ({"strength": strength} if "strength" in entry.options() else {})
        experiment = Experiment(
            name=name,
            seed=seed,
            seeds=seeds,
            data=DataChoice(data),
            privacy=privacy,
            phases=(Phase(name, rounds, options),),
        )
        with _bar(as_json, name) as bar:
            results.append(training.run(experiment, output, progress=bar))
    _report("compare", results, as_json)


@plan_app.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
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
    as_json: Json = False,
) -> None:
    """Plan a budget without data: leave out one number and get it. `plan strength`: the best strength in theory.

    `kinfolk plan --level client --clients 205 --cohort 100 --rounds 1000 --noise-multiplier 5 --delta 0.004878`
    """
    from kinfolk.privacy import plan as planning

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
    from kinfolk.privacy.check_all import check_registry

    rows = check_registry(features)
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


def _strength(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise ConfigError(f"strength={text!r} is neither a number nor auto") from None


def _use_data(directory: Path | None) -> None:
    import os

    if directory is not None:
        os.environ["KINFOLK_DATA"] = str(directory)


def _level(level: str, epsilon: float | None, delta: float | None, clip: float, cohort: float | None) -> PrivacyLevel:
    if level == "none":
        return PrivacyLevel("none", cohort=cohort)
    return PrivacyLevel(level, 3.0 if epsilon is None else epsilon, delta, clip=clip, cohort=cohort)


def _experiment_of(path: Path) -> Experiment:
    from kinfolk import runs

    return runs.open_run(path).experiment()


class _bar:
    """A progress bar for one run, on standard error; silent with --json."""

    def __init__(self, silent: bool, name: str) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), disable=silent)
        self._task = self._progress.add_task(name, total=None, note="counting, calibrating, compiling")

    def __enter__(self) -> Any:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int, numbers: dict[str, float]) -> None:
        self._progress.update(self._task, completed=done, total=total, note=f"test error {numbers['error']:.4g}")


def _report(command: str, results: list[Any], as_json: bool) -> None:
    rows = []
    for run in results:
        statement, last = run.statement(), (run.metrics() or [{}])[-1]
        rows.append(
            {
                "method": run.experiment().phases[-1].method,
                "run": str(run.path),
                "error": last.get("error"),
                "worst_decile_error": last.get("worst_decile_error"),
                "epsilon": statement["epsilon"],
                "delta": statement["delta"],
                "simulated": statement["simulated"],
                "level": statement["level"],
            }
        )
    if as_json:
        emit(command, {"results": rows})
        return
    table = Table("method", "mean client error", "worst tenth", "epsilon", "delta", title="Test results")
    for row in rows:
        mark = " (simulated)" if row["simulated"] else ""
        table.add_row(
            row["method"],
            f"{row['error']:.4g}",
            f"{row['worst_decile_error']:.4g}",
            "no privacy" if row["epsilon"] is None else f"{row['epsilon']:.3g}{mark}",
            "" if row["epsilon"] is None else f"{row['delta']:.2g}",
        )
    console.print(table)
    for row in rows:
        console.print(f"{row['method']}: {row['run']}", highlight=False, soft_wrap=True)


def main() -> None:
    """Runs the command line; errors a user can cause are one message, without a traceback."""
    from kinfolk.data.federation import DataError
    from kinfolk.privacy.release import PrivacyError
    from kinfolk.runs import RunError

    wants_json = "--json" in sys.argv
    warnings.showwarning = lambda message, *_, **__: print(f"Warning: {message}", file=sys.stderr)
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        _fail(error.format_message(), type(error).__name__, wants_json, 2)
    except (ValueError, DataError, PrivacyError, RunError) as error:
        _fail(str(error), type(error).__name__, wants_json, 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; go on with `kinfolk train --resume RUN`", "Interrupted", wants_json, 130)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, kind: str, as_json: bool, code: int) -> None:
    if as_json:
        print(json.dumps({"version": VERSION, "error": {"kind": kind, "message": message}}))
    else:
        Console(stderr=True).print(f"[red]Error:[/red] {message}", highlight=False)
    sys.exit(code)
