"""The import contract of pyproject.toml holds, and fails on imports planted in a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its contract."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "src" / "kinfolk", folder / "kinfolk", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def lint(folder: Path) -> tuple[int, str]:
    """What the import linter says about a copy: its exit code, and its words on one line."""
    found = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return found.returncode, " ".join((found.stdout + found.stderr).split())


def test_the_package_keeps_its_contract(copy: Path) -> None:
    code, words = lint(copy)
    assert code == 0, words
    assert "0 broken" in words


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("data/lazy.py", "from kinfolk.training import loop", "kinfolk.data is not allowed to import kinfolk.training"),
        (
            "verify/jaxprs.py",
            "def late():\n    from kinfolk.cli import main",
            "kinfolk.verify is not allowed to import kinfolk.cli",
        ),
        (
            "estimators/regressor.py",
            "import kinfolk.deploy.wire",
            "kinfolk.estimators is not allowed to import kinfolk.deploy",
        ),
        ("privacy/levels.py", "import dp_accounting", "kinfolk.privacy is not allowed to import dp_accounting"),
        ("a_new_one.py", "", "a_new_one (Since this contract is marked as 'exhaustive'"),
    ],
    ids=["upwards", "upwards and late", "beside", "accounting where it does not belong", "in no layer"],
)
def test_a_planted_import_is_found(copy: Path, file: str, line: str, message: str) -> None:
    path = copy / "kinfolk" / file
    before = path.read_text() if path.exists() else None
    path.write_text(f"{before or ''}\n{line}\n")
    try:
        code, words = lint(copy)
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before)
    assert code == 1
    assert message in words
