"""From what a person fills in to a command of the command line: the pages have no way of their own to do anything.

Whatever is filled in stands behind `--option=`, and files behind `--`, so that no text can become another option. What
is wrong with it is for the command to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kinfolk.data.federation import DataError
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.read import ENDINGS, read
from kinfolk.data.tables.schema import Column, Schema, SchemaError
from kinfolk.files import write_whole

SCHEMA, RUNS = "schema.toml", "runs"
Form = Mapping[str, Sequence[str]]
"""What was filled in: for every field its values."""


@dataclass(frozen=True)
class Project:
    """What is being worked on."""

    folder: Path
    """Where the tables are; the schema and the runs go there too."""
    files: tuple[str, ...] = ()
    """Names of the tables that were chosen."""
    columns: tuple[str, ...] = ()
    """Columns of the first of them."""
    target: str = ""
    client: str = ""
    """The column that says whose row it is; empty: every file is one client."""

    @property
    def schema(self) -> Path:
        """Where the schema is."""
        return self.folder / SCHEMA

    @property
    def runs(self) -> list[str]:
        """The runs that are there, the newest last."""
        found = [path.parent for path in (self.folder / RUNS).glob("*/public") if not path.parent.is_symlink()]
        return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime)]

    @property
    def comparisons(self) -> list[str]:
        """The pages that comparisons ended with, the newest last."""
        return sorted(path.name for path in (self.folder / RUNS).glob("compare-*.html"))


def tables(folder: Path) -> list[str]:
    """The files of a folder that can be read as tables."""
    return sorted(path.name for path in folder.iterdir() if path.suffix.lower() in ENDINGS and path.is_file())


def one(form: Form, field: str) -> str:
    """A field's only value, without the spaces around it."""
    return (form.get(field) or [""])[0].strip()


def chosen(project: Project, form: Form) -> Project:
    """With the tables that were ticked: only files of the folder can be."""
    files = tuple(name for name in tables(project.folder) if name in form.get("file", ()))
    if not files:
        raise DataError("tick at least one table")
    columns = tuple(read(project.folder / files[0]).frame.columns)
    return replace(project, files=files, columns=columns, target="", client="")


def described(project: Project, form: Form) -> Project:
    """With what is to be predicted, and whose row it is."""
    _files(project)
    target, client = one(form, "target"), one(form, "client")
    for name in filter(None, (target, client)):
        if name not in project.columns:
            raise DataError(f"{name!r} is no column of {project.files[0]}")
    if not target:
        raise DataError("choose the column that is to be predicted")
    return replace(project, target=target, client=client)


def draft(project: Project) -> list[str]:
    """`kinfolk schema`."""
    client = [f"--client={project.client}"] if project.client else []
    return ["schema", f"--target={project.target}", *client, f"--output={SCHEMA}", "--", *_files(project)]


def comparison(project: Project, form: Form) -> list[str]:
    """`kinfolk compare`: simulations, which cost nothing."""
    budgets = re.split(r"[\s,;]+", one(form, "epsilon"))
    words = [f"--epsilon={budget}" for budget in budgets if budget]
    return ["compare", f"--schema={SCHEMA}", f"--output={RUNS}", *words, "--", *_files(project)]


def release(project: Project, form: Form) -> list[str]:
    """`kinfolk train` without a seed: spends the budget. Every check is the command's own."""
    fields = {"--name": "name", "--epsilon": "epsilon", "--promise": "promise", "--disjoint-because": "disjoint"}
    words = [f"{option}={value}" for option, field in fields.items() if (value := one(form, field))]
    if one(form, "spend") != "yes":
        raise DataError("tick the box: a release spends the budget, and nobody can take that back")
    return ["train", f"--schema={SCHEMA}", f"--output={RUNS}", *words, "--", *_files(project)]


def report(project: Project, form: Form) -> list[str]:
    """`kinfolk report`, for a run that is there."""
    run = one(form, "run")
    if run not in project.runs:
        raise DataError(f"run={run!r} is not there")
    private = ["--with-private"] if one(form, "private") == "yes" else []
    return ["report", *private, f"--output={RUNS}/{run}/{report_name(bool(private))}", "--", f"{RUNS}/{run}"]


def report_name(private: bool) -> str:
    """The file that a report is written to."""
    return "report-private.html" if private else "report.html"


def account() -> list[str]:
    """`kinfolk ledger show`: what was spent and promised so far."""
    return ["ledger", "show"]


def _files(project: Project) -> list[str]:
    if not project.files:
        raise DataError("choose tables first")
    return list(project.files)


def confirm(project: Project, form: Form) -> None:
    """Writes the schema with what was filled in for each column, if it is one."""
    old = schemas.load(project.schema)
    target, *columns = [_column(column, k, form) for k, column in enumerate((old.target, *old.columns))]
    new = replace(old, target=target, columns=tuple(columns), name=one(form, "name") or old.name)
    write_whole(project.schema, schemas.to_toml(new).encode())


def _column(old: Column, place: int, form: Form) -> Column:
    def field(name: str) -> str:
        return one(form, f"{name}.{place}")

    kind = field("kind") or old.kind
    try:
        low, high = (float(field(name)) if kind == "number" and field(name) else None for name in ("low", "high"))
    except ValueError:
        raise SchemaError(
            f"column {old.name!r}: low={field('low')!r} and high={field('high')!r} must be numbers"
        ) from None
    values = tuple(line.strip() for line in field("values").splitlines() if line.strip()) if kind != "number" else ()
    confirmed = field("confirmed") == "yes"
    return replace(old, kind=kind, low=low, high=high, values=values, confirmed=confirmed)


def loaded(project: Project) -> Schema | None:
    """The schema, where there is one."""
    return schemas.load(project.schema) if project.schema.exists() else None
