"""Examples of many clients as they are kept: padded, one client after another, or made whenever they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np
from numpy.typing import DTypeLike

from kinfolk.data.given_rows import DataError
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

    def __repr__(self) -> str:
        return f"ClientData({extent(self)})"

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

    def __repr__(self) -> str:
        return f"RaggedData({extent(self)})"

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

    def __repr__(self) -> str:
        return f"FunctionData({extent(self)})"

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


def extent(data: Data) -> str:
    """How much there is, in words: what a notebook shows of rows, which are private."""
    size = f"{len(data.sizes)} clients, {int(data.sizes.sum())}"
    if isinstance(data, FunctionData):
        return f"{size} rows of a function"
    several = isinstance(data.any_x, Several)
    x = data.any_x.rows if several else data.any_x
    plain = data.features is not None or isinstance(x, np.ndarray)
    shape = "x".join(map(str, data.example_shape)) if plain else "several arrays of"
    return f"{size} {'people' if several else 'rows'}, {shape} features"


def target_shape(data: ClientData | RaggedData) -> tuple[int, ...]:
    """The shape of one row's target: empty, but for several labels."""
    people = isinstance(data.any_x, Several)
    return data.flat_y.shape[1 + people :] if isinstance(data, RaggedData) else data.y.shape[2 + people :]


def _cut(x: Tree, clients: slice | np.ndarray, length: int) -> Tree:
    return jax.tree.map(lambda part: part[clients, :length], x)


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
