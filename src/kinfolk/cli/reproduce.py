"""`kinfolk reproduce`: the tables and figures of the papers. The studies come with the repository, not the package."""

from __future__ import annotations

import sys
from functools import partial
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
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]",
            help="Items to run, as they are listed: cross-silo/figure-3b, or cross-silo for all of it.",
        ),
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small: 9 minutes for all on two cores.")] = False,
    pages: Annotated[bool, typer.Option("--pages", help="Write pages from what was measured before.")] = False,
    on: On = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """List the tables and figures of the papers with their verdicts, or run some and write their pages.

    In a checkout of the repository: `kinfolk reproduce cross-silo/figure-3b --quick`. Data are where KINFOLK_DATA says,
    or where `kinfolk data get` keeps them; what cannot be had has a stand-in.
    """
    sys.path.insert(0, str(_root()))
    study = import_module(STUDY)
    if names or every or pages:
        flags = {"--all": every, "--quick": quick, "--pages": pages}
        words = [*(names or []), *(flag for flag, given in flags.items() if given)]
        told: list[str] = []
        say = told.append if as_json else partial(print, flush=True)
        found = study.main(words, in_pieces=InPieces("reproduce", words, on, resume, as_json), say=say)
        if as_json:
            emit("reproduce", {"results": found, "notes": told})
        return
    refuse_unused(context, ("quick", "on", "resume"), "nothing is run: name an item, or give --all", only=True)
    rows = study.listing(study.items())
    if as_json:
        emit("reproduce", {"items": [{"name": name, "what": title, "verdict": found} for name, title, found in rows]})
        return
    table = Table("item", "what", "verdict", title="Tables and figures of the papers")
    for name, title, found in rows:
        table.add_row(name, escape(title), found)
    console.print(table)


def _root() -> Path:
    """The checkout that this is run in."""
    here, study = Path.cwd(), Path(*STUDY.split(".")).with_suffix(".py")
    if (here / study).exists():
        return here
    for above in here.parents:
        if (above / study).exists():
            raise ConfigError(f"{here} is inside a checkout: `cd {above}`, and run this there")
    raise ConfigError(
        f"{study.as_posix()} is not in {here}: studies come with the repository, not with the package; clone it, and "
        "run this there"
    )
