"""Types say something: `Any` is for pytrees, under the name `Tree`."""

from __future__ import annotations

import re
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
