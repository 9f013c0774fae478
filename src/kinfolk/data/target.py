"""What a target is called and measured in, so that errors can be told in its own unit.

>>> Target("score", "points", low=1, high=70, scaled_low=0, scaled_high=1).factor
69.0
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A target as its owner knows it, beside the numbers that models see."""

    name: str = ""
    """What it is called: a column."""
    unit: str = ""
    """What it is measured in; empty: nobody said."""
    low: float = -1.0
    """The lowest value of a number, as declared."""
    high: float = 1.0
    """The highest."""
    scaled_low: float = -1.0
    """What models see of the lowest."""
    scaled_high: float = 1.0
    """What they see of the highest."""
    labels: tuple[str, ...] = ()
    """Of a target that is no number, in the order of their codes."""

    @property
    def factor(self) -> float:
        """What an error of models is multiplied by to be in the target's own unit."""
        return (self.high - self.low) / (self.scaled_high - self.scaled_low)

    @property
    def words(self) -> str:
        """What stands behind an error of a number."""
        return self.unit or (f"in units of {self.name}" if self.name else "in scaled units")
