"""What a report says, apart from how it looks: words, tables and charts. HTML and Markdown both read this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Value:
    """A number of the run directory as it is shown, and as it is."""

    text: str
    raw: float
    note: str = ""
    """A word that must stand beside the number, such as `simulated`."""

    def __str__(self) -> str:
        return f"{self.text} ({self.note})" if self.note else self.text


Words = tuple[str | Value, ...]
"""A sentence, in which numbers keep their exact value."""


@dataclass(frozen=True)
class Paragraph:
    """Some sentences; a `tone` other than plain marks a warning or what matters most."""

    words: Words
    tone: str = "plain"


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Words, ...]


@dataclass(frozen=True)
class Code:
    """Text to be copied or read as it is."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table; numbers in it keep their exact value."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | Value, ...], ...]


@dataclass(frozen=True)
class Series:
    """Points of one kind in a chart: `line`, `points`, `stems` (from zero), `bars` (stems beside those of other series)
    or `level` (one height, all across)."""

    name: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...]
    """What each point is, in words with its numbers."""
    kind: str = "line"
    spreads: tuple[float, ...] = ()
    """How far a whisker reaches up and down from each point; empty: there are none."""


@dataclass(frozen=True)
class Chart:
    """A chart, its text alternative and the table of its numbers."""

    title: str
    summary: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    table: Table
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False
    """Whether the upward axis must begin at zero."""
    shaded: tuple[float, float, str] | None = None
    """A part of the x axis to point out, and its name."""
    names: tuple[str, ...] = ()
    """What stands at 1, 2, ... of the x axis, instead of numbers."""


@dataclass(frozen=True)
class Details:
    """Something to open on demand."""

    summary: str
    parts: tuple[Part, ...]
    printed: bool = False
    """Whether it is open on paper, where nobody can open it."""


@dataclass(frozen=True)
class Facts:
    """A few numbers or words that a reader looks for first: pairs of a name and a value."""

    pairs: tuple[tuple[str, str | Value], ...]


Part = Paragraph | Items | Code | Table | Chart | Details | Facts


@dataclass(frozen=True)
class Section:
    """A part of the page with a title."""

    anchor: str
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Report:
    """The whole report."""

    title: str
    subtitle: str
    label: str
    """Simulation, release or not private, in a word or two."""
    sections: tuple[Section, ...]


def number(value: float, note: str = "") -> Value:
    """A number shown with four digits.

    >>> str(number(2.99999, "simulated"))
    '3 (simulated)'
    """
    return Value(f"{value:.4g}", float(value), note)
