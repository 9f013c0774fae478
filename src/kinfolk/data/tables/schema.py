"""What a table's columns are, declared by the owner of the data: kinds, bounds, vocabularies. TOML is the text form.

Scaling, vocabularies and the list of classes come from here and never from the rows, so they need no account. What was
guessed from rows is marked `confirmed = false`: a simulation may use it, a release may not.

>>> ward = Column("ward", "category", values=("a", "b"))
>>> schema = Schema(Column("risk", "yes_no"), (Column("age", low=0, high=100), ward))
>>> schema.feature_names()
('age', 'ward=a', 'ward=b')
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfolk import limits, toml
from kinfolk.data.federation import DataError
from kinfolk.data.tables.words import NO, YES

KINDS = ("number", "category", "yes_no")
FEATURE_POLICIES = ("fill", "indicate")
TARGET_POLICIES = ("refuse", "drop")
NEEDS = {
    "survival": ("number", ("event", "edges")),
    "count": ("number", ()),
    "ordinal": ("category", ()),
    "labels": ("yes_no", ("labels",)),
}
"""Outcomes that a schema names: the kind of their target, and what else they need."""
EMPTY = ("values = []", 'missing = ""', "edges = []", "labels = []")
"""Lines that say nothing."""


class SchemaError(DataError):
    """A schema that cannot be used, with the remedy."""


@dataclass(frozen=True)
class Column:
    """One column, as its owner declares it."""

    name: str
    kind: str = "number"
    """`number` (between `low` and `high`), `category` (one of `values`) or `yes_no`."""
    low: float | None = None
    high: float | None = None
    """Bounds of a number. What lies outside is moved to the bound."""
    values: tuple[str, ...] = ()
    """The vocabulary of a category. A value that is not in it, in any case of letters, counts as none of them. Of
    `yes_no`: the words for no and for yes, if they are others; yes and no, 1 and 0, true and false are read as well."""
    missing: str = ""
    """A feature: `fill` (with the middle of the bounds; no category) or `indicate` (fill, and add a column that says
    so). The target: `refuse`, or `drop` the row."""
    unit: str = ""
    """What a number is measured in (`points`, `kg`), for errors in words; empty: nobody said."""
    confirmed: bool = True
    """False: guessed from the data. Change what is wrong and set it to true before a release."""

    def __post_init__(self) -> None:
        try:
            limits.settle(self)
        except toml.ConfigError as error:
            raise SchemaError(f"column {self.name!r}: {error}") from None
        if isinstance(self.values, str):
            raise SchemaError(f"column {self.name!r}: values={self.values!r} must be a list: write it in brackets")
        if self.kind not in KINDS:
            raise SchemaError(f"column {self.name!r}: kind={self.kind!r} is not one of {KINDS}")
        if self.kind == "number":
            if self.low is None or self.high is None:
                raise SchemaError(f"column {self.name!r} is a number and needs bounds: give low and high")
            if not self.low < self.high:
                raise SchemaError(f"column {self.name!r}: low={self.low} must be below high={self.high}")
        elif self.low is not None or self.high is not None:
            raise SchemaError(f"column {self.name!r}: low and high belong to a number, and this is a {self.kind}")
        if self.kind == "category" and len(self.values) < 2:
            raise SchemaError(f"column {self.name!r}: values={list(self.values)} needs at least two entries")
        if self.kind == "number" and self.values:
            raise SchemaError(f"column {self.name!r}: values belong to a category, and this is a number")
        if self.kind == "yes_no" and self.values:
            folded = [value.casefold() for value in self.values]
            if len(folded) != 2 or folded[0] in YES or folded[1] in NO:
                raise SchemaError(
                    f"column {self.name!r}: values={list(self.values)} of yes_no must be the word for no, then the "
                    "word for yes; leave them out where these are the words"
                )
        if len(set(self.values)) < len(self.values):
            raise SchemaError(f"column {self.name!r}: values={list(self.values)} names one twice")

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels of a target that is no number."""
        return ("no", "yes") if self.kind == "yes_no" and not self.values else self.values

    def feature_names(self) -> tuple[str, ...]:
        """The inputs of a model that this column becomes."""
        own = tuple(f"{self.name}={value}" for value in self.values) if self.kind == "category" else (self.name,)
        return (*own, f"{self.name} is missing") if self.missing == "indicate" else own


@dataclass(frozen=True)
class Schema:
    """A table: what to predict, from which columns, and whose row it is."""

    target: Column
    columns: tuple[Column, ...]
    client: str | None = None
    """The column that says whose row it is; None: every file is one client."""
    name: str | None = None
    """What the owner calls the data set, in all its tables and years: its releases add up under this name."""
    row: str | None = None
    """The column that a record is known by in every table and year (a visit's number)."""
    person: str | None = None
    """Or the column that a person is known by (a patient's number): all rows with one value are one person's. At
    example level a person, with all rows at a client, is then the unit."""
    rows_per_person: int | None = None
    """How many rows of a person count; public. None: 10. Of somebody with more some are left out."""
    outcome: str | None = None
    """What is predicted, where the target's kind does not say it: `survival`, `count`, `ordinal` or `labels`."""
    event: str | None = None
    """Of `survival`, whose target is a time: the column that says whether the event came then (yes), or whether
    nothing is known from then on (no)."""
    edges: tuple[float, ...] = ()
    """Of `survival`: where intervals end, in the time's unit; public. The last is the horizon."""
    labels: tuple[str, ...] = ()
    """Of `labels`: the columns, each yes or no. The target is yes_no, and says what they are called together."""

    def __post_init__(self) -> None:
        names = [column.name for column in (self.target, *self.columns)] + ([self.client] if self.client else [])
        names += [*self.labels, *([self.event] if self.event else [])]
        if self.row and self.person:
            raise SchemaError(f"row={self.row!r} and person={self.person!r}: name the one that accounts are to follow")
        if self.rows_per_person is not None and not self.person:
            raise SchemaError(f"rows_per_person={self.rows_per_person} needs person: name the column, or leave it out")
        limits.settle(self)
        self._check_outcome()
        names += [name for name in (self.row, self.person) if name and name != self.client]
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise SchemaError(f"column {twice[0]!r} is declared twice")
        if not self.columns:
            raise SchemaError("a schema needs at least one column to predict from")
        for column in self.columns:
            if column.missing not in ("", *FEATURE_POLICIES):
                raise SchemaError(
                    f"column {column.name!r}: missing={column.missing!r} is not one of {FEATURE_POLICIES}"
                )
        if self.target.missing not in ("", *TARGET_POLICIES):
            raise SchemaError(
                f"target {self.target.name!r}: missing={self.target.missing!r} is not one of {TARGET_POLICIES}"
            )

    def _check_outcome(self) -> None:
        """Refuses an outcome that is not declared as a whole."""
        if self.outcome is not None and self.outcome not in NEEDS:
            raise SchemaError(f"outcome={self.outcome!r} is not one of {tuple(NEEDS)}; others follow from the target")
        kind, needed = NEEDS.get(self.outcome or "", (self.target.kind, ()))
        if self.target.kind != kind:
            raise SchemaError(f"outcome={self.outcome!r} needs a target of kind={kind!r}: {self.target.name!r} is none")
        for key in ("event", "edges", "labels"):
            if bool(getattr(self, key)) != (key in needed):
                do = f"needs {key}: give it" if key in needed else f"has no {key}: leave it out"
                raise SchemaError(f"outcome={self.outcome!r} {do}")
        if self.edges and (self.edges[0] <= 0 or any(a >= b for a, b in itertools.pairwise(self.edges))):
            raise SchemaError(f"edges={list(self.edges)} must begin above 0 and rise: correct them")
        if self.outcome == "count" and (self.target.low != 0 or (self.target.high or 0) < 1):
            raise SchemaError(f"target {self.target.name!r} is a count: low must be 0, and high the most that counts")
        if self.outcome == "ordinal" and len(self.target.values) < 3:
            raise SchemaError(f"target {self.target.name!r}: two levels need no order; leave outcome out")
        if len(self.labels) == 1:
            raise SchemaError(f"labels={list(self.labels)}: one is a target of its own; leave outcome and labels out")

    @property
    def task(self) -> str:
        """What is predicted: a key of `outcomes.OUTCOMES`."""
        if self.outcome is not None:
            return self.outcome
        if self.target.kind == "number":
            return "number"
        return "binary" if len(self.target.classes) == 2 else "classes"

    @property
    def classes(self) -> tuple[str, ...]:
        """What a prediction has a chance for each of: classes, levels, labels, or intervals by their ends."""
        if self.edges:
            return tuple(f"{edge:g}" for edge in self.edges)
        return self.labels or self.target.classes

    @property
    def asked(self) -> tuple[str, ...]:
        """The columns that hold what is predicted."""
        if self.labels:
            return self.labels
        return (self.target.name, self.event) if self.event else (self.target.name,)

    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.feature_names())

    def unconfirmed(self) -> tuple[str, ...]:
        """Columns whose entries are guesses from the data."""
        return tuple(column.name for column in (self.target, *self.columns) if not column.confirmed)


def load(path: Path) -> Schema:
    """The schema in a file: TOML, or Frictionless Table Schema where it ends with `.json`."""
    if path.suffix.lower() == ".json":
        from kinfolk.data.tables import table_schema

        return table_schema.read_whole(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SchemaError(f"schema {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SchemaError(f"schema {path} cannot be read: byte {error.start} is no UTF-8; save it so") from None
    try:
        return from_toml(text)
    except ValueError as error:
        raise SchemaError(f"{path}: {error}") from None


def from_toml(text: str) -> Schema:
    """The schema that a TOML text describes."""
    return toml.from_toml(text, Schema)


def to_toml(schema: Schema) -> str:
    """The schema as TOML, with a word on what has to be confirmed."""
    guesses = schema.unconfirmed()
    head = ["# What the columns of a table are. Bounds, values and kinds listed here count as public."]
    if guesses:
        head += [
            "# Entries with confirmed = false were guessed from the data: replace them by what is known without",
            "# looking (an age lies between 0 and 120), then set confirmed = true. A release is refused until then.",
        ]
    lines = [line for line in toml.to_toml(schema).splitlines() if line not in EMPTY]
    return "\n".join([*head, "", *lines]).replace("\n\n\n", "\n\n") + "\n"


def nearest(name: str, names: Iterable[str]) -> str:
    """A suggestion for a name that is not there."""
    known = list(names)
    folded = {other.lower(): other for other in reversed(known)}
    near = difflib.get_close_matches(name.lower(), folded, 1, 0.5)
    return f"did you mean {folded[near[0]]!r}?" if near else f"there are: {shortened(known)}"


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Names in a row; the rest is counted."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + rest
