"""Benchmarks as modules, for tests that run a small part of them."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    """The benchmark of that name."""
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def need(file: str) -> None:
    """Skips a test whose data is not here."""
    folder = os.environ.get("KINFOLK_DATA")
    if not folder or not (Path(folder) / file).exists():
        pytest.skip(f"{file} is not here: set KINFOLK_DATA to its directory")
