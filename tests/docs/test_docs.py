"""The documentation: every command and example works, and the site builds without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.build.methods import pages
from kinfolk.algorithms import REGISTRY
from tests.docs.blocks import blocks, matches, run_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
FOLLOWING = ("start/five-minutes.md", "guides/reports.md")
"""Pages that are read one after the other, in one folder: `runs/*` is then all that there is."""

pytestmark = pytest.mark.docs


@pytest.mark.slow
@pytest.mark.parametrize("names", [FOLLOWING, *((name,) for name in PAGES if name not in FOLLOWING)], ids="+".join)
def test_what_a_page_shows_works(names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in names:
        run_page(DOCS / name, tmp_path, monkeypatch)


def test_there_is_something_to_run() -> None:
    assert sum(len(blocks((DOCS / name).read_text())) for name in PAGES) >= 25


@pytest.mark.slow
def test_every_method_has_a_page_with_its_options_and_an_experiment_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pages()
    assert set(made) == {"methods/index.md", *(f"methods/{name}.md" for name in REGISTRY)}
    for name, entry in REGISTRY.items():
        text = made[f"methods/{name}.md"]
        for option in entry.options():
            assert f"| `{option}` |" in text
        page = tmp_path / f"{name}.md"
        page.write_text(text)
        assert run_page(page, tmp_path, monkeypatch) == 1
        assert f"]({name}.md)" in made["methods/index.md"]


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        ("a 1.00 b", "a   1.01\nb", True),
        ("a 1.00 b", "a 1.1 b", False),
        ("runs/x-...", "runs/x-2026-3f", True),
        ("...", "anything\nat all", True),
        ("one", "one two", False),
        ("3 (simulated)", "3", False),
    ],
)
def test_the_comparison_can_fail(wanted: str, found: str, same: bool) -> None:
    assert matches(wanted, found) is same


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = sorted((tmp_path / "site").rglob("*.html"))
    names = {str(page.relative_to(tmp_path / "site")) for page in made}
    assert {f"{name.removesuffix('.md')}.html" for name in PAGES} <= names
    assert {f"methods/{name}.html" for name in REGISTRY} <= names
    for page in made:
        loads = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?(https?:[^\"'\s>]+)", page.read_text()
        )
        assert loads == [], page


def test_no_page_names_a_command_that_is_not_there() -> None:
    from kinfolk.cli import main

    known = {command.name or command.callback.__name__ for command in main.app.registered_commands if command.callback}
    known |= {str(group.name) for group in main.app.registered_groups}
    for name in PAGES:
        assert set(re.findall(r"`kinfolk (\w+)", (DOCS / name).read_text())) <= known
