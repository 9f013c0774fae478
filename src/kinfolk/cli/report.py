"""`kinfolk report`: a page about some runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def report(
    run: Annotated[
        list[Path], typer.Argument(help="Run directories. One of method local shows who gains by taking part.")
    ],
    with_private: Annotated[
        bool, typer.Option("--with-private", help="Also show private/: errors, losses, and each client's.")
    ] = False,
    format: Annotated[str, typer.Option(help="html, md or pdf (which needs Chromium).")] = "html",
    output: Annotated[Path | None, typer.Option(help="File to write; default report.html, .md or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Write a report on one or several runs: one file that opens offline.

    `kinfolk report runs/NAME` shows what everybody may see; `--with-private` adds errors, for those who may see them.
    """
    from kinfolk.report import write_report

    found = [
        path for path in run if not path.is_file()
    ] or run  # `runs/*` may also name pictures, and a run as `latest`
    found = list({path.resolve(): path for path in reversed(found)}.values())[::-1] if len(found) > 1 else found
    path = write_report(found, output or Path(f"report.{format}"), format=format, with_private=with_private)
    if as_json:
        print(json.dumps({"version": 1, "command": "report", "file": str(path), "private": with_private}))
    else:
        says = "shows private numbers" if with_private else "shows public/ only"
        Console().print(f"{path}: {path.stat().st_size} bytes, {says}", highlight=False, soft_wrap=True)
