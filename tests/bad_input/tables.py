"""Tables as people bring them, and what has to happen: a refusal, a note, or a table that is read."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Rows = list[list[str]]


@dataclass(frozen=True)
class Case:
    """One way to be wrong (or right), and the words that must be said about it."""

    name: str
    write: Callable[[Path], object]
    """Writes `lyon.csv` into a folder, in which a good `graz.csv` is already."""
    refused: str = ""
    """A pattern of the message; empty: the table is read."""
    noted: str = ""
    """A pattern of a note, where it is read."""


def rows() -> Rows:
    """A good table: every kind of column."""
    chance = random.Random(3)
    found = [["age", "sex", "pressure", "smoker", "risk"]]
    for _ in range(40):
        age, sex, smokes = chance.randint(30, 85), chance.choice("mf"), chance.random() < 0.3
        risk = "high" if age / 60 + smokes + chance.gauss(0, 0.3) > 1.3 else "low"
        found.append([str(age), sex, f"{chance.gauss(130, 18):.1f}", "yes" if smokes else "no", risk])
    return found


def text(table: Rows, between: str = ",", end: str = "\n") -> str:
    return end.join(between.join(row) for row in table) + end


def column(name: str, value: Callable[[int, str], str]) -> Rows:
    """The good table with other cells in a column."""
    table = rows()
    place = table[0].index(name)
    return [table[0], *([*r[:place], value(k, r[place]), *r[place + 1 :]] for k, r in enumerate(table[1:]))]


def added(name: str, value: Callable[[int], str]) -> Rows:
    """The good table with one more column."""
    table = rows()
    return [[*table[0], name], *([*row, value(k)] for k, row in enumerate(table[1:]))]


def once(value: str, place: int = 7) -> Callable[[int, str], str]:
    """The same cells but for one."""
    return lambda k, cell: value if k == place else cell


def as_text(table: Rows, between: str = ",", end: str = "\n") -> Callable[[Path], object]:
    return lambda folder: (folder / "lyon.csv").write_bytes(text(table, between, end).encode())


def as_bytes(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "lyon.csv").write_bytes(content)


GOOD = text(rows())


def files() -> Iterator[Case]:
    """What is wrong with the file."""
    cut = GOOD.encode()
    yield Case("empty file", as_bytes(b""), "lyon.csv is empty")
    yield Case("header only", as_bytes(b"age,sex,pressure,smoker,risk\n"), "no rows")
    yield Case("blank lines only", as_bytes(b"\n\n\n"), "lyon.csv")
    yield Case("nul byte", as_bytes(cut.replace(b"low", b"l\0w", 1)), "NUL byte")
    yield Case("nul bytes only", as_bytes(bytes(300)), "NUL byte")
    for name in ("utf-16", "utf-16-le", "utf-32"):
        yield Case(name, as_bytes(GOOD.encode(name)), "UTF-16|NUL")
    yield Case("latin-1", as_bytes(GOOD.replace("smoker", "räuchert").encode("latin-1")), "no UTF-8")
    yield Case("latin-1 in a cell", as_bytes(GOOD.replace("high", "hôch").encode("latin-1")), "no UTF-8")
    yield Case("gzip", as_bytes(gzip.compress(cut)), "compressed")
    yield Case("a picture", as_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(1, 255)) * 3), "lyon.csv")
    yield Case("json", as_bytes(b'{"age": [1, 2]}\n'), "lyon.csv")
    yield Case("html", as_bytes(b"<html><body>\n<p>no table</p>\n</body></html>\n"), "lyon.csv")
    yield Case("cut in a line", as_bytes(cut[: len(cut) // 2 + 3]), "cell")
    yield Case("a long line", as_bytes(cut.replace(b",low\n", b",low,low\n", 1)), "line .* has 6 cell")
    yield Case("a short line", as_bytes(cut.replace(b",low\n", b"\n", 1)), "line .* has 4 cell")
    yield Case("an open quote", as_bytes(cut.replace(b",low\n", b',"low\n', 1)), "lyon.csv")
    yield Case("no line of names", as_bytes(cut.split(b"\n", 1)[1]), "no line of names")
    yield Case("byte order mark", as_bytes(b"\xef\xbb\xbf" + cut))
    yield Case("old Mac lines", as_bytes(cut.replace(b"\n", b"\r")), "lyon.csv")
    yield Case("no last newline", as_bytes(cut.rstrip(b"\n")))
    yield Case("quoted cells", as_bytes(cut.replace(b"high", b'"high"')))
    for between, name in ((",", "commas"), (";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        for end, also in (("\n", ""), ("\r\n", " and CRLF")):
            yield Case(name + also, as_text(rows(), between, end))
    yield Case("a folder", lambda folder: (folder / "lyon.csv").mkdir(), "is a folder")
    yield Case("a pipe", lambda folder: os.mkfifo(folder / "lyon.csv"), "no plain file")
    yield Case("a dangling link", lambda folder: (folder / "lyon.csv").symlink_to("gone.csv"), "is a link to")
    yield Case("nothing", lambda folder: None, "is not there")
    yield Case("a link to itself", lambda folder: (folder / "lyon.csv").symlink_to("lyon.csv"), "lyon.csv")


def columns() -> Iterator[Case]:
    """What is wrong with names and columns."""
    table = rows()
    twice = [[*row, row[0]] for row in table]
    yield Case("a column twice", as_text(twice), "", "several columns are called 'age'")
    yield Case("the target twice", as_text([[*row, row[-1]] for row in table]), "several columns 'risk'")
    copied = [[*row, row[-1] if k else "risk_x"] for k, row in enumerate(table)]
    yield Case("a copy of the target", as_text(copied), "", "risk_x")
    yield Case("no target", as_text([row[:-1] for row in table]), "no column 'risk'")
    yield Case("the target only", as_text([row[-1:] for row in table]), "", "not in lyon.csv")
    yield Case("names in capitals", as_text([[c.upper() for c in table[0]], *table[1:]]), "no column 'risk'")
    yield Case("a name in capitals", as_text([["AGE", *table[0][1:]], *table[1:]]), "", "differ by case")
    yield Case("names with spaces", as_text([[f" {c} " for c in table[0]], *table[1:]]))
    yield Case("an empty name", as_text(added("", lambda k: str(k % 7))))
    yield Case("a long name", as_text(added("x" * 10_000, lambda k: str(k % 7))), "more than 200")
    yield Case("a name with a line in it", as_text(added('"two\nlines"', lambda k: str(k % 7))))
    yield Case("an identifier", as_text(added("patient_id", lambda k: str(90_000 + 17 * k))), "", "patient_id")
    yield Case("a counter", as_text(added("serial", lambda k: str(k))), "", "serial")
    yield Case("dates", as_text(added("day", lambda k: f"2024-{1 + k % 12:02}-{1 + k % 28:02}")), "", "day")
    yield Case("free text", as_text(added("note", lambda k: f"remark {k} of {k * k}")), "", "note")
    yield Case("a constant", as_text(added("site", lambda k: "lyon")), "", "site")
    yield Case("an empty column", as_text(added("later", lambda k: "")), "", "later")
    yield Case("a million characters", as_text(added("note", lambda k: "x" * 10**6 if k == 3 else "y")), "", "note")
    yield Case(
        "200 columns more",
        as_text([r + [f"c{n}" if not k else str(k * n % 13) for n in range(200)] for k, r in enumerate(table)]),
    )


def cells() -> Iterator[Case]:
    """What is wrong with single cells, and with labels."""
    for value in ("1e308", "-1e308", "1e200", "123456789012345"):
        yield Case(f"age {value}", as_text(column("age", once(value))), "", "far from all others|moved")
    for value in ("inf", "-inf", "Infinity"):
        yield Case(f"age {value}", as_text(column("age", once(value))), "infinite")
    for value in ("old", "4 2", "0x1F", "--", "1.2.3", "₄₂", "=A1+1", "#N/A"):
        yield Case(f"age {value}", as_text(column("age", once(value))), "'age' holds numbers")
    for value in ("", "NA", "NaN", "nan", "null", "NULL", "None", "?", "N/A"):
        yield Case(f"age {value!r}", as_text(column("age", once(value))))
        yield Case(f"smoker {value!r}", as_text(column("smoker", once(value))))
    yield Case("thousands", as_text(column("age", lambda k, c: f'"1,{c}4"')), "nothing between thousands")
    yield Case("decimal commas", as_text(column("pressure", lambda k, c: c.replace(".", ",")), ";"), "decimals")
    yield Case("spaces around cells", as_text(column("sex", lambda k, c: f" {c} ")))
    yield Case(
        "1 and 0 for m and f", as_text(column("sex", lambda k, c: "10"["mf".index(c)])), "", "taken for the same"
    )
    yield Case("M and F", as_text(column("sex", lambda k, c: c.upper())), "", "taken for the same")
    yield Case("1 and 0 for yes and no", as_text(column("smoker", lambda k, c: str(int(c == "yes")))), "", "smoker")
    yield Case("TRUE and FALSE", as_text(column("smoker", lambda k, c: str(c == "yes").upper())))
    yield Case("maybe", as_text(column("smoker", once("maybe"))))
    yield Case("High and low", as_text(column("risk", lambda k, c: c.title())), "", "taken for the same")
    yield Case("1 and 0 for high and low", as_text(column("risk", lambda k, c: str(int(c == "high")))), "", "the same")
    yield Case(
        "other labels", as_text(column("risk", lambda k, c: {"high": "severe", "low": "mild"}[c])), "", "classes"
    )
    yield Case("a third label", as_text(column("risk", once("medium"))), "", "lyon.csv also has 'medium'")
    yield Case("one class", as_text(column("risk", lambda k, c: "high")), "", "in every row")
    yield Case("an empty target", as_text(column("risk", once(""))), "", "without a target")
    yield Case("only empty targets", as_text(column("risk", lambda k, c: "")))
    yield Case("text as target", as_text(column("risk", lambda k, c: f"case {k}")), "different values")


def cases() -> list[Case]:
    return [*files(), *columns(), *cells()]
