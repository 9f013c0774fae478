"""Blocks of clients of similar size."""

from __future__ import annotations

import numpy as np

from kinfolk.engines.layout import block_widths


def test_full_batches_of_very_unequal_clients_are_cut_by_size() -> None:
    sizes = np.array([10] * 97 + [5000] * 3)
    ones = np.ones(100, int)
    assert block_widths(ones, sizes, 4) == (97, 3)
    assert block_widths(ones, sizes, 1) == (100,)
    assert block_widths(ones, np.full(100, 10), 4) == (100,)
    many = np.sort(np.random.default_rng(0).pareto(1.0, 2000) * 100).astype(int) + 1
    widths = block_widths(np.ones(2000, int), many, 4)
    edges = np.cumsum(widths)
    assert edges[-1] == 2000
    assert sum(w * many[e - 1] for w, e in zip(widths, edges, strict=True)) < 2000 * many[-1] / 4
