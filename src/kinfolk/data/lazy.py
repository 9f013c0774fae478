"""Federations too large to be copied: arrays that may be memory-mapped files, and rows that a function makes.

>>> data = from_function(lambda ids: (np.ones((len(ids), 2, 3)), np.zeros((len(ids), 2))), 5, 2, in_program=False)
>>> len(data.ids), data.shape
(5, (3,))
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from kinfolk.data.client_data import ClientData, FunctionData, RowsOf
from kinfolk.data.federation import DataError, Federation
from kinfolk.types import Tree


def from_arrays(
    x: Tree,
    y: np.ndarray,
    sizes: np.ndarray,
    *,
    test: tuple[Tree, np.ndarray, np.ndarray] | None = None,
    ids: Sequence[str] | None = None,
    name: str = "data",
    outcome: str = "number",
    classes: int = 0,
    scaling: str = "none",
    scaling_is_private: bool = True,
) -> Federation:
    """A federation from arrays with axes (clients, rows, ...), the first `sizes` rows of each being real.

    Nothing is copied, and only targets are looked at, so they may be files opened with `np.load(..., mmap_mode="r")`.
    `test` is the same three for testing; without it the training rows are measured.

    `x`: features, axes (clients, rows, ...). `y`: targets, axes (clients, rows). `ids`: the clients' names; default
    their numbers. `name`: the data set's name in ledger and statement; all releases under one name add up. `outcome`
    and `classes`: as of `from_rows`. `scaling`: how features were scaled, in words; repeated in the privacy statement.
    `scaling_is_private`: False if scaling looked at data; every statement then says so, and a release at example level
    is refused.
    """
    train = _padded(x, y, _checked(np.asarray(sizes)))
    names = tuple(map(str, range(len(sizes)))) if ids is None else tuple(ids)
    tests = train if test is None else _padded(test[0], test[1], np.asarray(test[2]))
    if not len(names) == len(train.sizes) == len(tests.sizes):
        raise DataError(
            f"{len(names)} ids, {len(train.sizes)} clients for training and {len(tests.sizes)} for testing: these agree"
        )
    return Federation(
        name=name,
        ids=names,
        train=train,
        test=tests,
        outcome=outcome,
        classes=classes,
        scaling=scaling,
        scaling_is_private=scaling_is_private,
    )


def from_function(
    rows: RowsOf,
    clients: int,
    sizes: int | np.ndarray,
    *,
    test: RowsOf | None = None,
    in_program: bool = True,
    name: str = "data",
    outcome: str = "number",
    classes: int = 0,
    scaling: str = "none",
    scaling_is_private: bool = True,
) -> Federation:
    """A federation whose rows a function makes from an array of client numbers: `rows(ids)` is features and targets.

    It is called again whenever a client takes part, and must return the same; write it in JAX (keys from
    `fold_in(key(seed), id)`, say), or give `in_program=False`. `test` makes as many rows for testing.

    `clients`: how many there are. `sizes`: rows of each client: one number, or one for each. `name`: the data set's
    name in ledger and statement; all releases under one name add up. `outcome` and `classes`: as of `from_rows`.
    `scaling`: how features were scaled, in words; repeated in the privacy statement. `scaling_is_private`: False if
    scaling looked at data; every statement then says so, and a release at example level is refused.
    """
    counts = _checked(np.broadcast_to(np.asarray(sizes), (clients,)))
    train = FunctionData(rows, counts, in_program)
    tests = train if test is None else FunctionData(test, counts, in_program)
    ids = tuple(map(str, range(clients)))
    return Federation(
        name=name,
        ids=ids,
        train=train,
        test=tests,
        outcome=outcome,
        classes=classes,
        scaling=scaling,
        scaling_is_private=scaling_is_private,
    )


def _padded(x: Tree, y: np.ndarray, sizes: np.ndarray) -> ClientData:
    for leaf in (*jax.tree.leaves(x), y):
        if len(leaf.shape) < 2 or leaf.shape[:2] != y.shape[:2] or len(leaf) != len(sizes):
            raise DataError(
                f"arrays of shapes {leaf.shape} and {y.shape} with {len(sizes)} sizes: leading axes are clients, rows"
            )
        if leaf.dtype not in (np.float32, np.int32, np.bool_):
            raise DataError(f"arrays hold {leaf.dtype}, and are not copied: write them as float32 or int32")
    if sizes.max() > y.shape[1]:
        raise DataError(f"a client has {sizes.max()} rows, and the arrays have room for {y.shape[1]}")
    return ClientData(x, y, sizes)


def _checked(sizes: np.ndarray) -> np.ndarray:
    if not len(sizes) or sizes.min() < 1:
        raise DataError("every client needs at least one row: leave the others out")
    if (np.diff(sizes) < 0).any():
        raise DataError("clients must be ordered by their number of rows, fewest first: engines group them")
    return sizes
