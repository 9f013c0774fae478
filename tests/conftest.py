"""Stricter than JAX: no silent promotion of types or ranks. Real data where it is there."""

import gc
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from kinfolk.data import registry
from kinfolk.data.sets.catalogue import BuiltIn
from tests.small import six_schools

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


WHOLE = ("tests/deploy", "tests/report", "tests/studies")
"""Folders that are for the full run, but for tests that are marked `fast`."""

TIERS = {
    "conformance": ("tests/conformance",),
    "privacy": ("tests/accounting", "tests/privacy", "tests/verify"),
    "papers": ("tests/papers",),
    "deploy": ("tests/deploy",),
}
"""Markers, and the folders whose tests carry them."""


COMPUTED = (
    "tests/papers/",
    "tests/studies/",
    "tests/verify/test_attack",
    "tests/verify/test_gallery.py::test_a_planted_bug_is_caught_by_attack",
)
"""Where programs run for longer than it takes to compile them well."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests under a tier's folder carry its marker."""
    for item in items:
        if item.nodeid.startswith(tuple(f"{folder}/" for folder in WHOLE)) and not item.get_closest_marker("fast"):
            item.add_marker("slow")
        if item.get_closest_marker("long"):
            item.add_marker("slow")
        if item.nodeid.startswith(COMPUTED):
            item.add_marker("computed")
        for tier, folders in TIERS.items():
            if item.nodeid.startswith(tuple(f"{folder}/" for folder in folders)):
                item.add_marker(tier)


MOST_MAPS, LOOK_EVERY = 30_000, 25
"""Compiled programs hold memory maps, of which a process may have 65 530: after so many they are forgotten."""

tests_begun = itertools.count()


@pytest.fixture(autouse=True)
def forget_programs() -> None:
    """Tests share what is compiled, across files too, as far as one process can hold it."""
    maps = Path("/proc/self/maps")
    if next(tests_begun) % LOOK_EVERY or not maps.exists():
        return
    if maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module")
def own_programs() -> Iterator[None]:
    """For files that change how programs are made: they neither take nor leave compiled ones."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def own_ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test charges a ledger of the person who runs it, or keeps programs among theirs."""
    monkeypatch.setenv("KINFOLK_LEDGERS", str(tmp_path / "ledgers"))
    monkeypatch.setenv("KINFOLK_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("KINFOLK_CACHE", "")


@pytest.fixture
def small_schools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in federation, made small."""
    monkeypatch.setitem(registry.BUILT_IN, "synthetic_schools", BuiltIn(six_schools))


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
