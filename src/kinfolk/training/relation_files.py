"""Who is related to whom, read from a file, or from a column of the tables: for settings and for the command line."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.algorithms.relations import GRAPH, RELATED, neighbours_of, options_for
from kinfolk.data.choice import DataChoice
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.read import groups_by
from kinfolk.toml import ConfigError

COLUMN = "column:"
"""Before the name of a column of the tables, instead of a relation's file."""


def read_relation(path: Path, tables: Sequence[Path] = (), client: str | None = None) -> Any:
    """Who is related to whom. From a JSON file: each client's group, a matrix (groups x clients), `{"graph": ...}` or
    `{"omega": ...}`. From a CSV file: lines `client,group`, or, of a graph, `client,neighbour` or
    `client,neighbour,weight`, under a line of these names. From a column of the tables, in which `client` says whose
    row it is: each client's group."""
    if str(path).startswith(COLUMN):
        if not tables:
            raise ConfigError(f"relation={path} names a column, and no table was given: give a file, or tables")
        return groups_by(str(path).removeprefix(COLUMN), tables, client)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"relation={path} cannot be read ({error}): give a file, or, for a column of the tables, {COLUMN}{path}"
        ) from error
    if path.suffix.lower() == ".csv":
        return _lines(path, [[word.strip() for word in line] for line in csv.reader(text.splitlines()) if line])
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"relation={path} is no JSON ({error}): give that, or CSV in a file that ends so") from None


def _lines(path: Path, lines: list[list[str]]) -> Any:
    """Each client's groups, or `{"graph": ...}`, from the lines of a file, the first of which are names."""
    if lines and lines[0] in (EDGES[:2], EDGES):
        return _edges(path, lines)
    if not lines or lines[0] != MEMBERS or any(len(line) != 2 for line in lines):
        raise ConfigError(
            f"relation={path} must have two columns, {' and '.join(MEMBERS)}; or, as a graph, "
            f"{' and '.join(EDGES[:2])}, and if you like {EDGES[2]}, under exactly these names in the first line"
        )
    groups: dict[str, list[str]] = {}
    for client, group in lines[1:]:
        if not group:
            raise ConfigError(f"relation={path} names no group for client {client!r}: give it one, its own if need be")
        groups.setdefault(client, []).append(group)
    return {client: own[0] if len(own) == 1 else own for client, own in groups.items()}


MEMBERS = ["client", "group"]
"""The columns of a file of groups; a client in several has several lines."""
EDGES = ["client", "neighbour", "weight"]
"""The columns of a graph's file; without weights all are 1."""


def _edges(path: Path, lines: list[list[str]]) -> Any:
    """Each client's neighbours, from the lines of a graph's file."""
    if any(len(line) != len(lines[0]) for line in lines):
        raise ConfigError(f"relation={path} must have {len(lines[0])} columns in every line: {', '.join(lines[0])}")
    try:
        edges = [(one, other, float(weight[0]) if weight else 1.0) for one, other, *weight in lines[1:]]
        return {GRAPH: neighbours_of(edges)}
    except ValueError as error:
        raise ConfigError(f"relation={path}: {error}; give numbers as weights") from None


def refuse_protected(named: Path, schema: schemas.Schema) -> None:
    """Refuses a relation from a column that a release protects: who is related to whom is public, and written down."""
    column = str(named).removeprefix(COLUMN)
    protected = {one.name for one in (schema.target, *schema.columns)} | {schema.event, *schema.labels}
    protected |= {schema.row, schema.person} - {schema.client}
    if str(named).startswith(COLUMN) and column in protected:
        raise ConfigError(
            f"relation={named}: who is related to whom is public, and the schema has column {column!r} among what a "
            "release protects: take it out of the schema, or give groups that are public in a file"
        )


def with_files_read(options: Mapping[str, Any], data: DataChoice, *, release: bool) -> dict[str, Any]:
    """A method's options, in which a relation that names a file, or a column of the tables, is what is read there.

    `release`: whether something is protected.
    """
    found = {name: value for name, value in options.items() if name not in RELATED or not isinstance(value, str)}
    tables = [Path(name) for name in data.files]
    for named in (options[name] for name in RELATED if name in options and name not in found):
        schema = None if data.schema is None else schemas.load(Path(data.schema))
        client = data.client if schema is None else schema.client
        if release and schema is not None:
            refuse_protected(Path(named), schema)
        found |= options_for(read_relation(Path(named), tables, client))
    return found
