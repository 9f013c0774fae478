"""Blocks of clients of similar size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinfolk.data.federation import Federation, from_rows
from kinfolk.engines.layout import block_widths, lay_out
from kinfolk.toml import ConfigError


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


def test_seeds_whose_clients_have_other_sizes_are_refused() -> None:
    """All of them would take the first one's steps, with noise for its sizes."""

    def divided(rows: int) -> Federation:
        names = np.repeat(["a", "b", "c"], [10, rows, 20])
        return from_rows(np.ones((30 + rows, 2)), np.arange(30.0 + rows), names, test_fraction=0.5)

    assert lay_out([divided(10), divided(10)], batch_size=4, epochs=1)[2] == (2, 1)
    with pytest.raises(ConfigError, match=r"other sizes with another seed.*seeds=1"):
        lay_out([divided(10), divided(12)], batch_size=4, epochs=1)


def test_seeds_whose_clients_have_other_places_are_refused() -> None:
    """A relation, and what is said of each client, follow places."""

    def divided(*names: str) -> Federation:
        return from_rows(np.ones((30, 2)), np.arange(30.0), np.repeat(names, 10), test_fraction=0.5)

    one, other = divided("a", "b", "c"), replace(divided("a", "b", "c"), ids=("c", "a", "b"))
    with pytest.raises(ConfigError, match=r"other names, or another order, with another seed.*seeds=1"):
        lay_out([one, other], batch_size=4, epochs=1)
