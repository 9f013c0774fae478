"""Stricter than JAX: no silent promotion of types or ranks. Real data where it is there."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


CORE = ("mean_regularized",)
"""The algorithm whose conformance is checked before every commit; the others' in the full run."""


WHOLE = ("tests/deploy", "tests/report", "tests/studies", "tests/theory")
"""Folders that only the full run looks into."""

TIERS = {
    "conformance": ("tests/conformance",),
    "privacy": ("tests/accounting", "tests/privacy", "tests/verify"),
    "papers": ("tests/papers",),
    "deploy": ("tests/deploy",),
}
"""Markers, and the folders whose tests carry them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests under a tier's folder carry its marker."""
    for item in items:
        name = getattr(getattr(item, "callspec", None), "params", {}).get("name")
        if item.nodeid.startswith("tests/conformance/") and name is not None and name not in CORE:
            item.add_marker("slow")
        if item.nodeid.startswith(tuple(f"{folder}/" for folder in WHOLE)):
            item.add_marker("slow")
        for tier, folders in TIERS.items():
            if item.nodeid.startswith(tuple(f"{folder}/" for folder in folders)):
                item.add_marker(tier)


@pytest.fixture(autouse=True, scope="module")
def forget_programs() -> Iterator[None]:
    """Compiled programs hold memory maps, of which a process may have 65 530: one process for all tests runs out."""
    yield
    jax.clear_caches()
    gc.collect()


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


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command line in this process; returns its exit code and what it printed."""
    from kinfolk.cli import main

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kinfolk", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


@pytest.fixture
def heart_files(tmp_path: Path) -> list[Path]:
    """The four hospitals as four CSV files; skips where the data are not."""
    import numpy as np

    source = Path(os.environ.get("KINFOLK_DATA", "nowhere")) / "heart_disease.npz"
    if not source.exists():
        pytest.skip("heart_disease.npz is not here: set KINFOLK_DATA to a directory with it")
    with np.load(source, allow_pickle=False) as file:
        x, y, client, names, features = (file[k] for k in ("x", "y", "client", "client_name", "feature_name"))
    found = []
    for k, name in enumerate(names):
        lines = [",".join([*features, "disease"])]
        for row, label in zip(x[client == k], y[client == k], strict=True):
            values = ["" if np.isnan(value) else f"{value:g}" for value in row]
            lines.append(",".join([*values, "yes" if label > 0 else "no"]))
        found.append(tmp_path / f"{name}.csv")
        found[-1].write_text("\n".join(lines) + "\n")
    return found
