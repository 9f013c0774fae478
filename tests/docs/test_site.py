"""The site in a real browser: quiet, legible, and it fits a phone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import CONTRAST, OVERFLOW, OVERLAP, chromium, needed, show

pytestmark = [pytest.mark.browser, pytest.mark.docs, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needed()
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), (1200, "light")])
def test_every_page_fits_is_legible_and_quiet(window: Any, site: Path, width: int, scheme: str) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        show(window, page, width=width, scheme=scheme)
        assert window.execute_script(OVERFLOW) == [0, []], page
        assert window.execute_script(OVERLAP) == [], page
        assert [x for x in window.execute_script(CONTRAST) if x[0] < 4.5] == [], page
        assert window.get_log("browser") == [], page
        broken = "return [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"
        assert window.execute_script(broken) == [], page
