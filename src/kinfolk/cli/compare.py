"""`kinfolk compare`: several methods and budgets on the same data, simulated, side by side."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kinfolk.cli.data import in_directory, privacy_level, seeds_from, table_choice
from kinfolk.cli.output import (
    ClientColumn,
    DataDir,
    DataName,
    Delta,
    Json,
    Level,
    Output,
    PullOption,
    RelationFile,
    SchemaFile,
    Target,
    TestFraction,
    bar,
    console,
    refuse_unused,
    result_row,
    show_results,
    tell,
)
from kinfolk.cli.pieces import InPieces, On, Resume
from kinfolk.data.choice import DataChoice
from kinfolk.toml import ConfigError, to_toml

if TYPE_CHECKING:
    from kinfolk.data.federation import Federation
    from kinfolk.privacy.levels import PrivacyLevel
    from kinfolk.training.experiment import Experiment
    from kinfolk.training.pieces import Result

METHODS = ("local", "fedavg", "mean_regularized")


def compare(
    context: typer.Context,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[TABLE...]", help="Tables; without any, built-in data (--data).")
    ] = None,
    *,
    client: ClientColumn = None,
    target: Target = None,
    schema: SchemaFile = None,
    method: Annotated[
        list[str] | None, typer.Option(help=f"A method; repeat for several. Default: {', '.join(METHODS)}.")
    ] = None,
    data: DataName = "synthetic_schools",
    level: Level = "example",
    epsilon: Annotated[list[float] | None, typer.Option(help="Privacy budget; repeat for several. Default: 3.")] = None,
    delta: Delta = None,
    aggregator: Annotated[
        list[str] | None,
        typer.Option(help="Client level: trusted, secure or local; repeat to see what trust costs. Default: trusted."),
    ] = None,
    colluding: Annotated[
        int | None, typer.Option(help="Secure: so many clients may work with the aggregator. Default: a fifth.")
    ] = None,
    clip: Annotated[float, typer.Option(help="Largest norm of one unit's contribution.")] = 1.0,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    step_size: Annotated[float | None, typer.Option(help="Step size of local training.")] = None,
    strength: Annotated[float | None, typer.Option(help="Pull towards the shared model.")] = None,
    pull: PullOption = None,
    relation: RelationFile = None,
    test_fraction: TestFraction = 0.2,
    seed: Annotated[int, typer.Option(help="Comparisons are simulations: looking at results costs privacy.")] = 0,
    seeds: Annotated[int, typer.Option(help="Repetitions, computed together.")] = 5,
    on: On = None,
    resume: Resume = False,
    output: Output = Path("runs"),
    picture: Annotated[Path | None, typer.Option(help="The picture (SVG); default: a new file in --output.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Simulate several methods and budgets on the same data; show them side by side, as a picture and as a page."""
    from kinfolk.algorithms import REGISTRY
    from kinfolk.report import write_report
    from kinfolk.report.compare_chart import privacy_utility
    from kinfolk.report.reading import error_spread
    from kinfolk.training import recipes, run_directory
    from kinfolk.training.experiment import Experiment
    from kinfolk.training.relation_files import read_relation
    from kinfolk.training.run_directory import Run

    if files:
        refuse_unused(context, ("data",), "tables were given, which are the data: leave one of them out", only=True)
    numbers, methods = seeds_from(seed, seeds), list(dict.fromkeys(method or METHODS))
    for name in methods:
        if name not in REGISTRY:
            raise ConfigError(f"method={name!r} is not one of {', '.join(REGISTRY)}")
    budgets: Sequence[float | None] = [None] if level == "none" else list(dict.fromkeys(epsilon or [3.0]))
    kinds = list(dict.fromkeys(aggregator or ["trusted"]))
    if colluding is not None and "secure" not in kinds:
        raise ConfigError("--colluding belongs to --aggregator secure: give both, or neither")
    levels = [
        (kind, budget, of_aggregator(privacy_level(level, budget, delta, clip, None), kind, colluding))
        for budget in budgets
        for kind in kinds
    ]
    strength = recipes.COMPARED_STRENGTH if strength is None and not files else strength
    given = recipes.Given(None, rounds, step_size, strength=strength, pull=pull)
    if relation is not None and not files:
        given = replace(given, relation=read_relation(relation))
    notes: list[str] = []
    choice, federations = in_directory(DataChoice(data, test_fraction=test_fraction), data_dir), None
    if files:
        from kinfolk.data.tables.encode import federation

        choice, rows = table_choice(files, client, target, schema, None, test_fraction)
        if relation is not None:
            given = replace(given, relation=read_relation(relation, files, rows.schema.client))
        federations = [federation(rows, choice, number) for number in numbers]
        notes = [*rows.notes, *rows.about_one_answer("mean_regularized")]
        tell(notes, as_json)
    cells: dict[str, Cell] = {}
    for name in methods:
        for kind, budget, privacy in levels:
            own = given.only_for(name)
            if federations:
                recipe = recipes.for_federation(federations[0], privacy, own)
            else:
                recipe = recipes.for_choice(choice, seed, privacy, own)
            training, phases = recipe.training, (recipe.phase,)
            experiment = Experiment(
                name=name,
                seed=seed,
                seeds=seeds,
                data=choice,
                model=recipe.model,
                training=training,
                privacy=privacy,
                phases=phases,
                afterwards=recipe.afterwards,
            )
            shown = name if kinds == ["trusted"] else f"{name}, {kind}"
            label = shown if budget is None else f"{shown}, epsilon {budget:g}"
            cells[label] = Cell(label, experiment, shown, budget)
    tables = [sha256(path.read_bytes()).hexdigest() for path in files or ()]
    settings = [
        tables,
        federations[0].encoding if federations else "",
        *(to_toml(c.experiment) for c in cells.values()),
    ]
    in_pieces = InPieces("compare", settings, on, resume, as_json, output, shows_itself=True)
    common = Cells(output.absolute(), federations, in_pieces.folder, as_json or on is not None)
    runs = {label: Run(output / result.values) for label, result in in_pieces(simulated, common, cells).items()}
    found = [
        {
            **result_row(run),
            "method": cells[label].method,
            "budget": cells[label].budget,
            "error_spread": error_spread(run),
        }
        for label, run in runs.items()
    ]
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    more: dict[str, Any] = {"notes": notes} if files else {}
    if level != "none":
        if picture is None:
            picture = output / f"compare-{stamp}.svg"
        run_directory.write_text(picture, privacy_utility(found))
        more["picture"] = str(picture)
    page = (picture or output / f"compare-{stamp}.svg").with_suffix(".html")
    more["page"] = str(write_report([Path(row["run"]) for row in found], page, with_private=True))
    run_directory.mark_latest(Path(found[-1]["run"]))
    show_results("compare", found, as_json, **more)
    if not as_json:
        drawn = [f"picture: {picture}"] if picture is not None else []
        for line in (*drawn, f"page: {page} (methods, budgets, who gains and who loses; open it in a browser)"):
            console.print(line, highlight=False, soft_wrap=True)


class Cell(NamedTuple):
    """One method with one budget."""

    label: str
    experiment: Experiment
    method: str
    """As the table calls it."""
    budget: float | None


class Cells(NamedTuple):
    """What all of them have in common."""

    output: Path
    data: list[Federation] | None
    begun: Path
    """A folder for notes on which run a cell has begun."""
    silent: bool


def simulated(cells: Cells, cell: Cell) -> Result:
    """Trains a cell, or goes on with the run that was begun for it; returns the name of its run directory.

    `cells`: what all have in common. `cell`: this one.
    """
    from kinfolk.files import write_whole
    from kinfolk.training import loop, pieces, run_directory

    pieces.require_simulation(cell.experiment)
    if not cells.begun.is_dir():
        raise run_directory.RunError(
            f"{cells.output} is not the same folder on {platform.node()}: choose an --output that all nodes share"
        )
    note = cells.begun / f"{sha256(cell.label.encode()).hexdigest()[:12]}.run"
    begun = cells.output / note.read_text() if note.exists() else None
    with bar(cells.silent, cell.label) as progress:
        if begun is not None and (begun / "private" / "run.json").exists():
            run = loop.resume(begun, data=cells.data, progress=progress)
        else:
            run = loop.run(
                cell.experiment,
                cells.output,
                data=cells.data,
                progress=progress,
                begun=lambda run: write_whole(note, run.name.encode()),
            )
    return pieces.Result(run.name)


def of_aggregator(privacy: PrivacyLevel, kind: str, colluding: int | None) -> PrivacyLevel:
    """The same level with another kind of aggregator."""
    if kind == "trusted":
        return privacy
    return replace(privacy, aggregator=kind, colluding=colluding if kind == "secure" else None)
