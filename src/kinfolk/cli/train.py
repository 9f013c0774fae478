"""`kinfolk train`: from a table, a built-in data set or an experiment file to one model per client."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kinfolk.cli.data import in_directory, privacy_level, seeds_from, table_choice
from kinfolk.cli.evaluate import show
from kinfolk.cli.kept_programs import keep_programs
from kinfolk.cli.output import (
    ClientColumn,
    DataDir,
    DataName,
    Delta,
    Epsilon,
    Json,
    Level,
    Output,
    PullOption,
    RelationFile,
    SchemaFile,
    Seed,
    SetName,
    Target,
    TestFraction,
    bar,
    refuse_unused,
    result_row,
    show_results,
    tell,
)
from kinfolk.data.choice import DataChoice
from kinfolk.toml import ConfigError


def train(
    context: typer.Context,
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TABLE...]",
            help="Tables (CSV, Parquet, Arrow), or an experiment as TOML; options below are then not needed.",
        ),
    ] = None,
    *,
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
    pull: PullOption = None,
    relation: RelationFile = None,
    step_size: Annotated[float | None, typer.Option(help="Step size of local training.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected batch size; 0 for full batches.")] = None,
    test_fraction: TestFraction = 0.2,
    seed: Seed = None,
    seeds: Annotated[int, typer.Option(help="Repetitions of a simulation, computed together.")] = 1,
    output: Output = Path("runs"),
    ledger: Annotated[Path | None, typer.Option(help="The owner's ledger (release runs).")] = None,
    promise: Annotated[
        float | None,
        typer.Option(help="Epsilon of all releases of these rows, ever, where more are to come; default --epsilon."),
    ] = None,
    disjoint_because: Annotated[
        str | None,
        typer.Option(help="Why nobody in these data is in other data of the ledger: asked once, for a new --name."),
    ] = None,
    evaluate: Annotated[
        float | None,
        typer.Option(help="Then evaluate on test rows for this epsilon: metrics that may be published."),
    ] = None,
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
    from kinfolk.algorithms import REGISTRY
    from kinfolk.training import loop, published, recipes, run_directory
    from kinfolk.training.experiment import Experiment, load
    from kinfolk.training.inputs import federations_of
    from kinfolk.training.relation_files import read_relation, refuse_protected

    keep_programs()
    if resume is not None:
        experiment = run_directory.open_run(resume).experiment()
        moved = in_directory(experiment.data, data_dir)
        with bar(as_json, experiment.name, experiment.seed is not None) as progress:
            given = None if data_dir is None else federations_of(replace(experiment, data=moved), None)
            run = loop.resume(resume, data=given, ledger=ledger, progress=progress, track=track or ())
        show_results("train", [result_row(run)], as_json)
        return
    files = sources or []
    is_file = len(files) == 1 and files[0].suffix == ".toml"
    if is_file:
        refuse_unused(context, BESIDE_A_FILE, f"it is a setting, and {files[0].name} has all of them: write it there")
    elif files:
        refuse_unused(context, ("data",), "tables were given, which are the data: leave one of them out", only=True)
    else:
        refuse_unused(context, OF_TABLES, "it is for tables, and none was given", only=True)
    numbers = seeds_from(seed or 0, seeds)
    federations: Any = None
    notes: list[str] = []
    given = recipes.Given(method, rounds, step_size, batch_size, _strength(strength), pull=pull)
    if relation is not None and not files:
        given = replace(given, relation=read_relation(relation))
    if is_file:
        experiment = load(files[0])
        experiment = replace(experiment, data=in_directory(experiment.data, data_dir))
    else:
        privacy = privacy_level(level, epsilon, delta, clip, cohort, promise)
        if files:
            from kinfolk.data.tables.encode import federation

            choice, rows = table_choice(files, client, target, schema, name, test_fraction)
            if relation is not None:
                if seed is None and privacy.level.private and not rows.schema.unconfirmed():  # a draft is refused later
                    refuse_protected(relation, rows.schema)
                given = replace(given, relation=read_relation(relation, files, rows.schema.client))
            federations = [federation(rows, choice, number) for number in numbers]
            found = recipes.for_federation(federations[0], privacy, given)
            notes = [*rows.notes, *found.notes, *rows.about_one_answer(found.phase.method)]
            if seed is None and level != "none":
                if name is None and rows.schema.name is None:
                    raise ConfigError(
                        "name=None: a release needs the name that its owner gives these data in every file and year, "
                        "because all its releases add up: give --name, or name in the schema"
                    )
                notes.append(f"this is a release, charged to its owner's ledger as data set {choice.name!r} (--name)")
        else:
            choice = in_directory(DataChoice(data, test_fraction=test_fraction), data_dir)
            if method == "auto" and ":" not in data:
                raise ConfigError(
                    f"method='auto' is for tables: for data={data!r} leave it out (mean_regularized), or name one of "
                    f"{', '.join(REGISTRY)}"
                )
            found = recipes.for_choice(choice, seed or 0, privacy, given)
            notes = list(found.notes)
        experiment = Experiment(
            name=found.phase.method,
            seed=seed,
            seeds=seeds,
            data=choice,
            model=found.model,
            training=found.training,
            privacy=privacy,
            phases=(found.phase,),
            afterwards=found.afterwards,
            evaluate=evaluate,
            why=found.why,
        )
    if experiment.seed is None and experiment.privacy.level.private and experiment.evaluate is None:
        notes += about_test_rows(experiment.data)
    tell(notes, as_json)
    with bar(as_json, experiment.name, experiment.seed is not None) as progress:
        run = loop.run(
            experiment,
            output,
            ledger=ledger,
            progress=progress,
            data=federations,
            track=track or (),
            disjoint_because=disjoint_because,
        )
    run_directory.mark_latest(run.path)
    shown = published.shown_before(run) if experiment.evaluate is not None else []
    more = ({"notes": notes} if notes else {}) | ({"may_be_shown": shown[-1]} if shown else {})
    show_results("train", [result_row(run)], as_json, **more)
    if shown and not as_json:
        show(shown[-1])


BESIDE_A_FILE = ("sources", "output", "ledger", "disjoint_because", "data_dir", "track", "as_json")
"""Options that are not settings of an experiment."""
OF_TABLES = ("client", "target", "schema", "name")


def about_test_rows(data: DataChoice) -> list[str]:
    """What a release without an evaluation gives away for a test that nobody else may see: nothing where a built-in set
    comes with rows to test on."""
    from kinfolk.data.sets.catalogue import BUILT_IN

    entry = None if data.files else BUILT_IN.get(data.name)
    divided = entry is None or "test_fraction" in inspect.signature(entry.load).parameters
    if not data.test_fraction or not divided:
        return []
    return [
        f"{data.test_fraction:.0%} of the rows are kept to test on, and what is measured on them stays private: where "
        "rows are few, --test-fraction 0 trains on all of them; --evaluate 0.5 pays for metrics that may be published"
    ]


def _strength(text: str | None) -> float | str | None:
    try:
        return text if text in (None, "auto") else float(text)
    except ValueError:
        raise ConfigError(f"strength={text!r} is neither a number nor auto") from None
