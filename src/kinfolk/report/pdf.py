"""A page printed to PDF by a headless Chromium, which is not part of kinfolk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
SECONDS = 120


def browser() -> str | None:
    """The Chromium to use: KINFOLK_CHROMIUM, or the first one on the path."""
    named = os.environ.get("KINFOLK_CHROMIUM")
    if named is not None:
        return shutil.which(named)
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def printed(page: str) -> bytes:
    """The page as a PDF."""
    program = browser()
    if program is None:
        raise ValueError(
            "format='pdf' needs Chromium, and none was found: install it (Debian: apt install chromium), or set "
            "KINFOLK_CHROMIUM to where it is, or write --format html and print that from a browser"
        )
    with tempfile.TemporaryDirectory(prefix="kinfolk-report-") as folder:
        source, target = Path(folder) / "page.html", Path(folder) / "page.pdf"
        source.write_text(page)
        flags = (*FLAGS, f"--user-data-dir={folder}/profile", "--no-pdf-header-footer", f"--print-to-pdf={target}")
        try:
            done = subprocess.run([program, *flags, source.as_uri()], capture_output=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise ValueError(f"{program} did not print the page within {SECONDS} seconds: use --format html") from None
        if not target.exists():
            says = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise ValueError(f"{program} did not print the page ({says[0]}): use --format html")
        return target.read_bytes()
