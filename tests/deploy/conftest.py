"""What tests of silos and of separate processes share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.worker import Worker
from tests.deploy.asking import STUDY
from tests.deploy.federations import federation_of, policy_of, rows_of


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Sockets need short paths."""
    with tempfile.TemporaryDirectory(prefix="kf") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def program() -> Program:
    """One silo of the study that tests ask for."""
    return prepare_silo(STUDY, policy_of(STUDY, "c"), rows_of(federation_of(), 2))


@pytest.fixture
def silo(program: Program, tmp_path: Path) -> Iterator[Worker]:
    with Worker(program, tmp_path / "c") as worker:
        yield worker
