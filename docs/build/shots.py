"""Pictures of what may be shown of a run, as its reader sees it: the table, the report's section, the statement's.

    python docs/build/shots.py RUN docs/pictures

Needs Chromium, as a report in PDF does.
"""

from __future__ import annotations

import argparse
import html
import io
import re
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

from kinfolk.cli import evaluate
from kinfolk.report import write_report
from kinfolk.report.pdf import FLAGS, browser
from kinfolk.training import run_directory
from kinfolk.training.shown import shown_before

PAGE = "<!doctype html><meta charset=utf-8><style>body{{margin:12px;font:13px/1.35 monospace;background:#fff}}</style>"


def table_of(run: run_directory.Run) -> str:
    """What `kinfolk evaluate` prints of the last evaluation, as a page."""
    evaluate.console = Console(record=True, width=88, file=io.StringIO())
    evaluate.show(shown_before(run)[-1])
    return PAGE.format() + f"<pre>{html.escape(evaluate.console.export_text())}</pre>"


def statement_of(run: run_directory.Run) -> str:
    """The statement's section, as a page."""
    text = (run.public / "statement.txt").read_text()
    section = text[text.index("MAY BE SHOWN") :].split("\n\n")[0]
    return PAGE.format() + f"<pre style='white-space:pre-wrap'>{html.escape(section)}</pre>"


def section_of(run: run_directory.Run) -> str:
    """The report with its section "May be shown" alone."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_report([run.path], Path(folder) / "report.html").read_text()
    found = re.search(r'<section id="shown".*?</section>', page, re.DOTALL)
    assert found is not None
    head = page[: page.index("<body")]
    return f"{head}<body><main>{found.group()}</main></body></html>"


def shot(page: str, target: Path, width: int, height: int) -> None:
    """A page as a picture."""
    program = browser()
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(page)
        flags = (*FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={width},{height}", "--hide-scrollbars")
        subprocess.run([program, *flags, f"--screenshot={target}", source.as_uri()], capture_output=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    run = run_directory.open_run(given.run.resolve())
    shot(table_of(run), given.folder.resolve() / "shown_table.png", 760, 560)
    shot(section_of(run), given.folder.resolve() / "shown_report.png", 900, 900)
    shot(statement_of(run), given.folder.resolve() / "shown_statement.png", 900, 560)


if __name__ == "__main__":
    main()
