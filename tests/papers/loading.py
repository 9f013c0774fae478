"""Benchmarks as modules, for tests that run a small part of them."""

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest


def benchmark(name: str) -> ModuleType:
    """The study of that name."""
    return importlib.import_module(f"benchmarks.studies.{name}.run")


def need(file: str) -> None:
    """Skips a test whose data is not here."""
    folder = os.environ.get("KINFOLK_DATA")
    if not folder or not (Path(folder) / file).exists():
        pytest.skip(f"{file} is not here: set KINFOLK_DATA to its directory")
