"""What a table or figure of a paper says, what was measured for it here, and the verdict.

>>> claim = Claim("ours is larger", lambda curves: curves["ours"][0][1] > 1)
>>> item = Item("paper/figure-1", "a figure", "one curve", (claim,), lambda size: Measured({}, "", 1, ""))
>>> verdict(item, Measured({"ours": [(0.0, 2.0, 0.1)]}, "some data", 3, "epsilon 1"))
'holds in shape'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Size = Literal["cell", "quick", "full"]
"""`cell`: seconds, to see that it runs. `quick`: at most a minute or two on two cores. `full`: the paper's setting, or
as near as data and machines allow."""
Curves = Mapping[str, Sequence[tuple[float, float, float]]]
"""By name: points of x, the mean over seeds, and its standard error."""
PAPERS = {
    "pmtl": "Hu, Wu and Smith, Private Multi-Task Learning (figures and tables numbered as in the journal's version)",
    "model-protected": "Liang et al., Model-Protected Multi-Task Learning",
    "cross-silo": "Liu, Hu, Wu and Smith, On Privacy and Personalization in Cross-Silo Federated Learning",
}
VERDICTS = ("holds", "holds in shape", "does not hold", "cannot be had here", "nothing to measure", "not run yet")
NOT_PRINTED = "The curves are in the figure only: no number can be read from the text."


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that curves can bear out or not."""

    says: str
    holds: Callable[[Curves], bool]


@dataclass(frozen=True)
class Printed:
    """A number of the paper, and the point of ours beside which it belongs."""

    what: str
    value: float
    curve: str
    x: float
    tolerance: float


@dataclass(frozen=True)
class Measured:
    """What was found."""

    curves: Curves
    data: str
    """Which data, in words."""
    seeds: int
    budget: str
    """The guarantee, rounds and other settings, in words."""
    stand_in: bool = False
    """Made data of the same shape: says nothing about the paper."""
    note: str = ""
    took: str = ""
    """Time and machine, where it was measured before, by another study."""


@dataclass(frozen=True)
class Item:
    """A table or figure."""

    name: str
    """`paper/figure-3b`."""
    title: str
    shows: str
    """What it shows in the paper."""
    claims: tuple[Claim, ...] = ()
    measure: Callable[[Size], Measured] | None = None
    """None: a drawing, or a list of notation."""
    printed: tuple[Printed, ...] = ()
    read: str = NOT_PRINTED
    """Where the paper's numbers come from."""
    across: str = "epsilon"
    up: str = "test accuracy"
    log_across: bool = True

    @property
    def paper(self) -> str:
        return self.name.split("/")[0]

    @property
    def anchor(self) -> str:
        """`figure-3b`."""
        return self.name.split("/")[1]


def at(curves: Curves, name: str, x: float) -> float:
    """The mean of a curve at a point."""
    return next(mean for place, mean, _ in curves[name] if place == x)


def means(curves: Curves, name: str) -> list[float]:
    return [mean for _, mean, _ in curves[name]]


def never_below(curves: Curves, one: str, other: str, slack: float = 0.0) -> bool:
    """Whether a curve is at least as high as another everywhere, up to `slack`."""
    return all(a >= b - slack for a, b in zip(means(curves, one), means(curves, other), strict=True))


def comparisons(item: Item, curves: Curves) -> list[tuple[Printed, float, float, bool]]:
    """The paper's numbers beside ours: ours, its standard error, and whether it is within the tolerance."""
    rows = []
    for printed in item.printed:
        found = [(mean, error) for x, mean, error in curves.get(printed.curve, ()) if x == printed.x]
        if found:
            rows.append((printed, *found[0], abs(found[0][0] - printed.value) <= printed.tolerance))
    return rows


def verdict(item: Item, measured: Measured | None) -> str:
    """One of VERDICTS, from what was measured alone."""
    if item.measure is None:
        return "nothing to measure"
    if measured is None:
        return "not run yet"
    if measured.stand_in:
        return "cannot be had here"
    if not all(claim.holds(measured.curves) for claim in item.claims):
        return "does not hold"
    beside = comparisons(item, measured.curves)
    return (
        "holds" if beside and len(beside) == len(item.printed) and all(row[3] for row in beside) else "holds in shape"
    )
