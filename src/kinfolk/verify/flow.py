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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax
from jax.extend import core

from kinfolk.privacy.fingerprint import fingerprint, text, traced
from kinfolk.privacy.release import PrivacyError, release_p
from kinfolk.types import Tree
from kinfolk.verify import jaxprs
from kinfolk.verify.labels import (
    CLEAN,
    KEY,
    MARKED,
    ROWS,
    Label,
    Place,
    Token,
    fresh,
    in_place,
    join,
    join_branches,
    join_turn,
    mixed,
    numbered,
    plain,
    private,
    spread,
)


@dataclass
class Report:
    """What a check found about one traced function."""

    labels: Tree = None
    """A label for every output, in the output's tree structure."""
    places: Tree = None
    """The same with the places of inputs that come out untouched, and whose counters are whose."""
    releases: dict[str, int] = field(default_factory=dict)
    """Most releases of each kind that one call can make."""
    certain: dict[str, int] = field(default_factory=dict)
    """Fewest: those that are always active, in every branch."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Most scalars in one release of each kind."""
    bodies: list[tuple[str, str, Tree]] = field(default_factory=list)
    """Every release's kind, the text of the program inside, and the shapes of its public arguments."""
    violations: list[str] = field(default_factory=list)
    program: str = ""
    """Hash of the traced program."""
    divides: bool = False
    """Whether it divides work among devices."""


def check(function: Callable[..., Tree], arguments: Sequence[Tree], labels: Sequence[Tree]) -> Report:
    """Traces `function(*arguments)` and follows the labels of its inputs.

    `arguments` may be shapes instead of arrays. `labels` has, per argument, one label or a tree of them that is a
    prefix of the argument.
    """
    report = Report()
    try:
        closed, shapes = traced(function, tuple(arguments))
    except PrivacyError as error:
        report.violations.append(str(error))
        return report
    except jax.errors.ConcretizationTypeError as error:
        report.violations.append(f"Python looked at a traced value: {str(error).splitlines()[0]}")
        return report
    marks = [mark for argument, label in zip(arguments, labels, strict=True) for mark in spread(label, argument)]
    walker = _Walker(report)
    outputs, made = walker.walk(closed, numbered(marks))
    report.releases = {kind: count.most for kind, count in made.items()}
    report.certain = {kind: count.least for kind, count in made.items()}
    unused = walker.plain_once(outputs)
    report.labels = jax.tree.unflatten(jax.tree.structure(shapes), [plain(mark) for mark in unused])
    report.places = jax.tree.unflatten(jax.tree.structure(shapes), unused)
    report.program = fingerprint(closed)
    report.divides = jaxprs.divides(closed)
    return report


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


@dataclass(frozen=True)
class _Count:
    """How many releases of a kind a program makes, at least and at most."""

    least: int = 0
    most: int = 0


_Made = dict[str, _Count]


@dataclass
class _Walker:
    report: Report
    spent: set[Label] = field(default_factory=set)
    """Counters that a release has used, or that a loop only lends."""

    def violate(self, equation: core.JaxprEqn, text: str) -> None:
        found = f"{text}{jaxprs.place(equation)}"
        if found not in self.report.violations:
            self.report.violations.append(found)

    def walk(self, closed: core.ClosedJaxpr, marks: Sequence[Label]) -> tuple[list[Label], _Made]:
        """Labels of the outputs of a closed program, and the releases it makes."""
        jaxpr = closed.jaxpr
        known: dict[core.Var, Label] = dict(zip(jaxpr.invars, marks, strict=True))
        known.update(dict.fromkeys(jaxpr.constvars, MARKED))

        def read(atom: core.Var | core.Literal) -> Label:
            if isinstance(atom, core.Literal):
                return CLEAN if getattr(atom.val, "ndim", 0) == 0 else MARKED
            return known[atom]

        total: _Made = {}
        for equation in jaxpr.eqns:
            outputs, releases = self.step(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
            _add(total, releases)
        return [read(atom) for atom in jaxpr.outvars], total

    def step(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], _Made]:
        name, outputs = equation.primitive.name, len(equation.outvars)
        if jaxprs.shows(equation):
            if mixed(marks) == MARKED:
                self.violate(equation, f"{name} shows a value that depends on data")
            return [MARKED] * outputs, {}
        if why := jaxprs.refusal(equation):
            self.violate(equation, why)
            return [MARKED] * outputs, {}
        if equation.primitive is release_p:
            return self.release(equation, marks)
        if name == "scan":
            return self.scan(equation, marks)
        if name == "while":
            return self.loop(equation, marks)
        if name == "cond":
            return self.branches(equation, marks)
        if name == "shard_map":
            return self.divided(equation, marks)
        inner = [closed for closed in jaxprs.held(equation) if len(closed.jaxpr.invars) == len(marks)]
        if name in jaxprs.CALLS and len(inner) == 1 and len(inner[0].jaxpr.outvars) == outputs:
            return self.walk(inner[0], marks)
        for closed in jaxprs.held(equation):
            for problem in jaxprs.unseen_inside(closed, repr(name)):
                self.violate(equation, problem)
        frozen = any(closed.consts for closed in jaxprs.held(equation))
        return [MARKED if frozen else mixed(marks)] * outputs, {}

    def release(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], _Made]:
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
        if not in_place(terms, kind):
            self.violate(equation, "a mechanism was changed inside the program")
        if any(private(mark) for mark in public):
            self.violate(equation, "a release reads something besides its rows that depends on data")
        for problem in jaxprs.problems_inside(equation.params["program"]):
            self.violate(equation, problem)
        self.spent.add(counter[0])
        ok = len(self.report.violations) == before
        size = sum(jaxprs.aval(variable).size for variable in equation.outvars[1:])
        self.report.sizes[kind] = max(size, self.report.sizes.get(kind, 0))
        self.report.bodies.append((kind, text(equation.params["program"]), jaxprs.public_shapes(equation)))
        active = equation.invars[-1]
        certain = isinstance(active, core.Literal) and bool(active.val)
        made = {kind: _Count(int(certain), 1)}
        return [Token((kind,)), *[CLEAN if ok else MARKED] * (len(equation.outvars) - 1)], made

    def scan(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], _Made]:
        constants, carried = jaxprs.scan_sizes(equation.params)
        fixed = [CLEAN if isinstance(mark, Token) else mark for mark in marks[:constants]]  # the same in every turn
        carry = self.handed_over(marks[constants : constants + carried])
        slices = [mixed([mark]) for mark in marks[constants + carried :]]
        while True:  # labels only get worse, so this ends
            entering = [fresh(mark) for mark in carry]
            outputs, releases = self.walk(equation.params["jaxpr"], [*fixed, *entering, *slices])
            leaving = self.plain_once(outputs[:carried])
            joined = [join_turn(a, b) for a, b in zip(carry, leaving, strict=True)]
            if joined == carry:
                break
            carry = joined
        last = [fresh(mark) for mark in carry]
        stacked = [mixed([mark]) for mark in outputs[carried:]]
        turns = equation.params["length"]
        made = {kind: _Count(count.least * turns, count.most * turns) for kind, count in releases.items()}
        return [*last, *stacked], made

    def divided(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], _Made]:
        """What several devices compute together: rows may be divided, repeated or mixed, so none are untouched."""
        (closed,) = jaxprs.held(equation)
        if jaxprs.has_release(closed):
            self.violate(equation, "a release inside shard_map would be made, with the same noise, on every device")
        outputs, _ = self.walk(closed, [mixed([mark]) for mark in marks])
        return [mixed([mark]) for mark in outputs], {}

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

    def loop(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], _Made]:
        p = equation.params
        if jaxprs.has_release(p["body_jaxpr"]) or jaxprs.has_release(p["cond_jaxpr"]):
            self.violate(equation, "a release inside a while loop cannot be counted: use scan with an `active` flag")
        ahead, body = marks[: p["cond_nconsts"]], marks[p["cond_nconsts"] : p["cond_nconsts"] + p["body_nconsts"]]
        carry = marks[p["cond_nconsts"] + p["body_nconsts"] :]
        while True:
            outputs, _ = self.walk(p["body_jaxpr"], [*body, *carry])
            decided, _ = self.walk(p["cond_jaxpr"], [*ahead, *carry])
            seen = private(decided[0])
            joined = [MARKED if seen else join(a, b) for a, b in zip(carry, outputs, strict=True)]
            if joined == carry:
                break
            carry = joined
        self.must_be_silent(equation, seen, [p["body_jaxpr"], p["cond_jaxpr"]])
        return carry, {}

    def must_be_silent(self, equation: core.JaxprEqn, seen: bool, parts: Sequence[core.ClosedJaxpr]) -> None:
        """Where data decide what runs, and how often, even a constant that is printed tells something of them."""
        for name in dict.fromkeys(name for part in parts if seen for name in jaxprs.shown_inside(part)):
            self.violate(equation, f"data decide how often {name} is called")

    def branches(self, equation: core.JaxprEqn, marks: list[Label]) -> tuple[list[Label], _Made]:
        index, rest = marks[0], self.plain_once(marks[1:])
        lent: dict[Label, Label] = {mark: fresh(mark) for mark in rest if isinstance(mark, Token)}
        before, results, spent = set(self.spent), [], set(self.spent)
        for branch in equation.params["branches"]:
            self.spent = set(before)
            outputs, releases = self.walk(branch, [lent.get(mark, mark) for mark in rest])
            results.append((self.plain_once(outputs), releases))
            spent |= self.spent | {mark for mark in outputs if isinstance(mark, Token)}
        self.spent = spent | {mark for mark, inner in lent.items() if inner in spent}
        if private(index) and any(releases for _, releases in results):
            self.violate(equation, "data decides whether a release is made")
        self.must_be_silent(equation, private(index), equation.params["branches"])
        columns = zip(*(labels for labels, _ in results), strict=True)
        outputs = [join_branches(column) for column in columns]
        kinds = {kind for _, releases in results for kind in releases}
        made: _Made = {}
        for kind in kinds:
            counts = [releases.get(kind, _Count()) for _, releases in results]
            made[kind] = _Count(min(count.least for count in counts), max(count.most for count in counts))
        return [MARKED] * len(outputs) if private(index) else outputs, made


def _split(marks: list[Label], sizes: Sequence[int]) -> list[list[Label]]:
    """Labels of a release's inputs: keys, counter, units, terms, and everything else."""
    *named, _ = sizes
    parts, begin = [], 0
    for size in named:
        parts.append(marks[begin : begin + size])
        begin += size
    return [*parts, marks[begin:]]


def _add(total: _Made, more: _Made) -> None:
    for kind, count in more.items():
        before = total.get(kind, _Count())
        total[kind] = _Count(before.least + count.least, before.most + count.most)
