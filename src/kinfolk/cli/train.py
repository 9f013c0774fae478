"""`kinfolk train`: from a table, a built-in data set or an experiment file to one model per client."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kinfolk.cli.data import in_directory, privacy_level, table_choice
from kinfolk.cli.output import (
    ClientColumn,
    DataDir,
    DataName,
    Delta,
    Epsilon,
    Json,
    Level,
    Output,
    SchemaFile,
    Seed,
    SetName,
    Target,
    TestFraction,
    bar,
    result_row,
    show_results,
    tell,
)
from kinfolk.data.choice import DataChoice
from kinfolk.toml import ConfigError
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training, load


def train(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TABLE...]",
            help="Tables (CSV, Parquet, Arrow), or an experiment as TOML; options below are then not needed.",
        ),
    ] = None,
    client: ClientColumn = None,
    target: Target = None,
    schema: SchemaFile = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="One of those that `kinfolk check` lists, or auto: picked by theory from public numbers. Default: "
            "auto for tables, else mean_regularized."
        ),
    ] = None,
    data: DataName = "synthetic_schools",
    name: SetName = None,
    level: Level = "example",
    epsilon: Epsilon = None,
    delta: Delta = None,
    clip: Annotated[float, typer.Option(help="Largest norm of one unit's contribution.")] = 1.0,
    cohort: Annotated[float | None, typer.Option(help="Expected clients per round; default all.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    strength: Annotated[
        str | None, typer.Option(help="Pull towards the shared model: a number, or auto (learned, at no cost).")
    ] = None,
    step_size: Annotated[float | None, typer.Option(help="Step size of local training.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected batch size; 0 for full batches.")] = None,
    test_fraction: TestFraction = 0.2,
    seed: Seed = None,
    seeds: Annotated[int, typer.Option(help="Repetitions of a simulation, computed together.")] = 1,
    output: Output = Path("runs"),
    ledger: Annotated[Path | None, typer.Option(help="The data set's ledger (release runs).")] = None,
    data_dir: DataDir = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="Log while training: tensorboard, mlflow (repeat for both). A release logs its epsilon only."
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run directory.")] = None,
    as_json: Json = False,
) -> None:
    """Train one model per client.

    `kinfolk train hospitals.csv --client hospital --target outcome --epsilon 1 --seed 0` simulates on a table;
    `kinfolk train --seed 0` on the built-in data; `kinfolk train experiment.toml` runs a file.
    """
    from kinfolk.training import loop, run_directory
    from kinfolk.training.inputs import federations_of

    if resume is not None:
        experiment = run_directory.open_run(resume).experiment()
        moved = in_directory(experiment.data, data_dir)
        with bar(as_json, experiment.name, experiment.seed is not None) as progress:
            given = None if data_dir is None else federations_of(replace(experiment, data=moved), None)
            run = loop.resume(resume, data=given, ledger=ledger, progress=progress, track=track or ())
        show_results("train", [result_row(run)], as_json)
        return
    federations: Any = None
    notes: list[str] = []
    given = {"rounds": rounds, "step_size": step_size, "batch_size": batch_size, "strength": _strength(strength)}
    files = sources or []
    if len(files) == 1 and files[0].suffix == ".toml":
        experiment = load(files[0])
        experiment = replace(experiment, data=in_directory(experiment.data, data_dir))
    else:
        privacy = privacy_level(level, epsilon, delta, clip, cohort)
        if files:
            from kinfolk.data.tables.encode import federation

            choice, rows = table_choice(files, client, target, schema, name, test_fraction)
            federations = [federation(rows, choice, number) for number in range(seed or 0, (seed or 0) + seeds)]
            model, settings, phase, why = for_tables(rows.schema, federations[0], privacy, method, given)
            notes = [*rows.notes, *why]
            if seed is None and level != "none":
                notes.append(f"this is a release, charged to the ledger of data set {choice.name!r} (--name)")
        elif method == "auto":
            raise ConfigError("method='auto' is for tables: name a method for built-in data")
        else:
            choice, model = in_directory(DataChoice(data, test_fraction=test_fraction), data_dir), ModelChoice()
            settings, phase = for_built_in(method or "mean_regularized", given)
        experiment = Experiment(
            name=phase.method,
            seed=seed,
            seeds=seeds,
            data=choice,
            model=model,
            training=settings,
            privacy=privacy,
            phases=(phase,),
        )
    tell(notes, as_json)
    with bar(as_json, experiment.name, experiment.seed is not None) as progress:
        run = loop.run(experiment, output, ledger=ledger, progress=progress, data=federations, track=track or ())
    show_results("train", [result_row(run)], as_json, **({"notes": notes} if notes else {}))


def for_built_in(method: str, given: dict[str, Any]) -> tuple[Training, Phase]:
    """Local work and method for a built-in data set; what the user gave comes first."""
    own = {"rounds": 60, "step_size": 0.1, "batch_size": 32} | _known(given)
    from kinfolk.algorithms.registry import takes_steps

    names = ("step_size", "strength") if takes_steps(method) or given["step_size"] is not None else ("strength",)
    options = {key: own[key] for key in names if key in own}
    return Training(own["batch_size"] or None), Phase(method, own["rounds"], options)


def _strength(text: str | None) -> float | str | None:
    try:
        return text if text in (None, "auto") else float(text)
    except ValueError:
        raise ConfigError(f"strength={text!r} is neither a number nor auto") from None


def _known(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def for_tables(
    schema: Any, federation: Any, privacy: Any, method: str | None, given: dict[str, Any]
) -> tuple[ModelChoice, Training, Phase, list[str]]:
    """Model, local work and method for a table, from public numbers; what the user gave comes first."""
    from kinfolk.algorithms.registry import takes_steps
    from kinfolk.training import recipes

    sizes = federation.train.sizes.tolist()
    usual = recipes.settings(privacy.level, schema, sizes)
    own = asdict(usual) | _known(given)
    picked = recipes.automatic(privacy.level, sizes, math.prod(federation.shape), privacy.epsilon, privacy.delta)
    why = []
    if method in (None, "auto"):
        method = picked.method
        pull = f" with strength {picked.strength:g}" if method != "local" else ""
        why.append(f"method={method}{pull} was picked: {picked.why}")
    assert method is not None
    options: dict[str, Any] = {"step_size": own["step_size"]} if takes_steps(method) else {}
    if method in recipes.PULLED or "strength" in own:
        options["strength"] = own.get("strength", picked.strength)
    phase = Phase(method, own["rounds"], options)
    return ModelChoice(recipes.MODELS[schema.outcome]), Training(own["batch_size"] or None), phase, why
