"""Sparse rows, a bag of words say: each row's entries as indices and values, never written out densely.

>>> from scipy.sparse import csr_array
>>> data = from_sparse(csr_array([[0, 2.0, 0], [1.0, 0, 3.0]]), np.zeros(2), ["a", "b"], test_fraction=0.0)
>>> data.shape, data.train.x["indices"].tolist()
((3,), [[[1, 0]], [[0, 2]]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from kinfolk.data.federation import DataError, Federation, from_rows


def entries(matrix: Any) -> dict[str, np.ndarray]:
    """The rows of a SciPy sparse matrix as `indices` and `values`, padded to the row with the most entries."""
    if not sparse.issparse(matrix):
        raise DataError(f"{type(matrix).__name__} is no SciPy sparse matrix: use from_rows for arrays")
    rows = sparse.csr_array(matrix, copy=True)
    rows.sum_duplicates()
    counts = np.diff(rows.indptr)
    filled = np.arange(max(1, counts.max(initial=0)))[None, :] < counts[:, None]
    indices, values = np.zeros(filled.shape, np.int32), np.zeros(filled.shape, np.float32)
    indices[filled], values[filled] = rows.indices, rows.data
    return {"indices": indices, "values": values}


def from_sparse(matrix: Any, y: np.ndarray, clients: Sequence[str] | np.ndarray, **options: Any) -> Federation:
    """A federation from a SciPy sparse matrix with one row per example; options as for `from_rows`.

    `matrix`: of shape (rows, features). `y`: one target per row. `clients`: the client of each row. `options`: see
    `from_rows`.
    """
    found = from_rows(entries(matrix), y, clients, **options)
    features = int(matrix.shape[1])
    train, test = (replace(part, features=features) for part in (found.train, found.test))  # type: ignore[call-arg]
    return replace(found, train=train, test=test)
