"""What a built-in data set is: where its files come from, how they become arrays, and what these must be like."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from kinfolk.data.given_rows import DataError

Arrays = dict[str, np.ndarray]
CONTENT = ("x", "indices", "indptr", "event", "time", "y", "labels", "label_starts", "client")
"""The arrays that a checksum covers, in this order."""
PER_ROW = ("x", "event", "time", "y", "client", "is_test")
"""The arrays that have one entry per row, where rows are not sparse."""
STARTS = {"indptr": ("indices", "x"), "label_starts": ("labels",)}
"""Where each row begins in those that have several per row, and where the last ends."""


@dataclass(frozen=True)
class File:
    """A file of a data set, as it is published."""

    name: str
    """What it is called."""
    url: str = ""
    """Where it can be downloaded; empty: by hand only."""
    digest: str = ""
    """`sha256:...` or `md5:...`, where its publisher or others state it."""


@dataclass(frozen=True)
class Facts:
    """What the arrays of a data set are like, whoever converted them."""

    features: tuple[int, ...] = ()
    """The shape of a row, of `x` itself where rows are not sparse; empty: not known."""
    clients: int = 0
    """How many clients there are; 0: not always as many."""
    labels: int = 0
    """How many labels there are, numbers from 0; 0: targets are no labels."""
    gaps: bool = False
    """Whether NaN stands for what is missing; else every number is finite."""
    halves: bool = False
    """Whether there must be rows for training and rows for testing."""


@dataclass(frozen=True)
class Source:
    """A data set's origin, and how its files become arrays."""

    name: str
    """`NAME.npz` is what is kept."""
    title: str
    """What it is, in one line: what is predicted, and what makes a client."""
    home: str
    """The page to read."""
    licence: str
    """Its terms."""
    files: tuple[File, ...]
    """As published; all of them are needed."""
    convert: Callable[[Sequence[Path]], Arrays]
    """From these files to rows of all clients one after another: `x`, `y`, `client`, and what else there is."""
    checksum: str = ""
    """Of the arrays, where it is known."""
    facts: Facts = Facts()
    """What its arrays are like."""
    needs: tuple[str, ...] = ("x", "y", "client")
    """The arrays without which it cannot be used."""
    called: str = ""
    """Its name in `kinfolk data list`, where that is not the file's."""
    others: tuple[str, ...] = ()
    """Files of other names with the same arrays (a part, other features) that are read where this one is not there."""
    by_hand: str = ""
    """What to fetch, where there is no direct download, or what else can be converted."""
    also: tuple[str, ...] = ()
    """Other names of files that are read, where those of `files` are packed."""
    reads_folders: bool = False
    """Whether `convert` finds its way in folders itself."""
    given: tuple[str, ...] = ()
    """What to give by hand, where that is not `files`."""

    def command(self, directory: str | Path | None = None) -> str:
        """What gets it, into a directory where one was named."""
        where = f" --data-dir {shlex.quote(str(directory))}" if directory else ""
        return f"kinfolk data get {self.called or self.name}{where}"

    def remedy(self, directory: str | Path | None = None) -> str:
        """What to do where it cannot be downloaded."""
        hand = self.by_hand or f"fetch {', '.join(file.name for file in self.files)} from {self.home}"
        given = " ".join(f"--from {name}" for name in self.given or [file.name for file in self.files])
        return (
            f"{hand}; then `{self.command(directory)} {given}`, or set KINFOLK_DATA (or --data-dir) to a directory "
            f"with {self.name}.npz"
        )


def flaw(source: Source, arrays: Arrays, *, another: bool = False) -> str:
    """Why arrays cannot be the set's, if so; `another`: they are from a file of another name, with less or other."""
    if missing := [name for name in source.needs if name not in arrays]:
        return f"it has no array {' and '.join(missing)}"
    per_row = [name for name in PER_ROW if name in arrays and not (name == "x" and "indptr" in arrays)]
    rows = {name: arrays[name].shape[:1] for name in per_row}
    rows |= {name: (len(arrays[name]) - 1,) for name in STARTS if name in arrays}
    if len(set(rows.values())) > 1:
        return "its arrays have " + ", ".join(f"{math.prod(count)} rows of {name}" for name, count in rows.items())
    if not math.prod(next(iter(rows.values()))):
        return "it has no rows"
    for name in filter(arrays.__contains__, STARTS):
        if words := _not_starts(name, arrays):
            return words
    return _unlike(source.facts, arrays, another)


def _not_starts(name: str, arrays: Arrays) -> str:
    """What is wrong with where rows begin."""
    starts, lengths = arrays[name], {part: len(arrays[part]) for part in STARTS[name]}
    if starts.dtype.kind in "iu" and starts[0] == 0 and (np.diff(starts) >= 0).all():
        wrong = [f"{count} of {part}" for part, count in lengths.items() if count != starts[-1]]
        return f"{name} ends at {starts[-1]}, and there are {' and '.join(wrong)}" if wrong else ""
    return f"{name} holds no whole numbers that begin with 0 and never fall"


def _unlike(facts: Facts, arrays: Arrays, another: bool) -> str:
    """Where arrays are not as they are known to be."""
    sparse = "indptr" in arrays
    columns = facts.features[0] if sparse and facts.features else 0
    for name, count in (("client", 0), ("y", facts.labels), ("labels", facts.labels), ("indices", columns)):
        if name in arrays and (name == "client" or count) and (words := _not_numbered(name, arrays[name], count)):
            return words
    if facts.features and not sparse and arrays["x"].shape[1:] != facts.features and not another:
        return f"a row of x has shape {arrays['x'].shape[1:]}, not {facts.features}"
    if facts.clients and (found := len(np.unique(arrays["client"]))) != facts.clients and not another:
        return f"it has {found} clients, not {facts.clients}"
    for name in () if facts.gaps else ("x", "time", "y"):
        if name in arrays and arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
            return f"{name} has {int((~np.isfinite(arrays[name])).sum())} values that are NaN or infinite"
    if facts.halves and len(np.unique(arrays["is_test"])) < 2:
        half = "training" if arrays["is_test"].all() else "testing"
        return f"it has no rows for {half}: both halves are needed"
    return ""


def _not_numbered(name: str, values: np.ndarray, count: int) -> str:
    """What is wrong with numbers that should be whole, from 0, and below `count` where that is not 0."""
    wanted = f"whole numbers from 0 to {count - 1}" if count else "whole numbers from 0"
    if values.dtype.kind not in "iub" and not (values.dtype.kind == "f" and np.array_equal(values, np.rint(values))):
        return f"{name} holds {values.dtype} that are not {wanted}"
    least, most = values.min(), values.max()
    return f"{name} reaches from {least} to {most}, not {wanted}" if least < 0 or (count and most >= count) else ""


def whole(name: str, values: ArrayLike, kind: DTypeLike = np.uint8) -> np.ndarray:
    """Numbers as integers, refused where one would be cut or wrap around.

    `name`: what they are called. `values`: the numbers. `kind`: of integers.
    """
    found = np.asarray(values)
    if found.dtype.kind in "iuf":
        with np.errstate(invalid="ignore"):
            cast = found.astype(kind)
        wrong = cast != found
        if not wrong.any():
            return cast
        found = found[wrong]
    first = repr(found.ravel()[:1].tolist())[1:-1] or "nothing"
    most = np.iinfo(kind).max
    raise DataError(f"{name} holds {first}, which is no whole number from 0 to {most}: give the set's file")


def content_checksum(arrays: Arrays) -> str:
    """SHA-256 of the rows, targets and client numbers."""
    digest = hashlib.sha256()
    for name in CONTENT:
        if name in arrays:
            digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
