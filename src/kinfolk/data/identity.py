"""What rows are known by over the years and from table to table, as their owner declares it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Identity:
    """Declared identities of a federation's rows."""

    kind: str
    """`row`: a value belongs to one record. `person`: all rows with a value are one person's."""
    column: str
    """What the owner calls it."""
    values: tuple[np.ndarray, ...]
    """For each client, in the federation's order, the values of its rows as text."""
