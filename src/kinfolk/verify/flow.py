"""Follows data through the traced program: what is marked leaves only through a release, and releases are counted.

Inputs that hold data, and keys, coins and masks, are marked; so are constants, which may be data frozen at trace time.
Every operation passes marks on. Only a release clears them, and only if (i) everything else it reads is clean, (ii) its
rows reach it untouched, one unit per row: nothing may mix rows before they are clipped, (iii) its keys and the numbers
of its mechanism are those the gate came with, each in its place and for this kind of release, and (iv) its counter is
its kind's and was used by no other release: a counter is a token that a release spends and gives back advanced, so
noise is never used twice and all is counted.

It does not see sensitivities, shapes, Python control flow, the engine's gather and scatter, time, memory or logs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np
from jax.extend import core

from kinfolk.privacy.release import PrivacyError, release_p
from kinfolk.types import Tree
from kinfolk.verify import jaxprs

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


@dataclass
class Report:
    """What a check found about one traced function."""

    labels: Tree = None
    """A label for every output, in the output's tree structure."""
    places: Tree = None
    """The same with the places of inputs that come out untouched, and whose counters are whose."""
    releases: dict[str, int] = field(default_factory=dict)
    """Most releases of each kind that one call can make."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Most scalars in one release of each kind."""
    bodies: list[tuple[str, str, Tree]] = field(default_factory=list)
    """Every release's kind, the text of the program inside, and the shapes of its public arguments."""
    violations: list[str] = field(default_factory=list)
    program: str = ""
    """Hash of the traced program."""


def check(function: Callable[..., Tree], arguments: Sequence[Tree], labels: Sequence[Tree]) -> Report:
    """Traces `function(*arguments)` and follows the labels of its inputs.

    `arguments` may be shapes instead of arrays. `labels` has, per argument, one label or a tree of them that is a
    prefix of the argument.
    """
    report = Report()
    try:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    except PrivacyError as error:
        report.violations.append(str(error))
        return report
    except jax.errors.ConcretizationTypeError as error:
        report.violations.append(f"Python looked at a traced value: {str(error).splitlines()[0]}")
        return report
    marks = [mark for argument, label in zip(arguments, labels, strict=True) for mark in _spread(label, argument)]
    walker = _Walker(report)
    outputs, report.releases = walker.walk(closed, _numbered(marks))
    unused = walker.plain_once(outputs)
    report.labels = jax.tree.unflatten(jax.tree.structure(shapes), [_kind_of(mark) for mark in unused])
    report.places = jax.tree.unflatten(jax.tree.structure(shapes), unused)
    constants = "".join(hashlib.sha256(np.asarray(value).tobytes()).hexdigest() for value in closed.consts)
    report.program = hashlib.sha256((jaxprs.text(closed) + constants).encode()).hexdigest()
    return report


def _numbered(marks: Sequence[Given]) -> list[Label]:
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


def _spread(label: Tree, argument: Tree) -> list[Given]:
    """One label per leaf of `argument`, from a prefix tree of labels."""
    if isinstance(label, Given):
        return [label] * len(jax.tree.leaves(argument))
    return jax.tree.leaves(jax.tree.map(lambda mark, part: jax.tree.map(lambda _: mark, part), label, argument))


def must_be_clean(report: Report, what: str, labels: Tree) -> None:
    """Adds a violation if any of `labels` is private."""
    if any(private(mark) for mark in jax.tree.leaves(labels)):
        report.violations.append(f"{what} depends on data other than through a release")


def must_be_counters(report: Report, places: Mapping[str, Tree]) -> None:
    """Adds a violation unless every kind's place holds its own counter, which no release has used up."""
    if any(not isinstance(mark, Token) or mark.kinds != (kind,) for kind, mark in places.items()):
        report.violations.append("the counters that come back are not the latest: use the gate that a query returns")


def must_be_handed_on(report: Report, keys: Sequence[object], tape: Mapping[str, object], numbers: Tree) -> None:
    """Adds a violation unless a meter's keys and noise come back untouched, each in its place, and all else clean.

    The next round starts from this meter: what is hidden in it now would count as clean then.
    """
    moved = any(mark != Place(KEY, n) for n, mark in enumerate(keys))
    if moved or any(mark != Place(KEY, 0, (kind,)) for kind, mark in tape.items()):
        report.violations.append("the keys or the noise of the next round were changed: leave the meter alone")
    if any(private(mark) for mark in jax.tree.leaves(numbers)):
        report.violations.append("something that depends on data was put into the meter, where the next round finds it")


@dataclass
class _Walker:
    report: Report
    spent: set[Label] = field(default_factory=set)
    """Counters that a release has used, or that a loop only lends."""

    def violate(self, equation: core.JaxprEqn, text: str) -> None:
        found = f"{text}{jaxprs.place(equation)}"
        if found not in self.report.violations:
            self.report.violations.append(found)

    def walk(self, closed: core.ClosedJaxpr, marks: Sequence[Label]) -> tuple[list[Label], dict[str, int]]:
        """Labels of the outputs of a closed program, and the releases it makes."""
        jaxpr = closed.jaxpr
        known: dict[core.Var, Label] = dict(zip(jaxpr.invars, marks, strict=True))
        known.update(dict.fromkeys(jaxpr.constvars, MARKED))

        def read(atom: core.Var | core.Literal) -> Label:
            if isinstance(atom, core.Literal):
                return CLEAN if getattr(atom.val, "ndim", 0) == 0 else MARKED
            return known[atom]

        total: dict[str, int] = {}
        for equation in jaxpr.eqns:
            outputs, releases = self.step(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
            _add(total, releases)
        return [read(atom) for atom in jaxpr.outvars], total

    def step(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], dict[str, int]]:
        name, outputs = equation.primitive.name, len(equation.outvars)
        if equation.primitive is release_p:
            return self.release(equation, marks)
        if name == "scan":
            return self.scan(equation, marks)
        if name == "while":
            return self.loop(equation, marks)
        if name == "cond":
            return self.branches(equation, marks)
        if "callback" in name or "debug" in name or "outfeed" in name:
            if _mixed(marks) == MARKED:
                self.violate(equation, f"{name} shows a value that depends on data")
            return [MARKED] * outputs, {}
        if name in jaxprs.REFUSED or jaxprs.has_reference(equation):
            self.violate(equation, f"{name!r} may do what the check cannot see: write it with plain functions")
            return [MARKED] * outputs, {}
        inner = [closed for closed in jaxprs.held(equation) if len(closed.jaxpr.invars) == len(marks)]
        if name in jaxprs.CALLS and len(inner) == 1 and len(inner[0].jaxpr.outvars) == outputs:
            return self.walk(inner[0], marks)
        if any(jaxprs.has_release(closed) for closed in jaxprs.held(equation)):
            self.violate(equation, f"a release inside {name!r}, which the check cannot follow")
        frozen = any(closed.consts for closed in jaxprs.held(equation))
        return [MARKED if frozen else _mixed(marks)] * outputs, {}

    def release(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], dict[str, int]]:
        keys, counter, units, terms, public = _split(marks, equation.params["sizes"])
        kind, before = equation.params["kind"], len(self.report.violations)
        if keys[:2] != [Place(KEY, 0), Place(KEY, 1)]:
            self.violate(equation, "a release does not use the keys its gate came with")
        if any(mark != Place(KEY, 0, (kind,)) for mark in keys[2:]):
            self.violate(equation, f"a release of kind {kind!r} does not use the exact noise that was drawn for it")
        if not isinstance(counter[0], Token) or counter[0] in self.spent:
            self.violate(equation, "two releases would share noise: use the gate that a query returns")
        elif kind not in counter[0].kinds:
            self.violate(equation, f"a release of kind {kind!r} is counted as {' or '.join(counter[0].kinds)}")
        if units != [Place(ROWS, n) for n in range(len(units))]:
            self.violate(equation, "rows were changed or mixed before they reached a release")
        if not _in_place(terms, kind):
            self.violate(equation, "a mechanism was changed inside the program")
        if any(private(mark) for mark in public):
            self.violate(equation, "a release reads something besides its rows that depends on data")
        for problem in jaxprs.problems_inside(equation.params["program"]):
            self.violate(equation, problem)
        self.spent.add(counter[0])
        ok = len(self.report.violations) == before
        size = sum(jaxprs.aval(variable).size for variable in equation.outvars[1:])
        self.report.sizes[kind] = max(size, self.report.sizes.get(kind, 0))
        self.report.bodies.append((kind, jaxprs.text(equation.params["program"]), jaxprs.public_shapes(equation)))
        return [Token((kind,)), *[CLEAN if ok else MARKED] * (len(equation.outvars) - 1)], {kind: 1}

    def scan(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], dict[str, int]]:
        constants, carried = jaxprs.scan_sizes(equation.params)
        fixed = [CLEAN if isinstance(mark, Token) else mark for mark in marks[:constants]]  # the same in every turn
        carry = self.handed_over(marks[constants : constants + carried])
        slices = [_mixed([mark]) for mark in marks[constants + carried :]]
        while True:  # labels only get worse, so this ends
            entering = [_fresh(mark) for mark in carry]
            outputs, releases = self.walk(equation.params["jaxpr"], [*fixed, *entering, *slices])
            leaving = self.plain_once(outputs[:carried])
            joined = [_join_turn(a, b) for a, b in zip(carry, leaving, strict=True)]
            if joined == carry:
                break
            carry = joined
        last = [_fresh(mark) for mark in carry]
        stacked = [_mixed([mark]) for mark in outputs[carried:]]
        return [*last, *stacked], {kind: count * equation.params["length"] for kind, count in releases.items()}

    def handed_over(self, marks: Sequence[Label]) -> list[Label]:
        """What goes into a loop or a branch: a counter goes there for good, and only once."""
        labels = self.plain_once(marks)
        self.spent.update(mark for mark in marks if isinstance(mark, Token))
        return labels

    def plain_once(self, marks: Sequence[Label]) -> list[Label]:
        """Counters that were used up, or that are there already, are only numbers."""
        seen: set[Label] = set(self.spent)
        labels: list[Label] = []
        for mark in marks:
            labels.append(CLEAN if isinstance(mark, Token) and mark in seen else mark)
            if isinstance(mark, Token):
                seen.add(mark)
        return labels

    def loop(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], dict[str, int]]:
        p = equation.params
        if jaxprs.has_release(p["body_jaxpr"]) or jaxprs.has_release(p["cond_jaxpr"]):
            self.violate(equation, "a release inside a while loop cannot be counted: use scan with an `active` flag")
        ahead, body = marks[: p["cond_nconsts"]], marks[p["cond_nconsts"] : p["cond_nconsts"] + p["body_nconsts"]]
        carry = marks[p["cond_nconsts"] + p["body_nconsts"] :]
        while True:
            outputs, _ = self.walk(p["body_jaxpr"], [*body, *carry])
            decided, _ = self.walk(p["cond_jaxpr"], [*ahead, *carry])
            seen = private(decided[0])
            joined = [MARKED if seen else _join(a, b) for a, b in zip(carry, outputs, strict=True)]
            if joined == carry:
                break
            carry = joined
        return carry, {}

    def branches(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], dict[str, int]]:
        index, rest = marks[0], self.plain_once(marks[1:])
        lent: dict[Label, Label] = {mark: _fresh(mark) for mark in rest if isinstance(mark, Token)}
        before, results, spent = set(self.spent), [], set(self.spent)
        for branch in equation.params["branches"]:
            self.spent = set(before)
            outputs, releases = self.walk(branch, [lent.get(mark, mark) for mark in rest])
            results.append((self.plain_once(outputs), releases))
            spent |= self.spent | {mark for mark in outputs if isinstance(mark, Token)}
        self.spent = spent | {mark for mark, inner in lent.items() if inner in spent}
        if private(index) and any(releases for _, releases in results):
            self.violate(equation, "data decides whether a release is made")
        columns = zip(*(labels for labels, _ in results), strict=True)
        outputs = [_join_branches(column) for column in columns]
        kinds = {kind for _, releases in results for kind in releases}
        dearest = {kind: max(releases.get(kind, 0) for _, releases in results) for kind in kinds}
        return [MARKED] * len(outputs) if private(index) else outputs, dearest


def _mixed(marks: Sequence[Label]) -> str:
    """The label of a value computed from these."""
    return MARKED if any(private(mark) for mark in marks) else CLEAN


def _kind_of(mark: Label) -> str:
    if isinstance(mark, Token):
        return COUNTER
    return mark.label if isinstance(mark, Place) else mark


def _join(*marks: Label) -> Label:
    """A special label stays only where every path leaves the value alone."""
    return marks[0] if len(set(marks)) == 1 else _mixed(marks)


def _fresh(mark: Label) -> Label:
    """A counter at another point of the program; every other label stays."""
    return Token(mark.kinds) if isinstance(mark, Token) else mark


def _counts_alike(marks: Sequence[Label]) -> bool:
    return all(isinstance(mark, Token) for mark in marks) and len({getattr(mark, "kinds", ()) for mark in marks}) == 1


def _join_turn(before: Label, after: Label) -> Label:
    """What a loop's value is after any number of turns: a counter stays one if every turn hands one of its kind on."""
    return before if _counts_alike((before, after)) else _join(before, after)


def _join_branches(marks: Sequence[Label]) -> Label:
    """What a branch's value is: a counter, if every branch hands one of the same kind on."""
    return _fresh(marks[0]) if _counts_alike(marks) else _join(*marks)


def _in_place(marks: list[Label], kind: str) -> bool:
    """Whether these are the numbers of the mechanism for this kind, from the first on, untouched and in order."""
    kinds = marks[0].kinds if marks and isinstance(marks[0], Place) else ()
    return kind in kinds and marks == [Place(TERMS, n, kinds) for n in range(len(marks))]


def _split(marks: list[Label], sizes: Sequence[int]) -> list[list[Label]]:
    """Labels of a release's inputs: keys, counter, units, terms, and everything else."""
    *named, _ = sizes
    parts, begin = [], 0
    for size in named:
        parts.append(marks[begin : begin + size])
        begin += size
    return [*parts, marks[begin:]]


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for kind, count in more.items():
        total[kind] = total.get(kind, 0) + count
