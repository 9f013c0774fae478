"""Tables from files: CSV, Parquet and Arrow, one file with a client column or one file per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kinfolk.data.federation import DataError
from kinfolk.data.tables.schema import nearest, shortened
from kinfolk.data.tables.words import GAPS

if TYPE_CHECKING:
    import polars as pl

MISSING = GAPS
"""What stands for a missing value."""
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
    frame: pl.DataFrame
    first: int
    """What people call the first row: 2 in a CSV file, after the line of names, and 1 elsewhere."""

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
    if not path.is_file():
        others = [p.name for p in path.parent.glob("*") if p.suffix.lower() in ENDINGS] if path.parent.is_dir() else []
        hint = nearest(path.name, sorted(others)) if others else f"there is no table in {path.parent}"
        raise DataError(f"{path} is not there; {hint}")
    try:
        if kind in ("csv", "tsv"):
            separator = _separator(path) if kind == "csv" else "\t"
            frame = pl.read_csv(path, separator=separator, null_values=list(MISSING), infer_schema_length=None)
        else:
            frame = pl.read_parquet(path) if kind == "parquet" else pl.read_ipc(path)
        frame = frame.rename({name: name.strip() for name in frame.columns})
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path.name} cannot be read as {kind}: {str(error).splitlines()[0]}") from error
    if not frame.height:
        raise DataError(f"{path.name} has no rows")
    return TableFile(path, frame, 2 if kind in ("csv", "tsv") else 1)


def _separator(path: Path) -> str:
    """Comma, or what stands in the line of names instead of it."""
    with path.open(encoding="utf-8", errors="replace") as file:
        names = file.readline()
    return max((",", ";", "\t"), key=names.count)


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


def not_plain(series: pl.Series) -> bool:
    """Whether a column holds lists, records or bytes, which nobody can scale."""
    pl = polars()
    return series.dtype.is_nested() or series.dtype in (pl.Binary, pl.Object)


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


def numbers(series: pl.Series, file: TableFile) -> pl.Series:
    """A column as numbers, missing values as null; text among them is an error that says where."""
    pl = polars()
    if series.dtype.is_numeric():
        found = series.cast(pl.Float64).fill_nan(None)
    else:
        text = canonical(series) if series.dtype != pl.Boolean else series.cast(pl.Int8).cast(pl.String)
        found = text.cast(pl.Float64, strict=False).fill_nan(None)
        bad = (found.is_null() & text.is_not_null()).arg_true()
        if len(bad):
            values = text.gather(bad).unique(maintain_order=True).to_list()
            raise DataError(
                f"column {series.name!r} holds numbers, but {text[bad[0]]!r} in {file.row(int(bad[0]))} is none "
                f"({len(bad)} such row(s): {shortened(values, 3)}): correct the file, or declare the column as a "
                'category (kind = "category") in the schema'
            )
    infinite = found.is_infinite().fill_null(False).arg_true()
    if len(infinite):
        raise DataError(
            f"column {series.name!r} is infinite in {file.row(int(infinite[0]))}: correct it, or leave it empty"
        )
    return found
