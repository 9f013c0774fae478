"""Which data a command works on: a built-in set, or tables; and `kinfolk schema`, which drafts what they are."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk import limits
from kinfolk.cli.output import ClientColumn, Json, Target, console, emit, tell
from kinfolk.data.choice import DataChoice
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.toml import ConfigError

if TYPE_CHECKING:
    from kinfolk.data.tables.encode import Encoded


def in_directory(choice: DataChoice, directory: Path | None) -> DataChoice:
    """The same data, the files of built-in sets being in this directory."""
    return choice if directory is None else replace(choice, directory=str(directory))


def read_relation(path: Path) -> Any:
    """Each client's group, or a matrix (groups x clients), from a JSON file; or lines `client,group` of a CSV file, or
    (a graph) its lines `client,neighbour` or `client,neighbour,weight`, under a line of these names."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"relation={path} cannot be read: {error.strerror}") from error
    if path.suffix.lower() == ".csv":
        lines = [[word.strip() for word in line] for line in csv.reader(text.splitlines()) if line]
        if lines and lines[0] in (EDGES[:2], EDGES):
            return _edges(path, lines)
        if not lines or any(len(line) != 2 for line in lines):
            raise ConfigError(
                f"relation={path} must have two columns, client and group, under a line of names; or, as a graph, "
                f"{' and '.join(EDGES[:2])}, and if you like {EDGES[2]}, under exactly these names"
            )
        return dict(lines[1:])
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"relation={path} is no JSON ({error}): give that, or CSV in a file that ends so") from None


EDGES = ["client", "neighbour", "weight"]
"""The columns of a graph's file; without weights all are 1."""


def _edges(path: Path, lines: list[list[str]]) -> Any:
    """Each client's groups, from the lines of a graph's file."""
    from kinfolk.algorithms.relations import groups_of_edges

    if any(len(line) != len(lines[0]) for line in lines):
        raise ConfigError(f"relation={path} must have {len(lines[0])} columns in every line: {', '.join(lines[0])}")
    try:
        return groups_of_edges((one, other, float(weight[0]) if weight else 1.0) for one, other, *weight in lines[1:])
    except ValueError as error:
        raise ConfigError(f"relation={path}: {error}; give numbers of 0 or more as weights") from None


def seeds_from(seed: int, seeds: int) -> range:
    """The seeds of a simulation's repetitions, checked before anything is read."""
    first, count = int(limits.checked("seed", seed)), int(limits.checked("seeds", seeds))
    limits.checked("seed", first + count - 1)
    return range(first, first + count)


def privacy_level(
    level: str,
    epsilon: float | None,
    delta: float | None,
    clip: float,
    cohort: float | None,
    promise: float | None = None,
) -> PrivacyLevel:
    if level == "none":
        return PrivacyLevel(Level.NONE, cohort=cohort)
    spend = 3.0 if epsilon is None else epsilon
    return PrivacyLevel(Level(level), spend, delta, promise, clip=clip, cohort=cohort)


def table_choice(
    files: Sequence[Path],
    client: str | None,
    target: str | None,
    schema: Path | None,
    name: str | None,
    test_fraction: float,
) -> tuple[DataChoice, Encoded]:
    """Tables as an experiment names them, read and encoded."""
    from kinfolk.data.tables import encode

    choice = DataChoice(
        name="tables",
        test_fraction=test_fraction,
        files=tuple(map(str, files)),
        client=client,
        target=target,
        schema=None if schema is None else str(schema),
    )
    rows = encode.encoded(encode.understand(choice))
    name = name or rows.schema.name or encode.default_name(files)
    return replace(choice, name=encode.check_name(name)), rows


def schema(
    files: Annotated[list[Path], typer.Argument(metavar="TABLE...", help="CSV, Parquet or Arrow files.")],
    target: Target = None,
    client: ClientColumn = None,
    output: Annotated[Path, typer.Option(help="Where the draft goes; a file that is there is kept.")] = Path(
        "schema.toml"
    ),
    as_json: Json = False,
) -> None:
    """Draft a schema for tables: kinds, bounds and values, all guessed from the rows and marked so.

    Replace the guesses by what is known without looking, set `confirmed = true`, and train with `--schema`.
    """
    from kinfolk.data.tables import encode
    from kinfolk.data.tables import schema as schemas
    from kinfolk.training import run_directory

    if output.exists():
        raise ConfigError(f"output={output} is there already: give another --output, or remove it")
    found = encode.understand(DataChoice(files=tuple(map(str, files)), target=target, client=client))
    run_directory.write_text(output, schemas.to_toml(found.schema))
    columns = [found.schema.target, *found.schema.columns]
    if as_json:
        guesses = found.schema.unconfirmed()
        emit("schema", {"schema": str(output), "task": found.schema.outcome, "guesses": guesses, "notes": found.notes})
        return
    tell(found.notes, False)
    table = Table("column", "kind", "guess", "where it is missing", title=f"A draft: {output}")
    for column in columns:
        guess = f"{column.low:g} to {column.high:g}" if column.kind == "number" else ", ".join(column.classes)
        role = " (target)" if column is found.schema.target else ""
        table.add_row(escape(column.name) + role, column.kind, escape(guess), column.missing)
    console.print(table)
    console.print(
        f"Task: {found.schema.outcome}. All {len(columns)} entries are guesses from the data: before a release, "
        "replace them by what is known without looking and set confirmed = true. A simulation (--seed) may use them "
        "as they are.",
        highlight=False,
    )
