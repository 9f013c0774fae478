"""The notebooks of `examples/` run from an empty folder, and print what stands in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.build.notebooks import notebooks, printed, shown
from tests.docs.blocks import matches

pytestmark = pytest.mark.docs


def test_there_are_notebooks_and_they_are_ones() -> None:
    assert len(notebooks()) >= 2
    for path in notebooks():
        notebook = json.loads(path.read_text())
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        assert notebook["cells"][0]["cell_type"] == "markdown"
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), f"{path.name} was not run"
        assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for cell, text in printed(json.loads(path.read_text()), path.name):
        assert matches(shown(cell), text), f"{path.name} shows\n{shown(cell)}\nand this came:\n{text}"
