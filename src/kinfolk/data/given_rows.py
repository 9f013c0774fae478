"""Rows as somebody gives them: what is refused, which are for testing, and what they are known by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinfolk.data.identity import Identity
from kinfolk.types import Tree


class DataError(ValueError):
    """Data that cannot be used, with the remedy."""


def declared_identity(
    row_ids: Sequence[object] | np.ndarray | None,
    person_ids: Sequence[object] | np.ndarray | None,
    own: Sequence[np.ndarray],
    rows: int,
) -> Identity | None:
    """Declared identities of each client's rows."""
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
    text = values.astype(str)
    return Identity(kind, f"{kind}_ids", tuple(text[places] for places in own))


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
    parts = {f"x[{name!r}]": part for name, part in x.items()} if isinstance(x, dict) else {"x": x}
    if not len(y):
        raise DataError("the data has no rows")
    for label, values in parts.items():
        if not len(values) == len(y) == len(clients):
            raise DataError(f"{label} has {len(values)} rows, y {len(y)} and clients {len(clients)}: they must agree")
    for label, values in (*parts.items(), ("y", y)):
        if values.dtype.kind not in "fiub":
            raise DataError(f"{label} holds {values.dtype} values: encode text as numbers first")
        bad = (
            ~np.isfinite(values.reshape(len(values), -1)).all(axis=1) if values.dtype.kind == "f" else np.zeros(1, bool)
        )
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise DataError(
                f"{label} has NaN or infinite values in {int(bad.sum())} row(s), first in row {row} "
                f"(client {str(clients[row])!r}): fill them in or drop the rows"
            )
