"""A table of counts with noise, made plausible again: what is known of it beforehand is that counts are not negative
and how many units it counts.

>>> import numpy as np
>>> plausible(np.array([5.0, -1.0, 2.0]), 6.0).tolist()
[4.5, 0.0, 1.5]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NoisyTable:
    """What was released: every unit added a vector with absolute values that sum to 1, and every cell has noise."""

    cells: np.ndarray
    """Noisy counts, in the shape of the table."""
    units: float
    """How many units were counted; public."""
    scale: float
    """Of the noise that each party added to each cell; 0: none."""
    parties: int = 1
    """How many parties' noise is in a cell: as many as noised a table of their own."""
    law: str = "laplace"
    """Of the noise; or `normal`, with `scale` as its standard deviation."""

    def plausible(self) -> np.ndarray:
        """The nearest table without negative counts that counts all units."""
        return plausible(self.cells.ravel(), self.units).reshape(self.cells.shape)

    def part(self, place: int) -> tuple[float, float]:
        """How many units are in one part of the table along its first axis, and the standard deviation of the noise.

        `place`: which part.
        """
        own = self.cells[place]
        variance = self.scale**2 * (2 if self.law == "laplace" else 1)
        return float(self.plausible()[place].sum()), (variance * own.size * self.parties) ** 0.5

    def again(self, generator: np.random.Generator, times: int) -> np.ndarray:
        """Tables as they could have come out with other units and other noise, `times` of them.

        Units are drawn as if each were in one cell: what they really add varies less.
        """
        flat = self.plausible().ravel()
        shares = flat / max(flat.sum(), 1e-12)
        units = max(round(self.units), 1)
        drawn = generator.multinomial(units, shares / shares.sum(), times) * (self.units / units)
        shape = (times, flat.size)
        return plausible(drawn + self._noise(generator, shape), self.units).reshape(times, *self.cells.shape)

    def _noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        if self.law == "laplace":
            return generator.gamma(self.parties, self.scale, shape) - generator.gamma(self.parties, self.scale, shape)
        return self.scale * self.parties**0.5 * generator.standard_normal(shape)


def plausible(cells: np.ndarray, total: float) -> np.ndarray:
    """The nearest (least squares) values along the last axis that are not negative and sum to `total`."""
    ordered = np.sort(cells, axis=-1)[..., ::-1]
    excess = np.cumsum(ordered, axis=-1) - total
    places = np.arange(1, cells.shape[-1] + 1)
    kept = np.maximum((ordered - excess / places > 0).sum(axis=-1, keepdims=True), 1)
    return np.maximum(cells - np.take_along_axis(excess, kept - 1, -1) / kept, 0)
