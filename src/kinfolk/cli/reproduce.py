"""`kinfolk reproduce`: the tables and figures of the papers. The studies come with the repository, not the package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk.cli.output import Json, console, emit, refuse_unused
from kinfolk.cli.pieces import InPieces, On, Resume
from kinfolk.toml import ConfigError

STUDY = "benchmarks.studies.reproduce.run"


def reproduce(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="cross-silo/figure-3b, or cross-silo for all of it.")
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small: half an hour for all on two cores.")] = False,
    pages: Annotated[bool, typer.Option("--pages", help="Write pages from what was measured before.")] = False,
    on: On = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """List the tables and figures of the papers with their verdicts, or run some and write their pages.

    In a checkout of the repository: `kinfolk reproduce cross-silo/figure-3b --quick`.
    """
    root = Path.cwd()
    if not (root / Path(*STUDY.split("."))).with_suffix(".py").exists():
        raise ConfigError(
            f"{STUDY.replace('.', '/')}.py is not in {root}: studies come with the repository, not with the package; "
            "clone it, and run this there"
        )
    sys.path.insert(0, str(root))
    study = import_module(STUDY)
    if names or every or pages:
        flags = {"--all": every, "--quick": quick, "--pages": pages}
        words = [*(names or []), *(flag for flag, given in flags.items() if given)]
        study.main(words, in_pieces=InPieces("reproduce", words, on, resume, as_json))
        return
    refuse_unused(context, ("on", "resume"), "nothing is run: name an item, or give --all", only=True)
    rows = study.listing(study.items())
    if as_json:
        emit("reproduce", {"items": [{"name": name, "what": title, "verdict": found} for name, title, found in rows]})
        return
    table = Table("item", "what", "verdict", title="Tables and figures of the papers")
    for name, title, found in rows:
        table.add_row(name, escape(title), found)
    console.print(table)
