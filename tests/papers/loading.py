"""Data that is too large to come with the project."""

import os
from pathlib import Path

import pytest


def need(file: str) -> None:
    """Skips a test whose data is not here."""
    folder = os.environ.get("KINFOLK_DATA")
    if not folder or not (Path(folder) / file).exists():
        pytest.skip(f"{file} is not here: set KINFOLK_DATA to its directory")
