"""Reports on runs: one file that opens offline. They read run directories only.

`public/` is what anybody may see; what lies in `private/` is shown only when asked for, and named on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kinfolk.files import write_whole
from kinfolk.report import pdf
from kinfolk.report.build import build
from kinfolk.report.markdown import markdown
from kinfolk.report.page import page
from kinfolk.report.reading import read
from kinfolk.training import run_directory

FORMATS = ("html", "md", "pdf")


def write_report(paths: Sequence[Path], output: Path, *, format: str = "html", with_private: bool = False) -> Path:
    """Writes the report on some run directories, the first of which it is about, and returns its path.

    Without private numbers everybody on this machine may read it; with them, its owner alone.
    """
    if format not in FORMATS:
        raise ValueError(f"format={format!r} is not one of {FORMATS}")
    report = build([read(path, with_private) for path in paths], with_private)
    if format == "pdf":
        content = pdf.printed(page(report))
    else:
        content = (page(report) if format == "html" else markdown(report)).encode()
    with run_directory.writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(output, content, for_all=not with_private)
    return output
