"""Clients' states outside the program: in memory, or in files that are mapped into it and as large as what was written.

A file has two places for every client. Since the last checkpoint a client was written to the place that the checkpoint
does not know, so a run that is killed at any moment goes on from the checkpoint, and nothing has to be repaired.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from kinfolk.types import Tree

NEVER = -1
"""The place of a client that has not taken part."""


class StoreError(RuntimeError):
    """Clients' states that find no room, with the remedy."""


@dataclass(frozen=True)
class Store:
    """One array per leaf of a client's state, of shape (places, clients, ...)."""

    leaves: tuple[np.ndarray, ...]
    form: Tree
    now: np.ndarray
    """In which place each client's state is."""
    safe: np.ndarray
    """In which place it was at the last checkpoint; that place is not written to."""
    files: tuple[Path, ...] = ()

    @property
    def bytes_of_one(self) -> int:
        """What one client's state takes in memory."""
        return sum(math.prod(leaf.shape[2:]) * leaf.dtype.itemsize for leaf in self.leaves)

    def read(self, clients: np.ndarray, into: Tree = None) -> tuple[Tree, np.ndarray]:
        """Their states, and who has one; the others' mean nothing. A number beyond the last client is nobody's.

        `into`: arrays to read into.
        """
        count = len(self.now)
        known = (clients < count) & (self.now[np.minimum(clients, count - 1)] != NEVER)
        rows = np.where(known, clients, 0).astype(np.int64)
        rows += count * np.where(known, self.now[rows], 0).astype(np.int64)
        room = self.room(len(clients)) if into is None else into
        for leaf, out in zip(self.leaves, jax.tree.leaves(room), strict=True):
            np.take(_flat(leaf), rows, axis=0, out=out, mode="clip")  # "clip": straight into `out`
        return room, known

    def room(self, clients: int) -> Tree:
        """Arrays that the states of so many clients fit into."""
        return jax.tree.unflatten(self.form, [np.zeros((clients, *leaf.shape[2:]), leaf.dtype) for leaf in self.leaves])

    def write(self, clients: np.ndarray, rows: Tree) -> None:
        """Puts their states where the last checkpoint is not; each client once."""
        places = np.where(self.safe[clients] == 0, len(self.leaves[0]) - 1, 0) if self.leaves else 0
        for leaf, row in zip(self.leaves, jax.tree.leaves(rows), strict=True):
            _flat(leaf)[len(self.now) * places + clients] = row
        self.now[clients] = places

    def flush(self) -> None:
        """Returns when everything written is on disk."""
        for leaf in self.leaves:
            if isinstance(leaf, np.memmap):
                leaf.flush()

    def keep(self) -> None:
        """What is there now is what the newest checkpoint knows."""
        self.safe[:] = self.now

    def remove(self) -> None:
        for file in self.files:
            file.unlink(missing_ok=True)


def _flat(leaf: np.ndarray) -> np.ndarray:
    """All places one after another, the same memory."""
    return leaf.reshape(-1, *leaf.shape[2:])


def in_memory(shapes: Tree, clients: int) -> Store:
    """An empty store. Memory that nobody has written to is not taken."""
    leaves, form = jax.tree.flatten(shapes)
    arrays = tuple(np.zeros((1, clients, *leaf.shape), leaf.dtype) for leaf in leaves)
    return Store(arrays, form, *_nobody(clients))


def on_disk(shapes: Tree, clients: int, folder: Path, name: str, beside: int = 0, places: int = 2) -> Store:
    """An empty store in new files of a folder; refused where the disk could fill up later, `beside` bytes included.

    `places`: of every client; two for what checkpoints know.
    """
    leaves, form = jax.tree.flatten(shapes)
    files = tuple(folder / f"{name}-{number}.npy" for number in range(len(leaves)))
    needed, free = size_on_disk(shapes, clients, places) + beside, shutil.disk_usage(folder).free
    if needed > free:
        raise StoreError(
            f"states of {clients} clients take up to {needed / 1e9:.1f} GB in {folder}, and {free / 1e9:.1f} GB are "
            "free: make room, or choose another directory (--output)"
        )
    arrays = tuple(
        np.lib.format.open_memmap(file, "w+", leaf.dtype, (places, clients, *leaf.shape))
        for file, leaf in zip(files, leaves, strict=True)
    )
    return Store(arrays, form, *_nobody(clients), files)


def from_disk(shapes: Tree, places: np.ndarray, folder: Path, name: str) -> Store:
    """The store as a checkpoint knows it."""
    leaves, form = jax.tree.flatten(shapes)
    files = tuple(folder / f"{name}-{number}.npy" for number in range(len(leaves)))
    if missing := [file for file in files if not file.exists()]:
        raise StoreError(f"{missing[0]} is missing: put it back, or start a new run")
    arrays = tuple(np.lib.format.open_memmap(file, "r+") for file in files)
    return Store(arrays, form, places.copy(), places.copy(), files)


def size_on_disk(shapes: Tree, clients: int, places: int = 2) -> int:
    """Bytes when every client has been written to all its places."""
    return sum(places * clients * leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))


def _nobody(clients: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(clients, NEVER, np.int8), np.full(clients, NEVER, np.int8)
