"""Which data a command works on: a built-in set, or tables; and `kinfolk schema`, which drafts what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk import limits
from kinfolk.cli.output import ClientColumn, Json, Target, console, emit, tell
from kinfolk.data.choice import DataChoice
from kinfolk.toml import ConfigError

if TYPE_CHECKING:
    from kinfolk.data.tables.draft import Asked
    from kinfolk.data.tables.encode import Encoded, Tables
    from kinfolk.privacy.levels import PrivacyLevel


def in_directory(choice: DataChoice, directory: Path | None) -> DataChoice:
    """The same data, the files of built-in sets being in this directory."""
    return choice if directory is None else replace(choice, directory=str(directory))


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
    """The level that the options of a command say."""
    from kinfolk.privacy.levels import Level, PrivacyLevel

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


MOST_SHOWN = 100
"""Columns of a draft that are shown; the file has all of them."""


def schema(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TABLE...]", help="CSV, Parquet or Arrow files; none, if --from declares everything."),
    ] = None,
    target: Target = None,
    client: ClientColumn = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="What is declared already: a schema, or a Frictionless Table Schema or data package (.json)."
        ),
    ] = None,
    *,
    output: Annotated[
        Path,
        typer.Option(help="Where the draft goes: .toml, or .json for Table Schema. A file that is there is kept."),
    ] = Path("schema.toml"),
    outcome: Annotated[
        str | None,
        typer.Option(help="What is predicted: survival, count, ordinal or labels; default: as the target looks."),
    ] = None,
    event: Annotated[
        str | None, typer.Option(help="Of survival: the column that says whether the event came at the target's time.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Of labels: a column with yes or no. Give it once for each.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draft a schema for tables: kinds, bounds and values, all guessed from the rows and marked so.

    Replace the guesses by what is known without looking, set `confirmed = true`, and train with `--schema`.

    `kinfolk schema hospitals/*.csv --target outcome --from codebook.json` takes what a codebook declares as known, and
    drafts the rest; `kinfolk schema --from schema.toml --output schema.json` writes a Table Schema. `kinfolk schema
    patients.csv --target days --outcome survival --event died` is about a time until an event.
    """
    from kinfolk.data.tables import schema as schemas
    from kinfolk.data.tables import table_schema
    from kinfolk.data.tables.draft import Asked
    from kinfolk.training import run_directory

    if output.exists():
        raise ConfigError(f"output={output} is there already: give another --output, or remove it")
    if output.suffix.lower() not in (".toml", ".json"):
        raise ConfigError(f"output={output} must end with .toml, or with .json for a Table Schema")
    labels = tuple(label or ())
    asked = Asked("labels" if labels and outcome is None else outcome, event, labels)
    target = "labels" if labels and target is None else target
    found = _drafted(files or [], target, client, source, asked)
    written = table_schema.write(found.schema) if output.suffix.lower() == ".json" else schemas.to_toml(found.schema)
    run_directory.write_text(output, written)
    columns = [found.schema.target, *found.schema.columns]
    if as_json:
        guesses = found.schema.unconfirmed()
        emit("schema", {"schema": str(output), "task": found.schema.task, "guesses": guesses, "notes": found.notes})
        return
    tell(found.notes, False)
    table = Table("column", "kind", "guess", "where it is missing", title=f"A draft: {output}")
    for column in columns[:MOST_SHOWN]:
        guess = f"{column.low:g} to {column.high:g}" if column.kind == "number" else ", ".join(column.classes)
        role = " (target)" if column is found.schema.target else ""
        table.add_row(escape(column.name) + role, column.kind, escape(guess), column.missing)
    console.print(table)
    if len(columns) > MOST_SHOWN:
        console.print(f"and {len(columns) - MOST_SHOWN} more columns: see {output}", highlight=False, soft_wrap=True)
    guesses = len(found.schema.unconfirmed())
    says = (
        f"{guesses} of {len(columns)} entries are guesses from the data: before a release, replace them by what is "
        "known without looking and set confirmed = true. A simulation (--seed) may use them as they are."
    )
    says = says if guesses else "Everything is declared: a release may use it."
    console.print(f"Task: {found.schema.task}. {says}", highlight=False, soft_wrap=True)


def _drafted(
    files: Sequence[Path], target: str | None, client: str | None, source: Path | None, asked: Asked
) -> Tables:
    """What is declared already, and the rest drafted from tables."""
    from kinfolk.data.tables import encode, table_schema
    from kinfolk.data.tables import schema as schemas
    from kinfolk.data.tables.draft import Asked, draft
    from kinfolk.data.tables.read import read_all

    if source is None:
        if not files:
            raise ConfigError("no table was given: name the tables, or what is declared already (--from)")
        if asked.outcome is None or target is None:
            return encode.understand(DataChoice(files=tuple(map(str, files)), target=target, client=client))
        found, notes = draft(read_all(files), target, client, asked=asked)
        return encode.Tables((), found, tuple(notes))
    if source.suffix.lower() == ".json":
        book = table_schema.read(source)
    else:
        book = table_schema.of_schema(schemas.load(source))
    target, client = target or book.target, client or book.client
    if not files:
        return encode.Tables((), table_schema.whole_schema(book, target, client), book.notes)
    if target is None:
        raise ConfigError(f"which column is to be predicted? Give --target: {source} does not say")
    asked = asked if asked.outcome else Asked(book.outcome, book.event, book.labels)
    found, notes = draft(read_all(files), target, client, book.columns, asked)
    kept = {key: value for key, value in book.kept().items() if value} if book.outcome == asked.outcome else {}
    found = replace(found, **{"name": book.name, **kept})
    found = replace(found, columns=tuple(c for c in found.columns if c.name not in (book.row, book.person)))
    return encode.Tables((), found, (*book.notes, *notes))
