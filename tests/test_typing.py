"""Types say something: `Any` is for pytrees, under the name `Tree`. Nobody has to count arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import kinfolk

SOURCE = Path(kinfolk.__file__).parent
MOST = 5.0
"""Uses of `Any` per 1000 lines."""
DEFINITION = re.compile(r"^(Tree|Value)\b.* = Any$|^\s*(from|import) .*\bAny\b|^\s*Any,$")


def uses(text: str) -> int:
    """How often a file says `Any`, besides imports and the two names that stand for it."""
    code = re.sub(r'"""(.|\n)*?"""', "", text)
    lines = (line.split("#")[0] for line in code.splitlines())
    return sum(len(re.findall(r"\bAny\b", line)) for line in lines if not DEFINITION.match(line))


def test_a_type_is_rarely_anything() -> None:
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    counts = {path: uses(text) for path, text in texts.items()}
    lines = sum(len(text.splitlines()) for text in texts.values())
    worst = sorted(counts, key=lambda path: -counts[path])[:5]
    found = sum(counts.values())
    assert found <= MOST * lines / 1000, [(str(path.relative_to(SOURCE)), counts[path]) for path in worst]


def test_what_counts_as_a_use() -> None:
    assert uses("from typing import Any\nTree = Any\n") == 0
    assert uses("def f(x: Any) -> dict[str, Any]:  # Any\n") == 2
    assert uses('def f(x: int) -> int:\n    """Any"""\n') == 0


MOST_BY_PLACE = 7
"""Arguments that a call gives, and a function takes, by their place: more have names."""
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
LISTS = ("nn.Sequential",)
"""Calls whose arguments are a list."""


def too_many(text: str) -> Iterator[str]:
    """Calls with too many arguments by place, and functions that take so many."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and len(node.args) > MOST_BY_PLACE and ast.unparse(node.func) not in LISTS:
            yield f"line {node.lineno}: a call of {ast.unparse(node.func)}"
        elif isinstance(node, ast.FunctionDef | ast.Lambda):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            if len(names) - (names[:1] in (["self"], ["cls"])) > MOST_BY_PLACE:
                yield f"line {node.lineno}: {getattr(node, 'name', 'lambda')}"


def test_no_call_has_eight_arguments_by_place() -> None:
    paths = [*SOURCE.rglob("*.py"), *BENCHMARKS.rglob("*.py")]
    found = {str(path): list(too_many(path.read_text())) for path in paths}
    assert not {path: places for path, places in found.items() if places}


def test_what_counts_as_too_many() -> None:
    assert list(too_many("f(1, 2, 3, 4, 5, 6, 7)\ndef f(self, a, b, c, d, e, f, g): ...")) == []
    assert list(too_many("f(1, 2, 3, 4, 5, 6, 7, 8)")) == ["line 1: a call of f"]
    assert list(too_many("def f(a, b, c, d, e, f, g, h): ...")) == ["line 1: f"]
    assert list(too_many("def f(a, *, b, c, d, e, f, g, h): ...")) == []
