"""`kinfolk data`: which data sets are built in, what each is, and getting its files."""

from __future__ import annotations

import difflib
import inspect
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk.cli.output import DataDir, Json, console, emit
from kinfolk.toml import ConfigError

if TYPE_CHECKING:
    from kinfolk.data.sets.catalogue import BuiltIn
    from kinfolk.data.sets.source import Arrays, Source

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Built-in data: list, get, describe.")
Name = Annotated[str, typer.Argument(help="A data set of `kinfolk data list`.")]


@data_app.command("list")
def list_sets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """The data sets that are built in, and whether their files are here."""
    from kinfolk.data.sets.catalogue import BUILT_IN

    rows = [
        {"name": name, "what": _title(entry), "here": _here(entry, data_dir), "licence": _licence(entry)}
        for name, entry in BUILT_IN.items()
    ]
    if as_json:
        emit("data list", {"sets": rows})
        return
    table = Table("name", "what", "here", title="Built-in data")
    for row in rows:
        table.add_row(row["name"], escape(row["what"]), row["here"])
    console.print(table)


@data_app.command("get")
def get(
    name: Name,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            help="A file in its published form, fetched by hand, instead of a download, or a folder that has the set's "
            "files by their names. Give --from once for each of several.",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a data set, or convert files that were fetched by hand, and keep it where all commands find it.

    `kinfolk data get femnist --from train --from test` converts what LEAF wrote. What is kept is never replaced: remove
    the file first.
    """
    from kinfolk.data.federation import DataError
    from kinfolk.data.sets.download import kept, obtain
    from kinfolk.data.sets.source import content_checksum

    entry = _entry(name)
    if entry.source is None:
        raise ConfigError(f"data={name!r} is made when it is used: there is nothing to get")
    for path in files or []:
        if not path.exists():
            raise ConfigError(f"--from {path} is not there")
    before = kept(entry.source, data_dir)
    try:
        arrays, path = obtain(entry.source, data_dir, files or [])
    except DataError as error:
        error.add_note(
            f"Its page is {entry.source.home}. Give --from once for each of several files: --from A --from B."
        )
        raise
    said = {
        "name": name,
        "file": str(path),
        "rows": len(arrays["client"]),
        "clients": int(arrays["client"].max()) + 1,
        "checksum": content_checksum(arrays),
        "checksum_is": _verdict(entry.source, arrays),
    }
    if as_json:
        emit("data get", said)
        return
    console.print(
        f"{name}: {said['rows']} rows, {said['clients']} client(s), {'there already' if path == before else 'kept'} in "
        f"{escape(str(path))}. Checksum "
        f"{said['checksum'][:12]}: {said['checksum_is']}.",
        highlight=False,
        soft_wrap=True,
    )


@data_app.command("describe")
def describe(name: Name, data_dir: DataDir = None, as_json: Json = False) -> None:
    """What a data set is: origin, terms, shape, how to get it by hand, and the options of its function.

    An experiment sets `scaling` and `test_fraction` in its table `[data]`, all other options in `[data.options]`.
    """
    from kinfolk.data.sets.download import kept, read_kept

    entry = _entry(name)
    options = {key: value.default for key, value in inspect.signature(entry.load).parameters.items()}
    said: dict[str, object] = {"name": name, "what": _title(entry), "here": _here(entry, data_dir)}
    if entry.source is not None:
        source = entry.source
        said |= {
            "home": source.home,
            "licence": source.licence,
            "files": [file.url or f"{file.name} (by hand)" for file in source.files],
            "checksum": source.checksum or "none is known",
            "by hand": source.remedy(data_dir),
        }
        if (path := kept(source, data_dir)) is not None:
            arrays = read_kept(source, path, data_dir)
            same = path.stem == source.name
            said["checksum_is"] = _verdict(source, arrays) if same else f"not compared: {path.name} is another file"
            said["arrays"] = {key: f"{part.dtype} {part.shape}" for key, part in arrays.items()}
    said["options"] = {key: value for key, value in options.items() if key != "directory"}
    said["about"] = inspect.cleandoc(entry.load.__doc__ or "")
    if as_json:
        emit("data describe", said)
        return
    for key, value in said.items():
        lines = [f"{k}: {v}" for k, v in value.items()] if isinstance(value, dict) else value
        text = "\n  ".join(["", *lines]) if isinstance(lines, list) else f" {lines}"
        console.print(f"[bold]{key.replace('_', ' ')}:[/bold]{escape(text)}", highlight=False, soft_wrap=True)


def _entry(name: str) -> BuiltIn:
    from kinfolk.data.sets.catalogue import BUILT_IN

    if name not in BUILT_IN:
        files = [key for key, entry in BUILT_IN.items() if entry.source is not None and entry.source.name == name]
        near = files or difflib.get_close_matches(name, BUILT_IN, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"data={name!r} is not one of {', '.join(BUILT_IN)}{hint}")
    return BUILT_IN[name]


def _verdict(source: Source, arrays: Arrays) -> str:
    """Whether rows are those that are published, in words."""
    from kinfolk.data.sets.download import other_checksum

    if not source.checksum:
        return "none is known to compare"
    return "another than expected" if other_checksum(source, arrays) else "as expected"


def _title(entry: BuiltIn) -> str:
    return "a federation of schools that is made, not downloaded" if entry.source is None else entry.source.title


def _licence(entry: BuiltIn) -> str:
    return "" if entry.source is None else entry.source.licence


def _here(entry: BuiltIn, directory: Path | None) -> str:
    """Whether it can be used now."""
    from kinfolk.data.sets.download import kept

    if entry.source is None:
        return "yes"
    path = kept(entry.source, directory)
    if path is None:
        return "no" if all(file.url for file in entry.source.files) else "no (by hand only)"
    if not zipfile.is_zipfile(path):
        return "broken: see `kinfolk data describe`"
    return "yes" if path.stem == entry.source.name else f"{path.name}"
