"""Which federation, in the words of an experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kinfolk import limits


@dataclass(frozen=True)
class DataChoice:
    """Which federation: a built-in one, a function of one's own, or tables."""

    name: str = "synthetic_schools"
    """The data set's name: one that is built in or registered (`register_dataset`), a function that returns the
    federation as `package.module:function`, or what its owner calls the tables."""
    scaling: str = "bounds"
    """How a built-in set's features are scaled, `bounds` (public) or `as_published`."""
    test_fraction: float = 0.2
    """Share of each client's rows that is kept for testing."""
    pooled: bool = False
    """All clients' rows put together, as if one client had them: a reference that no federation can have."""
    files: tuple[str, ...] = ()
    """Tables to read (CSV, Parquet, Arrow), as seen from the directory in which training was begun."""
    client: str | None = None
    """The column that says whose row it is; None: every file is one client."""
    target: str | None = None
    """The column to predict; None: as the schema says."""
    schema: str | None = None
    """The file that declares the columns; None: drafted from the data, which only a simulation may do."""
    directory: str | None = None
    """Where the files of built-in sets lie; None: where KINFOLK_DATA says, else they are downloaded."""
    options: dict[str, Any] = field(default_factory=dict)
    """What else the set's function is told (`kinfolk data describe` shows it), where that differs from its defaults."""
    given: bool = False
    """Whether it was a federation that `run` was given as an object: no name finds it, and `resume` needs it again."""

    def __post_init__(self) -> None:
        limits.settle(self)
