"""Stricter than JAX: no silent promotion of types or ranks. Real data where it is there."""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


CORE = ("local", "fedavg", "mean_regularized")
"""Algorithms whose conformance is checked before every commit; the others' in the full run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests under a tier's folder carry its marker."""
    for item in items:
        name = getattr(getattr(item, "callspec", None), "params", {}).get("name")
        if "conformance" in Path(item.fspath).parts and name is not None and name not in CORE:
            item.add_marker("slow")
        for tier in ("conformance", "privacy", "papers", "deploy"):
            if tier in Path(item.fspath).parts:
                item.add_marker(tier)


@pytest.fixture(autouse=True)
def own_ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test charges a ledger of the person who runs it."""
    monkeypatch.setenv("KINFOLK_LEDGERS", str(tmp_path / "ledgers"))


@pytest.fixture
def school_data() -> None:
    """Skips a test that needs School where it is not."""
    directory = os.environ.get("KINFOLK_DATA")
    if not directory or not (Path(directory) / "school.npz").exists():
        pytest.skip("School is not here: set KINFOLK_DATA to a directory with school.npz")
