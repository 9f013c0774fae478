"""A federation's data: rows of all clients, split into training and test parts, padded into arrays.

>>> import numpy as np
>>> fed = from_rows(np.ones((6, 2)), np.arange(6.0), ["a", "b"] * 3, test_fraction=0.3)
>>> fed.ids, fed.train.sizes.tolist()
(('a', 'b'), [2, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np
from numpy.typing import DTypeLike

from kinfolk import limits
from kinfolk.data.given_rows import DataError, Split, check_rows, declared_identity, held_out_rows
from kinfolk.data.identity import ROWS_PER_PERSON, Identity, label
from kinfolk.data.target import Target
from kinfolk.types import Rows, Tree
from kinfolk.units import Several

RowsOf = Callable[[np.ndarray], tuple[Tree, Tree]]
"""From an array of clients' numbers to their features and targets, both with leading axes (clients, rows)."""
LARGE = 2**26
"""Numbers in an array (256 MiB of floats) from which on it matters that they are not mostly padding."""


@dataclass(frozen=True)
class ClientData:
    """Examples with a leading client axis, padded with zeros to the longest client."""

    x: Tree
    """Features, axes (clients, rows, ...)."""
    y: np.ndarray
    """Targets, axes (clients, rows)."""
    sizes: np.ndarray
    """How many rows of each client are real."""

    features: int | None = None
    """How many features there are, where rows are sparse (`data/sparse.py`)."""
    traced = None
    """Rows are read, not computed in the program (`data/lazy.py` has those that are)."""

    @property
    def any_x(self) -> Tree:
        """Features, in whichever form they are kept."""
        return self.x

    def rows(self, clients: slice | np.ndarray, length: int) -> Rows:
        """The clients in a slice, or of these numbers, cut to `length` rows each.

        `clients`: a slice of the clients, or their numbers.
        """
        mask = np.arange(length)[None, :] < self.sizes[clients, None]
        return Rows(_cut(self.x, clients, length), self.y[clients, :length], mask)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return _example_shape(self.x, self.features, 2)


@dataclass(frozen=True)
class RaggedData:
    """Examples of all clients one after another: for sizes so unequal that padding everybody would not fit."""

    flat_x: Tree
    flat_y: np.ndarray
    sizes: np.ndarray
    features: int | None = None
    traced = None

    @property
    def any_x(self) -> Tree:
        """Features, in whichever form they are kept."""
        return self.flat_x

    def rows(self, clients: slice | np.ndarray, length: int) -> Rows:
        """The clients in a slice, or of these numbers, cut or padded to `length` rows each."""
        chosen = np.arange(len(self.sizes))[clients].tolist()
        own = [int(self.starts[k]) + np.arange(min(length, int(self.sizes[k]))) for k in chosen]
        part = padded(self.flat_x, self.flat_y, own, length)
        return Rows(part.x, part.y, np.arange(length)[None, :] < part.sizes[:, None])

    @cached_property
    def starts(self) -> np.ndarray:
        """The number of each client's first row."""
        return np.cumsum(self.sizes) - self.sizes

    @property
    def example_shape(self) -> tuple[int, ...]:
        return _example_shape(self.flat_x, self.features, 1)

    @property
    def x(self) -> Tree:
        """Padded after all; for small data only."""
        return self.rows(slice(None), int(self.sizes.max(initial=1))).x

    @property
    def y(self) -> np.ndarray:
        return self.rows(slice(None), int(self.sizes.max(initial=1))).y


@dataclass(frozen=True)
class FunctionData:
    """Examples that a function makes from clients' numbers whenever they are needed: for very many clients."""

    function: RowsOf
    """From an array of clients' numbers to their features and targets, both with leading axes (clients, rows)."""
    sizes: np.ndarray
    in_program: bool = True
    """Whether it is written in JAX, to be compiled into the program."""

    @cached_property
    def traced(self) -> RowsOf | None:
        return jax.jit(self.function) if self.in_program else None

    def rows(self, clients: slice | np.ndarray, length: int) -> Rows:
        """The clients in a slice, or of these numbers, cut to `length` rows each."""
        chosen = np.arange(len(self.sizes), dtype=np.int32)[clients]
        x, y = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :length], (self.traced or self.function)(chosen))
        return Rows(x, y, np.arange(length)[None, :] < self.sizes[chosen, None])

    @property
    def example_shape(self) -> tuple[int, ...]:
        return self.rows(slice(0, 1), 1).x.shape[2:]

    @property
    def x(self) -> Tree:
        """Everybody's; for small data only."""
        return self.rows(slice(None), int(self.sizes.max(initial=1))).x

    @property
    def y(self) -> np.ndarray:
        return self.rows(slice(None), int(self.sizes.max(initial=1))).y


Data = ClientData | RaggedData | FunctionData
"""Examples of many clients: `rows` has those of some, and `traced`, where a program can make them, how."""


def _example_shape(x: Tree, features: int | None, leading: int) -> tuple[int, ...]:
    if isinstance(x, Several):
        return _example_shape(x.rows, features, leading + 1)
    if features is not None:
        return (features,)
    if not isinstance(x, np.ndarray):
        raise DataError("features are several arrays: bring a model that reads them (models.from_functions)")
    return x.shape[leading:]


def _cut(x: Tree, clients: slice | np.ndarray, length: int) -> Tree:
    return jax.tree.map(lambda part: part[clients, :length], x)


@dataclass(frozen=True)
class Federation:
    """What a run trains on. Clients are ordered by their number of rows, so that engines can group them."""

    name: str
    """The data set's name in ledger and statement; all releases under one name add up."""
    ids: tuple[str, ...]
    """The clients' names; public."""
    train: Data
    """Rows to train on."""
    test: Data
    """Rows to test on; they belong to the protected unit too."""
    outcome: str
    """`number` (regression), `binary` (labels 0 and 1) or `classes`."""
    classes: int = 0
    """How many classes there are, where the outcome is `classes`."""
    scaling: str = "none"
    """How features were scaled, for the privacy statement."""
    scaling_is_private: bool = True
    """False when scaling looked at data outside the account."""
    encoding: str = ""
    """How raw rows became arrays (a schema as TOML), so that new rows can be treated alike; empty: unknown."""
    guesses: tuple[str, ...] = ()
    """Columns whose bounds, values or kinds were guessed from all clients' rows: never in a release."""
    grouping: str = ""
    """What makes a client: a column's name, a file each. Names of clients mean the same only within one grouping;
    empty: nobody knows."""
    identity: Identity | None = None
    """What its rows are known by in other tables and other years, as declared by their owner."""
    target: Target | None = None
    """What the target is called and measured in, where that is known."""

    @property
    def has_people(self) -> bool:
        """Whether people, with all their rows, are the units that it is trained on."""
        return not isinstance(self.train, FunctionData) and isinstance(self.train.any_x, Several)

    @cached_property
    def test_units(self) -> tuple[np.ndarray, ...]:
        """For each client the number of the unit, among the client's own, that each test row belongs to.

        Where no person is declared every row is a unit of its own. It is as private as the rows.
        """
        sizes = self.test.sizes.tolist()
        if self.identity is None or self.identity.kind != "person":
            return tuple(np.arange(size) for size in sizes)
        whose = (
            values[len(values) - size :].tolist() for values, size in zip(self.identity.values, sizes, strict=True)
        )
        return tuple(np.unique(list(map(label, own)), return_inverse=True)[1] for own in whose)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example, where features are one array."""
        return self.train.example_shape


def pooled(federation: Federation) -> Federation:
    """One client with everybody's rows: what could be learned if data were not kept apart.

    `federation`: whose clients are put together.
    """

    def joined(data: Data) -> ClientData:
        keep = np.arange(data.y.shape[1])[None, :] < data.sizes[:, None]
        x = jax.tree.map(lambda leaf: leaf[keep][None], data.x)
        return ClientData(x, data.y[keep][None], np.array([int(keep.sum())]))

    train, test, identity = joined(federation.train), joined(federation.test), federation.identity
    if identity is not None:
        sizes = federation.train.sizes.tolist()
        pairs = [np.split(values, [size]) for values, size in zip(identity.values, sizes, strict=True)]
        identity = replace(identity, values=(np.concatenate([part[k] for k in (0, 1) for part in pairs]),))
    return replace(federation, ids=("everybody",), train=train, test=test, identity=identity)


def from_rows(
    x: Tree,
    y: np.ndarray,
    clients: Sequence[str] | np.ndarray,
    *,
    test_fraction: float | None = None,
    test: Sequence[bool] | Sequence[int] | np.ndarray | None = None,
    seed: int = 0,
    name: str = "data",
    outcome: str = "number",
    classes: int = 0,
    scaling: str = "none",
    scaling_is_private: bool = True,
    row_ids: Sequence[object] | np.ndarray | None = None,
    person_ids: Sequence[object] | np.ndarray | None = None,
    rows_per_person: int = ROWS_PER_PERSON,
    grouping: str = "",
) -> Federation:
    """A federation from a table: rows of all clients, split into training and test rows.

    `x` is an array with one row per example, or a dict of such arrays, for models that read several.

    `y`: one target per row. `clients`: the client of each row. `test_fraction`: share of each client's rows (0.2 by
    default) that is kept for testing, drawn at random by `seed`; or `test`: a fixed split, as one truth value per row
    or as the numbers of the test rows. `name`: the data set's name in ledger and statement; all releases under one name
    add up. `outcome`: `number` (regression), `binary` (labels 0 and 1) or `classes`. `classes`: how many classes there
    are, where the outcome is `classes`. `scaling`: how features were scaled, in words; repeated in the privacy
    statement. `scaling_is_private`: False if scaling looked at data; every statement then says so, and a release at
    example level is refused. `row_ids` or `person_ids`: what a record, or a person, is known by in every table and
    year, one value per row; accounts then follow them, whatever tables and clients are called. With `person_ids` a
    person, with all rows, is the unit at example level: splits, sizes and batches count people. `rows_per_person`: how
    many rows of one person count; public, and of somebody with more some are left out. `grouping`: what makes a
    client (`ward`, `hospital`), so that another release knows a client by its name; without it, and without identities,
    any row may be any other.
    """
    x = {name: np.asarray(part) for name, part in x.items()} if isinstance(x, dict) else np.asarray(x)
    y, clients = np.asarray(y), np.asarray(clients)
    check_rows(x, y, clients)
    held_out = None if test is None else held_out_rows(test, test_fraction, len(y))
    generator = np.random.default_rng(int(limits.checked("seed", seed)))
    fraction = limits.checked("test_fraction", 0.2 if test_fraction is None else test_fraction)
    known = declared_identity(row_ids, person_ids, len(y), int(limits.checked("rows_per_person", rows_per_person)))
    split_of = Split(generator, fraction, held_out, known if person_ids is not None else None)
    parts = []
    names, counts = np.unique(clients, return_counts=True)
    by_client = np.split(np.argsort(clients, kind="stable"), np.cumsum(counts)[:-1])
    for client, found in zip(names.tolist(), by_client, strict=True):
        split = split_of(found)
        if not len(split[0]):
            rule, remedy = (
                ("test", "move rows out of test")
                if held_out is not None
                else (f"test_fraction={fraction}", "lower test_fraction")
            )
            raise DataError(
                f"client {str(client)!r} has {len(found)} row(s), and {rule} leaves none for training: drop the "
                f"client, or {remedy}"
            )
        parts.append((str(client), *split))
    parts.sort(key=lambda part: (len(part[1]), part[0]))
    own = [np.concatenate(part[1:]) for part in parts]
    return Federation(
        name=name,
        ids=tuple(part[0] for part in parts),
        train=together(x, y, [part[1] for part in parts]),
        test=together(x, y, [part[2] for part in parts]),
        outcome=outcome,
        classes=classes,
        scaling=scaling,
        scaling_is_private=scaling_is_private,
        grouping=grouping,
        identity=known and replace(known, values=tuple(known.values[0][places] for places in own)),
    )


def together(
    x: Tree, y: np.ndarray, rows: Sequence[np.ndarray], features: int | None = None
) -> ClientData | RaggedData:
    """Rows of each client, padded to the longest unless that would be large and mostly padding."""
    sizes = np.array([len(own) for own in rows])
    room = len(rows) * int(sizes.max(initial=1))
    if room <= 4 * sizes.sum() or room * sum(part[:1].size for part in jax.tree.leaves(x)) <= LARGE:
        return replace(padded(x, y, rows), features=features)
    order = np.concatenate(rows)
    return RaggedData(
        jax.tree.map(lambda part: part[order].astype(_number(part)), x), y[order].astype(_label(y)), sizes, features
    )


def padded(x: Tree, y: np.ndarray, rows: Sequence[np.ndarray], least: int = 1) -> ClientData:
    """Rows of each client stacked, `least` places for each; floats become float32, labels int32."""
    longest = max(least, *(len(own) for own in rows)) if rows else least

    def stacked(values: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        out = np.zeros((len(rows), longest, *values.shape[1:]), dtype)
        for k, own in enumerate(rows):
            out[k, : len(own)] = values[own]
        return out

    features = jax.tree.map(lambda part: stacked(part, _number(part)), x)
    return ClientData(features, stacked(y, _label(y)), np.array([len(own) for own in rows]))


def _number(values: np.ndarray) -> DTypeLike:
    return np.float32 if values.dtype.kind == "f" else values.dtype


def _label(values: np.ndarray) -> DTypeLike:
    return np.float32 if values.dtype.kind == "f" else np.int32
