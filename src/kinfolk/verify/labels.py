"""What is known of a value in a traced program: whether it depends on data, and which input it still is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from kinfolk.types import Tree

CLEAN, ROWS, MARKED, KEY, TERMS, COUNTER = "clean", "rows", "marked", "key", "terms", "counter"
"""ROWS: raw, one privacy unit per row of the leading axis. KEY: a noise or coin key. Any operation on these two makes
them MARKED. TERMS: a mechanism's numbers; COUNTER: a meter's uses. Both are clean, and lose their label when changed.
"""


@dataclass(frozen=True)
class For:
    """The label of inputs that belong to some kinds of release: no other kind may use them."""

    label: str
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """An input that a release must get untouched, and in its place."""

    label: str
    number: int
    """Among the inputs of this label and these kinds."""
    kinds: tuple[str, ...] = ()
    """Kinds of release that may use it; empty: every kind."""


@dataclass(frozen=True, eq=False)
class Token:
    """The value of a counter at one point of the program; compared by identity."""

    kinds: tuple[str, ...]
    """Kinds of release that it counts."""


Given = str | For
Label = str | Place | Token


def private(mark: Label) -> bool:
    return (mark.label if isinstance(mark, Place) else mark) in (ROWS, MARKED, KEY)


def numbered(marks: Sequence[Given]) -> list[Label]:
    """Counters become tokens; rows, keys and terms get numbers, each in the order of the inputs."""
    seen: dict[Given, int] = {}
    labels: list[Label] = []
    for mark in marks:
        label, kinds = (mark.label, mark.kinds) if isinstance(mark, For) else (mark, ())
        if label in (ROWS, KEY, TERMS):
            labels.append(Place(label, seen.get(mark, 0), kinds))
            seen[mark] = seen.get(mark, 0) + 1
        else:
            labels.append(Token(kinds) if label == COUNTER else label)
    return labels


def spread(label: Tree, argument: Tree) -> list[Given]:
    """One label per leaf of `argument`, from a prefix tree of labels."""
    if isinstance(label, Given):
        return [label] * len(jax.tree.leaves(argument))
    return jax.tree.leaves(jax.tree.map(lambda mark, part: jax.tree.map(lambda _: mark, part), label, argument))


def mixed(marks: Sequence[Label]) -> str:
    """The label of a value computed from these."""
    return MARKED if any(private(mark) for mark in marks) else CLEAN


def plain(mark: Label) -> str:
    if isinstance(mark, Token):
        return COUNTER
    return mark.label if isinstance(mark, Place) else mark


def join(*marks: Label) -> Label:
    """A special label stays only where every path leaves the value alone."""
    return marks[0] if len(set(marks)) == 1 else mixed(marks)


def fresh(mark: Label) -> Label:
    """A counter at another point of the program; every other label stays."""
    return Token(mark.kinds) if isinstance(mark, Token) else mark


def _counts_alike(marks: Sequence[Label]) -> bool:
    return all(isinstance(mark, Token) for mark in marks) and len({getattr(mark, "kinds", ()) for mark in marks}) == 1


def join_turn(before: Label, after: Label) -> Label:
    """What a loop's value is after any number of turns: a counter stays one if every turn hands one of its kind on."""
    return before if _counts_alike((before, after)) else join(before, after)


def join_branches(marks: Sequence[Label]) -> Label:
    """What a branch's value is: a counter, if every branch hands one of the same kind on."""
    return fresh(marks[0]) if _counts_alike(marks) else join(*marks)


def in_place(marks: list[Label], kind: str) -> bool:
    """Whether these are the numbers of the mechanism for this kind, from the first on, untouched and in order."""
    kinds = marks[0].kinds if marks and isinstance(marks[0], Place) else ()
    return kind in kinds and marks == [Place(TERMS, n, kinds) for n in range(len(marks))]
