"""No Unix-only module or function is needed to simulate, to release, to report and to predict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_training_needs_nothing_that_only_unix_has(tmp_path: Path) -> None:
    for place in ("a", "b"):
        lines = [f"{20 + k},{'yes' if (k * 7) % 3 else 'no'}" for k in range(40)]
        (tmp_path / f"{place}.csv").write_text("\n".join(["age,ill", *lines]) + "\n")
    words = [sys.executable, "-m", "tests.portable", str(tmp_path)]
    path = os.pathsep.join(str(ROOT / part) for part in ("src", "."))
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("portable")


@pytest.mark.slow
def test_the_test_takes_something_away() -> None:
    code = "import tests.portable as p; p.take_away(); import kinfolk.deploy.listening"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "no module named resource" in done.stderr
