"""Tables from files: CSV, Parquet and Arrow, one file with a client column or one file per client."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kinfolk.data.federation import DataError
from kinfolk.data.tables import csv_text
from kinfolk.data.tables.schema import nearest, shortened
from kinfolk.data.tables.words import GAPS

if TYPE_CHECKING:
    import polars as pl

MISSING = GAPS
"""What stands for a missing value."""
LONGEST_NAME = 200
"""Characters of a column's name: longer ones are text that slipped into the first line."""
ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
}


@dataclass(frozen=True)
class TableFile:
    """One file's rows, as they were read."""

    path: Path
    frame: pl.DataFrame = field(repr=False)
    first: int
    """What people call the first row: 2 in a CSV file, after the line of names, and 1 elsewhere."""
    twice: tuple[str, ...] = ()
    """Names that stand above several columns, of which the first is in `frame`."""

    def row(self, number: int) -> str:
        """Where a row stands, for messages."""
        return f"{'line' if self.first == 2 else 'row'} {number + self.first} of {self.path.name}"


def polars() -> ModuleType:
    """The library that reads tables, or an error that names the extra."""
    try:
        import polars
    except ImportError as error:
        raise DataError("reading tables needs polars: pip install 'kinfolk[tables]'") from error
    return polars


def read(path: Path) -> TableFile:
    """A file as a table; its ending says how."""
    pl = polars()
    kind = ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise DataError(f"{path.name} is no table by its name: the endings that can be read are {', '.join(ENDINGS)}")
    _require_file(path)
    try:
        if kind in ("csv", "tsv"):
            return _read_csv(path, csv_text.separator(path) if kind == "csv" else "\t")
        frame = pl.read_parquet(path) if kind == "parquet" else pl.read_ipc(path)
        frame = frame.rename({name: name.strip() for name in frame.columns})
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error.strerror or error}") from error
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{path.name} cannot be read as {kind} ({str(error).splitlines()[0]}): write it again, or name it by what "
            "it is"
        ) from error
    return TableFile(path, _with_rows(path, frame), 1)


def _require_file(path: Path) -> None:
    """Refuses what is not there, and what is there and no file."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: name the tables in it")
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path} is a link to {path.readlink()}, which is not there")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no plain file: copy what it gives into one")
    if not path.exists():
        others = [p.name for p in path.parent.glob("*") if p.suffix.lower() in ENDINGS] if path.parent.is_dir() else []
        hint = nearest(path.name, sorted(others)) if others else f"there is no table in {path.parent}"
        raise DataError(f"{path} is not there; {hint}")


def _read_csv(path: Path, between: str) -> TableFile:
    """A file of lines; a name that stands above several columns is taken for the first of them."""
    pl = polars()
    csv_text.require_text(path)
    try:
        names = csv_text.header(path, between)
        frame = pl.read_csv(path, separator=between, null_values=list(MISSING), infer_schema_length=None)
    except (pl.exceptions.PolarsError, UnicodeDecodeError, csv.Error) as error:
        if not path.stat().st_size:
            raise DataError(f"{path.name} is empty: give a file with a line of names and rows below it") from None
        why = csv_text.trouble(path, between) or f"{str(error).splitlines()[0]}: correct the file"
        raise DataError(f"{path.name} cannot be read as CSV: {why}") from error
    frame = _with_rows(path, frame)
    if frame[:, -1].null_count():
        csv_text.require_whole_lines(path, between)
    below = frame.head(50).cast(pl.String)
    if csv_text.without_names(names, [column.drop_nulls().to_list() for column in below]):
        raise DataError(
            f"{path.name} seems to have no line of names, because its first line is like the others "
            f"({shortened(names, 4)}): put the columns' names above it"
        )
    counts = Counter(names)
    kept = dict(zip(reversed(names), reversed(frame.get_columns()), strict=True))
    frame = pl.DataFrame([kept[name].alias(name) for name in counts])
    return TableFile(path, frame, 2, tuple(sorted(name for name in counts if counts[name] > 1)))


def as_written(file: TableFile) -> pl.DataFrame:
    """The cells of a CSV file as they are written, `?` and 007 too; other files' as they were read."""
    if file.first != 2:
        return file.frame
    kind = ENDINGS[file.path.suffix.lower()]
    between = csv_text.separator(file.path) if kind == "csv" else "\t"
    frame = polars().read_csv(file.path, separator=between, infer_schema=False)
    names = csv_text.header(file.path, between)
    return frame if file.twice else frame.rename(dict(zip(frame.columns, names, strict=True)))


def _with_rows(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    if not frame.height:
        raise DataError(f"{path.name} has no rows below its line of names")
    longest = max(frame.columns, key=len)
    if len(longest) > LONGEST_NAME:
        raise DataError(
            f"{path.name}: column {clipped(longest)!r} has a name of more than {LONGEST_NAME} characters: shorten it"
        )
    return frame


def read_all(paths: Sequence[Path]) -> list[TableFile]:
    """All files; names must differ, because a file without a client column is a client by its name."""
    if not paths:
        raise DataError("no table was given")
    stems = [path.stem for path in paths]
    twice = sorted({stem for stem in stems if stems.count(stem) > 1})
    if twice:
        raise DataError(f"two files are called {twice[0]!r}: rename one")
    return [read(path) for path in paths]


def client_ids(file: TableFile, client: str | None, several: bool) -> pl.Series:
    """Whose row it is, for every row of a file."""
    pl = polars()
    if client is None:
        return pl.Series("client", [file.path.stem], dtype=pl.String).new_from_index(0, file.frame.height)
    require_column(file, client, "client", "or leave --client out: then every file is one client" if several else "")
    ids = canonical(file.frame[client])
    if ids.null_count():
        row = int(ids.is_null().arg_max() or 0)
        raise DataError(
            f"column {client!r} says whose row it is, and is empty in {file.row(row)}: fill it in, or drop it"
        )
    return ids


def require_column(file: TableFile, name: str, role: str, remedy: str = "") -> None:
    """Refuses a table that lacks a column, with the nearest name it has."""
    if name not in file.frame.columns:
        tail = f" ({remedy})" if remedy else ""
        raise DataError(f"{file.path.name} has no column {name!r} ({role}); {nearest(name, file.frame.columns)}{tail}")
    if name in file.twice:
        raise DataError(
            f"{file.path.name} has several columns {name!r} ({role}), and one would give away or contradict the other: "
            "take all but one out"
        )


def not_plain(series: pl.Series) -> bool:
    """Whether a column holds lists, records or bytes, which nobody can scale."""
    pl = polars()
    return series.dtype.is_nested() or series.dtype in (pl.Binary, pl.Object)


def groups_by(column: str, files: Sequence[Path], client: str | None) -> dict[str, str]:
    """Each client's group, which a column names in all of its rows; public, like the client's own name.

    `client`: the column that says whose row it is; None: every file is one client.
    """
    found: dict[str, str] = {}
    for file in read_all(files):
        require_column(file, column, "relation")
        ids, groups = client_ids(file, client, len(files) > 1), canonical(file.frame[column])
        pairs = zip(ids.to_list(), groups.to_list(), strict=True)
        for row, (name, group) in enumerate(pairs):
            if group is None:
                raise DataError(f"column {column!r} names the client's group, and is empty in {file.row(row)}")
            if found.setdefault(name, group) != group:
                raise DataError(
                    f"client {name!r} is in group {found[name]!r} and, in {file.row(row)}, in {group!r}: a column that "
                    "names groups must be the same in all rows of a client"
                )
    return found


def canonical(series: pl.Series) -> pl.Series:
    """Values as text, the same whatever type a file gave them: 3, 3.0 and "3.0" are all "3", true is "yes"."""
    pl = polars()
    if not_plain(series):
        raise DataError(f"column {series.name!r} holds {series.dtype}: only numbers, text and yes or no can be used")
    if series.dtype == pl.Boolean:
        return series.replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)
    if series.dtype.is_float():
        series = series.fill_nan(None)
    text = series.cast(pl.String).str.strip_chars().str.replace(r"^(-?\d+)\.0+$", "$1")
    gaps = text.is_in([*MISSING])
    return text.set(gaps, None) if gaps.any() else text


def parsed(series: pl.Series) -> tuple[pl.Series, pl.Series]:
    """A column as numbers, null where there are none, and the places of text that is no number."""
    pl = polars()
    if series.dtype.is_numeric():
        found = series if series.dtype == pl.Float64 else series.cast(pl.Float64)
        return found.fill_nan(None) if found.is_nan().any() else found, pl.Series([], dtype=pl.UInt32)
    text = canonical(series) if series.dtype != pl.Boolean else series.cast(pl.Int8).cast(pl.String)
    found = text.cast(pl.Float64, strict=False).fill_nan(None)
    return found, (found.is_null() & text.is_not_null()).arg_true()


MARKED = re.compile(r"[-+]?\d{1,3}([ ,.'\u2019\u00a0\u202f]\d{3})+(,\d+)?|[-+]?\d+,\d+")
"""Numbers as people write them, with marks between thousands or a comma for decimals."""
PLAIN_NUMBERS = "numbers are written with a point for decimals and nothing between thousands (1234.5)"


def no_numbers(series: pl.Series, bad: pl.Series, file: TableFile) -> str:
    """What to say about text among numbers, and where it is."""
    values = [clipped(str(value)) for value in series.gather(bad).unique(maintain_order=True).to_list()]
    hint = f"{PLAIN_NUMBERS}; " if any(MARKED.fullmatch(value) for value in values) else ""
    return (
        f"column {series.name!r} holds numbers, but {values[0]!r} in {file.row(int(bad[0]))} is none "
        f"({len(bad)} such row(s): {shortened(values, 3)}): {hint}correct the file, or declare the column as a "
        'category (kind = "category") in the schema'
    )


def clipped(text: str, most: int = 40) -> str:
    """A cell as messages show it: not whole, if it is long."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def numbers(series: pl.Series, file: TableFile) -> pl.Series:
    """A column as numbers, missing values as null; text among them is an error that says where."""
    found, bad = parsed(series)
    if len(bad):
        raise DataError(no_numbers(series, bad, file))
    infinite = found.is_infinite().fill_null(False).arg_true()
    if len(infinite):
        raise DataError(
            f"column {series.name!r} is infinite in {file.row(int(infinite[0]))}: correct it, or leave it empty"
        )
    return found
