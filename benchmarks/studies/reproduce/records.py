"""What a table or figure of a paper says, what was measured for it here, and the verdict.

>>> claim = Claim("ours is larger", lambda curves: curves["ours"][0].mean > 1)
>>> item = Item("paper/figure-1", "a figure", "one curve", (claim,), lambda size: Measured({}, "", 1, ""))
>>> verdict(item, Measured({"ours": [Point(0.0, 2.0, 0.1)]}, "some data", 3, "epsilon 1"))
'holds in shape'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Literal, NamedTuple

Size = Literal["cell", "quick", "full"]
"""`cell`: seconds, to see that it runs. `quick`: a few minutes at most on two cores. `full`: the paper's setting, or
as near as data and machines allow."""


class Point(NamedTuple):
    """Of a curve."""

    x: float
    mean: float
    """Over seeds."""
    error: float = 0.0
    """The mean's standard error."""
    seeds: tuple[float, ...] = ()
    """What each seed gave, where that was kept: the same seeds divide the rows alike for all curves."""


Curves = Mapping[str, Sequence[Point]]
"""By name."""
Strengths = Mapping[str, Sequence[tuple[float, float, bool]]]
"""By curve: x, the strength that was best there, and whether the grid goes on to both sides of it (`settled`)."""
PAPERS = {
    "pmtl": "Hu, Wu and Smith, Private Multi-Task Learning (figures and tables numbered as in the journal's version)",
    "model-protected": "Liang et al., Model-Protected Multi-Task Learning",
    "cross-silo": "Liu, Hu, Wu and Smith, On Privacy and Personalization in Cross-Silo Federated Learning",
}
VERDICTS = ("holds", "holds in shape", "does not hold", "cannot be had here", "nothing to measure", "not run yet")
NO_PRIVACY = 100.0
"""Where curves over epsilon show training without privacy."""
PLACES = {"epsilon": {NO_PRIVACY: "no privacy"}, "strength": {1e-3: "local", 1e4: "FedAvg"}}
"""What numbers across stand for, where they are not themselves."""
NOT_PRINTED = "The curves are in the figure only: no number can be read from the text."


def settled(grid: Sequence[float], strength: float) -> bool:
    """Whether the grid goes on to both sides of a strength, or nothing lies beyond it, as beyond 0 and infinity.

    >>> settled((0.3, 1.0, 3.0), 3.0), settled((0.3, 1.0, math.inf), math.inf)
    (False, True)
    """
    return grid[0] < strength < grid[-1] or strength in (0.0, math.inf)


class ElsewhereError(Exception):
    """The full setting of an item is for an accelerator; the argument is the study of `full_runs` that has it."""


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
    spread: float = 0.0
    """What is printed after a plus-minus."""
    bound: Literal["", "above", "below"] = ""
    """Where the paper says no more than that."""
    source: str = ""
    """Where it stands, if not in the item itself."""

    @property
    def words(self) -> str:
        """The number as a person would write it."""
        spread = f" ± {self.spread:g}" if self.spread else ""
        return f"{self.bound} {self.value:g}{spread}".strip()

    def agrees(self, mean: float) -> bool:
        """Whether ours is the same, up to the tolerance."""
        low = -math.inf if self.bound == "below" else self.value - self.tolerance
        high = math.inf if self.bound == "above" else self.value + self.tolerance
        return low <= mean <= high


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
    machine: str = ""
    """Which one, then."""
    strengths: Strengths = field(default_factory=dict)
    """Where the best of a grid was taken."""


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
    log_up: bool = False
    panels: tuple[str, ...] = ()
    """Parts that are drawn one below the other; then curves are called `NAME: PART`."""

    @property
    def paper(self) -> str:
        return self.name.split("/")[0]

    @property
    def names(self) -> Mapping[float, str]:
        """Words for places across that are not what they seem."""
        return PLACES.get(self.across, {})

    @property
    def anchor(self) -> str:
        """`figure-3b`."""
        return self.name.split("/")[1]


def at(curves: Curves, name: str, x: float) -> float:
    """The mean of a curve at a point."""
    return point_at(curves, name, x).mean


def point_at(curves: Curves, name: str, x: float) -> Point:
    """A curve's point at a place."""
    return next(point for point in curves[name] if point.x == x)


def means(curves: Curves, name: str) -> list[float]:
    return [point.mean for point in curves[name]]


def with_privacy(curves: Curves, most: float = math.inf) -> Curves:
    """Without the places that show training without privacy, and those where epsilon is above `most`."""
    return {name: [p for p in points if p.x != NO_PRIVACY and p.x <= most] for name, points in curves.items()}


def never_below(curves: Curves, one: str, other: str, slack: float = 0.0) -> bool:
    """Whether a curve is at least as high as another everywhere, up to `slack`."""
    return all(a >= b - slack for a, b in zip(means(curves, one), means(curves, other), strict=True))


def clearly(curves: Curves, one: str, others: Sequence[str], x: float | None = None, *, lower: bool = False) -> bool:
    """Whether a curve is better than each of the others at a place, or at any, by more than two standard errors.

    `lower`: less is better.
    """
    places = [point.x for point in curves[one]] if x is None else [x]
    return any(
        all(ahead(point_at(curves, one, place), point_at(curves, other, place), lower) for other in others)
        for place in places
    )


def everywhere(curves: Curves, one: str, others: Sequence[str], *, lower: bool = False) -> bool:
    """Whether a curve is better than each of the others at every place, by more than two standard errors."""
    return all(clearly(curves, one, others, point.x, lower=lower) for point in curves[one])


def unrivalled(curves: Curves, own: Sequence[str], *, lower: bool = False) -> bool:
    """Whether at every place no other curve is better than all of one's own, by more than two standard errors."""
    rest = [name for name in curves if name not in own]
    return not any(clearly(curves, name, own, point.x, lower=lower) for name in rest for point in curves[name])


def ahead(one: Point, other: Point, lower: bool = False) -> bool:
    """Whether a point is better by more than two standard errors of the difference: seed by seed, where both have what
    each gave, else as of two that know nothing of each other.

    `lower`: less is better.
    """
    gain = difference(one, other)
    return (-gain.mean if lower else gain.mean) > 2 * gain.error


def difference(one: Point, other: Point) -> Point:
    """How much more one has than another, at the first one's place: seed by seed, where both have what each gave."""
    if not len(one.seeds) == len(other.seeds) > 1:
        return Point(one.x, one.mean - other.mean, math.hypot(one.error, other.error))
    gains = tuple(a - b for a, b in zip(one.seeds, other.seeds, strict=True))
    return Point(one.x, fmean(gains), stdev(gains) / math.sqrt(len(gains)), gains)


@dataclass(frozen=True)
class Beside:
    """A number of the paper, ours with its standard error if there is one, and whether they agree."""

    printed: Printed
    mean: float | None
    error: float
    agrees: bool


def comparisons(item: Item, curves: Curves) -> list[Beside]:
    """All of the paper's numbers beside ours."""
    rows = []
    for printed in item.printed:
        mean, error = next(((p.mean, p.error) for p in curves.get(printed.curve, ()) if p.x == printed.x), (None, 0.0))
        rows.append(Beside(printed, mean, error, mean is not None and printed.agrees(mean)))
    return rows


def within(item: Item, curves: Curves) -> str:
    """How many of the paper's numbers agree with ours, in words; empty where there are none beside ours."""
    beside = [row for row in comparisons(item, curves) if row.mean is not None]
    agreeing = sum(row.agrees for row in beside)
    return f"Within the tolerance: {agreeing} of {len(beside)} printed numbers." if beside else ""


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
    return "holds" if beside and all(row.agrees for row in beside) else "holds in shape"
