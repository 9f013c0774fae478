"""What is wrong with a CSV file, in words: its encoding, its line of names, lines that are longer or shorter."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinfolk.data.federation import DataError

SEPARATORS = (",", ";", "\t", "|")
CHUNK = 2**20


def require_text(path: Path) -> None:
    """Refuses what is no UTF-8 text, before anything makes values of it.

    `path`: the file.
    """
    with path.open("rb") as file:
        start = file.read(4)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"{path.name} is UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
        if start[:2] == b"\x1f\x8b":
            raise DataError(f"{path.name} is compressed (gzip): unpack it first")
        file.seek(0)
        place = 0
        while chunk := file.read(CHUNK):
            if (found := chunk.find(b"\0")) >= 0:
                raise DataError(
                    f"{path.name} holds a NUL byte (byte {place + found}), so it is no plain text: save it as UTF-8"
                )
            place += len(chunk)


def separator(path: Path) -> str:
    """What stands between the names in the first line: a comma, unless something else is there more often.

    `path`: the file.
    """
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = file.readline()
    return max(SEPARATORS, key=names.count)


def header(path: Path, between: str) -> list[str]:
    """The names in the first line, as they are written: a reader of tables renames those that stand twice.

    `path`: the file. `between`: the separator.
    """
    _, names = next(_lines(path, between), (0, []))
    return [name.strip() for name in names]


def trouble(path: Path, between: str) -> str:
    """Why a file could not be read as CSV, as far as this can be seen.

    `path`: the file. `between`: the separator.
    """
    try:
        for number, found in _ragged(path, between):
            return number_of_cells(number, found, len(header(path, between)))
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        return f"byte {error.start} is no UTF-8: save it as UTF-8 (often: iconv -f LATIN1 -t UTF-8)"
    except csv.Error as error:
        return f"{error}: correct the file"
    if text.count('"') % 2:
        return "a quotation mark is opened and never closed: correct the file"
    return ""


def require_whole_lines(path: Path, between: str) -> None:
    """Refuses lines with fewer cells than there are names: their last cells would count as missing.

    `path`: the file. `between`: the separator.
    """
    for number, found in _ragged(path, between):
        raise DataError(f"{path.name}: {number_of_cells(number, found, len(header(path, between)))}")


def number_of_cells(number: int, found: int, names: int) -> str:
    """A line that is too long or too short, in words."""
    return (
        f"line {number} has {found} cell(s), and the line of names has {names}: correct the line (a separator inside a "
        "cell needs quotation marks around it)"
    )


def _ragged(path: Path, between: str) -> Iterator[tuple[int, int]]:
    """The numbers of lines that are longer or shorter than the first, and how many cells they have."""
    names = 0
    for number, cells in _lines(path, between):
        names = names or len(cells)
        if cells and len(cells) != names:
            yield number, len(cells)


def _lines(path: Path, between: str) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter=between)
        for cells in lines:
            yield lines.line_num, cells


def without_names(names: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether the first line is a row rather than names: most names are like the values below them.

    `names`: the first line. `columns`: values below each, as text.

    >>> without_names(["34", "yes"], [["51", "40"], ["no", "yes"]]), without_names(["0", "1"], [["51"], ["40"]])
    (True, False)
    """
    counted = [str(k) for k in range(len(names) + 1)]
    if list(names) in (counted[:-1], counted[1:]):
        return False
    alike = sum(
        _is_number(name) and all(map(_is_number, values)) if _is_number(name) else name in values
        for name, values in zip(names, columns, strict=True)
        if values
    )
    return 2 * alike > len(names)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
