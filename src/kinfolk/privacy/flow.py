"""Follows data through the traced program: what is marked leaves only through a release, and releases are counted.

Inputs that hold data, and keys, coins and masks, are marked; so are constants, which may be data frozen at trace time.
Every operation passes marks on. Only a release clears them, and only if (i) everything else it reads is clean, and
(ii) its rows reach it untouched, one unit per row: nothing may mix rows before they are clipped.

It does not see sensitivities, shapes, Python control flow, the engine's gather and scatter, time, memory or logs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend import core

from kinfolk.privacy.release import PrivacyError, release_p

CLEAN, ROWS, MARKED = 0, 1, 2
"""ROWS: raw, one privacy unit per row of the leading axis. Any operation on rows makes them MARKED."""


@dataclass
class Report:
    """What a check found about one traced function."""

    labels: Any = None
    """A label for every output, in the output's tree structure."""
    releases: dict[str, int] = field(default_factory=dict)
    """Most releases of each kind that one call can make."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Most scalars in one release of each kind."""
    violations: list[str] = field(default_factory=list)
    program: str = ""
    """Hash of the traced program."""


def check(function: Any, arguments: Sequence[Any], labels: Sequence[Any]) -> Report:
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
    outputs, report.releases = walker.walk(closed, marks)
    report.labels = jax.tree.unflatten(jax.tree.structure(shapes), outputs)
    text = re.sub(r" at 0x[0-9a-f]+", "", str(closed))
    report.program = hashlib.sha256(text.encode()).hexdigest()
    return report


def _spread(label: Any, argument: Any) -> list[int]:
    """One mark per leaf of `argument`, from a prefix tree of labels."""
    if isinstance(label, int):
        return [label] * len(jax.tree.leaves(argument))
    return jax.tree.leaves(jax.tree.map(lambda mark, part: jax.tree.map(lambda _: mark, part), label, argument))


def must_be_clean(report: Report, what: str, labels: Any) -> None:
    """Adds a violation if any of `labels` is marked."""
    if any(mark != CLEAN for mark in jax.tree.leaves(labels)):
        report.violations.append(f"{what} depends on data other than through a release")


@dataclass
class _Walker:
    report: Report

    def violate(self, equation: Any, text: str) -> None:
        found = f"{text}{_place(equation)}"
        if found not in self.report.violations:
            self.report.violations.append(found)

    def walk(self, closed: Any, marks: Sequence[int]) -> tuple[list[int], dict[str, int]]:
        """Labels of the outputs of a closed program, and the releases it makes."""
        jaxpr = closed.jaxpr
        known: dict[Any, int] = dict(zip(jaxpr.invars, marks, strict=True))
        known.update(dict.fromkeys(jaxpr.constvars, MARKED))

        def read(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return CLEAN if getattr(atom.val, "ndim", 0) == 0 else MARKED
            return known[atom]

        total: dict[str, int] = {}
        for equation in jaxpr.eqns:
            outputs, releases = self.step(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
            _add(total, releases)
        return [read(atom) for atom in jaxpr.outvars], total

    def step(self, equation: Any, marks: list[int]) -> tuple[list[int], dict[str, int]]:
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
            if max(marks, default=CLEAN) > CLEAN:
                self.violate(equation, f"{name} shows a value that depends on data")
            return [MARKED] * outputs, {}
        inner = [closed for closed in _programs(equation) if len(closed.jaxpr.invars) == len(marks)]
        if len(inner) == 1 and len(inner[0].jaxpr.outvars) == outputs:
            return self.walk(inner[0], marks)
        if any(_has_release(closed) for closed in _programs(equation)):
            self.violate(equation, f"a release inside {name!r}, which the check cannot follow")
        mixed = MARKED if max(marks, default=CLEAN) > CLEAN or any(c.consts for c in _programs(equation)) else CLEAN
        return [mixed] * outputs, {}

    def release(self, equation: Any, marks: list[int]) -> tuple[list[int], dict[str, int]]:
        first, last = equation.params["secrets"], equation.params["secrets"] + equation.params["units"]
        before = len(self.report.violations)
        if any(mark == MARKED for mark in marks[first:last]):
            self.violate(equation, "rows were changed or mixed before they reached a release")
        if any(mark != CLEAN for mark in marks[last:]):
            self.violate(equation, "a release reads something besides its rows that depends on data")
        for problem in _problems_inside(equation.params["program"]):
            self.violate(equation, problem)
        ok = len(self.report.violations) == before
        kind, size = equation.params["kind"], sum(variable.aval.size for variable in equation.outvars)
        self.report.sizes[kind] = max(size, self.report.sizes.get(kind, 0))
        return [CLEAN if ok else MARKED] * len(equation.outvars), {kind: 1}

    def scan(self, equation: Any, marks: list[int]) -> tuple[list[int], dict[str, int]]:
        constants, carried = equation.params["num_consts"], equation.params["num_carry"]
        fixed, carry = marks[:constants], marks[constants : constants + carried]
        slices = [MARKED if mark else CLEAN for mark in marks[constants + carried :]]
        while True:  # marks only grow, so this ends
            outputs, releases = self.walk(equation.params["jaxpr"], [*fixed, *carry, *slices])
            joined = [_join(a, b) for a, b in zip(carry, outputs[:carried], strict=True)]
            if joined == carry:
                break
            carry = joined
        stacked = [MARKED if mark else CLEAN for mark in outputs[carried:]]
        return [*carry, *stacked], {kind: count * equation.params["length"] for kind, count in releases.items()}

    def loop(self, equation: Any, marks: list[int]) -> tuple[list[int], dict[str, int]]:
        p = equation.params
        if _has_release(p["body_jaxpr"]) or _has_release(p["cond_jaxpr"]):
            self.violate(equation, "a release inside a while loop cannot be counted: use scan with an `active` flag")
        ahead, body = marks[: p["cond_nconsts"]], marks[p["cond_nconsts"] : p["cond_nconsts"] + p["body_nconsts"]]
        carry = marks[p["cond_nconsts"] + p["body_nconsts"] :]
        while True:
            outputs, _ = self.walk(p["body_jaxpr"], [*body, *carry])
            decided, _ = self.walk(p["cond_jaxpr"], [*ahead, *carry])
            joined = [_join(a, b) if decided[0] == CLEAN else MARKED for a, b in zip(carry, outputs, strict=True)]
            if joined == carry:
                break
            carry = joined
        return carry, {}

    def branches(self, equation: Any, marks: list[int]) -> tuple[list[int], dict[str, int]]:
        index, rest = marks[0], marks[1:]
        results = [self.walk(branch, rest) for branch in equation.params["branches"]]
        if index > CLEAN and any(releases for _, releases in results):
            self.violate(equation, "data decides whether a release is made")
        outputs = [_join(*labels) for labels in zip(*(labels for labels, _ in results), strict=True)]
        kinds = {kind for _, releases in results for kind in releases}
        dearest = {kind: max(releases.get(kind, 0) for _, releases in results) for kind in kinds}
        return [MARKED] * len(outputs) if index > CLEAN else outputs, dearest


def _join(*marks: int) -> int:
    """Untouched rows stay rows only where every path leaves them alone."""
    return marks[0] if len(set(marks)) == 1 else MARKED


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for kind, count in more.items():
        total[kind] = total.get(kind, 0) + count


def _programs(equation: Any) -> list[Any]:
    """Programs held by an equation, closed; an open one has no constants."""
    found = []
    for value in jax.tree.leaves(tuple(equation.params.values()), is_leaf=_is_program):
        if isinstance(value, core.ClosedJaxpr):
            found.append(value)
        elif isinstance(value, core.Jaxpr):
            found.append(core.ClosedJaxpr(value, []))
    return found


def _is_program(value: Any) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def _has_release(closed: Any) -> bool:
    return any(
        equation.primitive is release_p or any(_has_release(inner) for inner in _programs(equation))
        for equation in closed.jaxpr.eqns
    )


def _problems_inside(closed: Any) -> list[str]:
    """What may not stand inside a release: constants (perhaps frozen data), callbacks, another release."""
    problems = ["a release closes over a constant array, which may be data"] if closed.consts else []
    for equation in closed.jaxpr.eqns:
        name = equation.primitive.name
        if "callback" in name or "debug" in name or "outfeed" in name:
            problems.append(f"{name} inside a release shows raw values")
        if equation.primitive is release_p:
            problems.append("a release inside a release")
        for inner in _programs(equation):
            problems += _problems_inside(inner)
    return list(dict.fromkeys(problems))


def _place(equation: Any) -> str:
    """Where in the user's code an equation comes from, as ' (file:line in function)'."""
    traceback = getattr(equation.source_info, "traceback", None)
    for frame in traceback.frames if traceback else ():
        file = frame.file_name.replace("\\", "/")
        if not re.search(r"/jax/|/jaxlib/|/kinfolk/privacy/|<frozen|<string>", file):
            return f" ({file.rsplit('/', 1)[-1]}:{frame.line_num} in {frame.function_name})"
    return ""
