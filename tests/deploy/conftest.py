"""What tests of separate processes share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Sockets need short paths."""
    with tempfile.TemporaryDirectory(prefix="kf") as folder:
        yield Path(folder)
