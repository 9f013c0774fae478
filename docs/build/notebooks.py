"""Runs the notebooks in `examples/`: what their cells print is written into them, and a test compares it.

    python -m docs.build.notebooks

Needs nothing but Python: cells share names, as in a kernel, and what they print is their output.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
Notebook = dict[str, Any]
"""As the file has it: format 4."""


def notebooks() -> list[Path]:
    """All of them."""
    return sorted(EXAMPLES.glob("*.ipynb"))


def printed(notebook: Notebook, name: str) -> Iterator[tuple[Notebook, str]]:
    """Runs the code cells in order, in the folder one is in; yields each with what it prints.

    `name`: of the notebook, for tracebacks.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec", dont_inherit=True), names)
        yield cell, out.getvalue()


def shown(cell: Notebook) -> str:
    """What a cell has written under it."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def write_outputs(path: Path) -> None:
    """Runs a notebook in an empty folder and writes it down with what it printed."""
    notebook = json.loads(path.read_text())
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder, contextlib.chdir(folder):
        os.environ |= {"KINFOLK_LEDGERS": f"{folder}/ledgers", "KINFOLK_KEYS": f"{folder}/keys"}
        for number, (cell, text) in enumerate(printed(notebook, path.name), 1):
            stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
            cell["execution_count"], cell["outputs"] = number, [stream] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for found in notebooks():
        write_outputs(found)
        print(found.name)
