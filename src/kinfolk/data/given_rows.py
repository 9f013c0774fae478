"""Rows as somebody gives them: what is refused, which are for testing, and what they are known by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk import limits
from kinfolk.data.identity import Identity, label
from kinfolk.limits import Limit
from kinfolk.toml import shown
from kinfolk.types import Tree

NOBODY = -1
"""The client's number of rows that belong to nobody, and are left out."""


class DataError(ValueError):
    """Data that cannot be used, with the remedy."""


def whole_number(name: str, value: object, least: int, most: int, remedy: str = "choose a number in between") -> int:
    """The number, if it is whole and in range; a DataError otherwise.

    `name`: what it is called. `value`: what was given. `least`, `most`: the range. `remedy`: what to do instead.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, int) or not least <= plain <= most:
        raise DataError(f"{name}={shown(plain)} must be a whole number from {least} to {most}: {remedy}")
    return plain


def check_number(name: str, value: object, limit: Limit) -> None:
    """Refuses what is no number in range.

    `name`: what it is called. `value`: what was given. `limit`: the range.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not limit.holds(plain):
        raise DataError(f"{name}={shown(plain)} must be {limit.words}: {limit.remedy}")


def drawing(seed: object) -> np.random.Generator:
    """What draws at random by a seed.

    `seed`: as everywhere, a whole number that 32 bits hold.
    """
    return np.random.default_rng(int(limits.checked("seed", seed)))


def declared_identity(
    row_ids: Sequence[object] | np.ndarray | None,
    person_ids: Sequence[object] | np.ndarray | None,
    rows: int,
    rows_per_person: int,
) -> Identity | None:
    """Declared identities of all rows, as if they were one client's."""
    if row_ids is None and person_ids is None:
        return None
    if row_ids is not None and person_ids is not None:
        raise DataError("row_ids and person_ids are both given: give the one that accounts are to follow")
    kind = "row" if person_ids is None else "person"
    values = np.asarray(row_ids if person_ids is None else person_ids)
    if values.shape != (rows,):
        raise DataError(f"{kind}_ids has shape {values.shape}, and there are {rows} rows: give one value per row")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"{kind}_ids holds NaN or infinity: every row needs an identity, or leave {kind}_ids out")
    return Identity(kind, f"{kind}_ids", (values.astype(str),), rows_per_person)


@dataclass(frozen=True)
class Split:
    """How a client's rows are divided into those to train on and those to test on; a person is never in both."""

    generator: np.random.Generator
    fraction: float
    """Share of rows, or of people, that is for testing."""
    held_out: np.ndarray | None
    """Which rows are for testing, where that is given."""
    people: Identity | None
    """Whose the rows are, where they are people's."""

    def __call__(self, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Training and test rows among those `found`, which are one client's."""
        if self.people is None:
            return self._rows(found)
        values = self.people.values[0][found].tolist()
        names, whose = np.unique(list(map(label, values)), return_inverse=True)
        if self.held_out is None:
            testing = np.zeros(len(names), bool)
            testing[self.generator.permutation(len(names))[self._kept(len(names)) :]] = True
            return found[~testing[whose]], found[testing[whose]]
        train, test = self._rows(found)
        both = np.intersect1d(whose[~self.held_out[found]], whose[self.held_out[found]])
        if len(both):
            raise DataError(
                f"test divides the rows of {len(both)} person(s), the first with {int((whose == both[0]).sum())} rows: "
                "put all rows of a person on one side, or leave test out and give test_fraction, which does"
            )
        return train, test

    def _rows(self, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.held_out is not None:
            return found[~self.held_out[found]], found[self.held_out[found]]
        own, kept = self.generator.permutation(found), self._kept(len(found))
        return own[:kept], own[kept:]

    def _kept(self, count: int) -> int:
        return int(count * (1 - self.fraction) + 1e-9)


def held_out_rows(
    test: Sequence[bool] | Sequence[int] | np.ndarray, test_fraction: float | None, rows: int
) -> np.ndarray:
    """Which rows are for testing, as truth values, from such or from the rows' numbers."""
    if test_fraction is not None:
        raise DataError(f"test_fraction={test_fraction} and test= are two ways to split: give one of them")
    found = np.asarray(test)
    if found.dtype == bool:
        if found.shape != (rows,):
            raise DataError(f"test has shape {found.shape}, and there are {rows} rows: give one truth value per row")
        return found
    if found.size and (found.ndim != 1 or found.dtype.kind not in "iu"):
        raise DataError(f"test holds {found.dtype} of shape {found.shape}: give truth values, or the rows' numbers")
    found = found.astype(int)
    outside = found[(found < 0) | (found >= rows)]
    if len(outside):
        raise DataError(f"test names row {outside[0]}, and rows have numbers from 0 to {rows - 1}")
    if len(np.unique(found)) < len(found):
        raise DataError("test names a row twice: give each row's number once, or one truth value (bool) per row")
    mask = np.zeros(rows, bool)
    mask[found] = True
    return mask


def check_rows(x: Tree, y: np.ndarray, clients: np.ndarray) -> None:
    """Refuses what would fail later, or silently: empty data, other lengths, text, NaN and infinite values."""
    parts = {f"x[{name!r}]": values for name, values in x.items()} if isinstance(x, dict) else {"x": x}
    if not y.size:
        raise DataError("the data has no rows: give one row per example")
    if not y.ndim or clients.ndim != 1:
        raise DataError(f"y has shape {y.shape} and clients {clients.shape}: give one target and one client per row")
    for part, values in parts.items():
        if not len(values) == len(y) == len(clients):
            raise DataError(f"{part} has {len(values)} rows, y {len(y)} and clients {len(clients)}: they must agree")
    for part, values in (*parts.items(), ("y", y)):
        if values.dtype.kind not in "fiub":
            raise DataError(f"{part} holds {values.dtype} values: encode text as numbers first")
        bad = (
            ~np.isfinite(values.reshape(len(values), -1)).all(axis=1) if values.dtype.kind == "f" else np.zeros(1, bool)
        )
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise DataError(
                f"{part} has NaN or infinite values in {int(bad.sum())} row(s), first in row {row} "
                f"(client {str(clients[row])!r}): fill them in or drop the rows"
            )
    _check_clients(clients)
    if y.dtype.kind in "iu" and not -(2**31) <= int(y.min()) <= int(y.max()) < 2**31:
        raise DataError(
            f"y reaches from {y.min()} to {y.max()}, which 32 bits do not hold: give floats, y.astype(float)"
        )


def _check_clients(clients: np.ndarray) -> None:
    """Refuses rows that name no client."""
    if clients.dtype.kind not in "fO":
        return
    none = np.array([name is None or name != name for name in clients.tolist()])
    if none.any():
        raise DataError(
            f"clients has None or NaN in {int(none.sum())} row(s), first in row {int(none.argmax())}: name every "
            "row's client, or leave such rows out"
        )
