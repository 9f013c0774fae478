"""Federations that another machine makes for itself from one file. Needs jax and numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.data.federation import Federation
from kinfolk.data.sets.catalogue import BUILT_IN
from kinfolk.data.sets.download import load_arrays
from kinfolk.files import npz


@dataclass(frozen=True)
class Recipe:
    """A built-in data set, and what is made of it."""

    name: str
    """As in `kinfolk data list`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of its loader."""
    rows: tuple[int, int] | None = None
    """At most so many for training and for testing at every client."""
    images: int | None = None
    """How many rows of its file travel, an equal share of every class; None: all of them."""
    divided_by: int | None = None
    """The seed that divides rows among clients, where others would make clients of other sizes."""

    def load(self, seed: int, directory: Path) -> Federation:
        """The federation of a seed, from the file in `directory`."""
        seed = seed if self.divided_by is None else self.divided_by
        made = BUILT_IN[self.name].load(**self.options, seed=seed, directory=str(directory))
        return made if self.rows is None else cut(made, *self.rows)

    def pack(self, directory: Path) -> None:
        """Puts the file into `directory`, or as much of it as travels."""
        source = BUILT_IN[self.name].source
        assert source is not None
        arrays = load_arrays(source)
        if self.images is not None:
            kept = evenly(arrays["y"], arrays["is_test"], self.images)
            arrays = {key: values[kept] for key, values in arrays.items()}
        (directory / f"{source.name}.npz").write_bytes(npz(arrays))


def cut(federation: Federation, train: int, test: int) -> Federation:
    """At most so many rows of every client."""
    parts = [
        replace(part, x=part.x[:, :n], y=part.y[:, :n], sizes=np.minimum(part.sizes, n))
        for part, n in ((federation.train, train), (federation.test, test))
    ]
    return replace(federation, train=parts[0], test=parts[1])


def evenly(labels: np.ndarray, is_test: np.ndarray, count: int) -> np.ndarray:
    """Places of about `count` rows, the first of every class, in training and test parts as large as they were."""
    share = min(1.0, count / len(labels))
    chosen = []
    for part in (False, True):
        for label in np.unique(labels):
            places = np.flatnonzero((labels == label) & (is_test.astype(bool) == part))
            chosen.append(places[: int(share * len(places))])
    return np.sort(np.concatenate(chosen))
