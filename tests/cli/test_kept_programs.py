"""Compiled programs are kept for the next start, and hold nothing of the data, the noise or the keys."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from kinfolk import REGISTRY, Experiment, Phase, PrivacyLevel, client_level, example_level, from_functions, run
from kinfolk.cli import kept_programs
from kinfolk.data.federation import Federation, from_rows
from kinfolk.training.experiment import ModelChoice, Training
from kinfolk.training.recipes import MODELS
from kinfolk.types import Model

LEVELS = {"example": example_level(epsilon=3.0, delta=1e-4), "client": client_level(epsilon=3.0, delta=1e-3, cohort=3)}
OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
CASES = [
    pytest.param(name, level, seed, marks=[] if (name, level) == ("mean_regularized", "example") else pytest.mark.long)
    for name, entry in REGISTRY.items()
    for level in entry.levels
    for seed in (0, None)
    if level in LEVELS
]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of our own in which JAX keeps programs, as the commands have it."""
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv(kept_programs.NAMED, str(tmp_path / "cache"))
    _forget()
    try:
        where = kept_programs.keep_programs()
        assert where is not None
        yield where
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        _forget()


def _forget() -> None:
    """As in a new process."""
    jax.clear_caches()
    compilation_cache.reset_cache()


def rows(seed: int, outcome: str = "number") -> Federation:
    """Rows that depend on the seed in every number, and in nothing else."""
    generator = np.random.default_rng(seed)
    x, y = generator.uniform(-1, 1, (50, 2)).astype(np.float32), generator.uniform(-1, 1, 50).astype(np.float32)
    y, names = y if outcome == "number" else (y > 0).astype(np.int32), np.repeat(range(5), (8, 9, 12, 10, 11))
    return from_rows(x, y, [f"c{k}" for k in names], name="study", outcome=outcome)


def programs_of(
    kept: Path, seed: int, privacy: PrivacyLevel, method: str, simulated: int | None, model: Model | None = None
) -> set[str]:
    """Which programs lie there after training on the rows of a seed; their names are hashes of all they hold."""
    _forget()
    experiment = Experiment(
        seed=simulated,
        privacy=privacy,
        training=Training(batch_size=8),
        phases=(Phase(method, 2),),
        model=ModelChoice(MODELS[REGISTRY[method].outcome]),
    )
    folder = kept.parent.parent / f"runs-{seed}"
    data = rows(seed, REGISTRY[method].outcome)
    run(experiment, folder, data=data, model=model, ledger=None if simulated is not None else folder / "l.jsonl")
    return {path.name for path in kept.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "level", "simulated"), CASES)
def test_on_other_rows_with_other_noise_every_program_is_found_again(
    kept: Path, method: str, level: str, simulated: int | None
) -> None:
    """What a program holds decides its name: were rows, noise or keys in one, there would be new ones."""
    first = programs_of(kept, 1, LEVELS[level], method, simulated)
    assert len(first) > 20
    assert programs_of(kept, 2, LEVELS[level], method, simulated) == first


@pytest.mark.slow
def test_rows_in_a_program_would_be_noticed(kept: Path) -> None:
    """A number of a client's row as a constant in the model, which the flow check cannot know (arrays it refuses)."""

    def leaky(seed: int) -> Model:
        number = float(np.asarray(rows(seed).train.x).ravel()[0])
        return from_functions(lambda key: jnp.zeros(2), lambda params, x: x @ params + number, "number")

    found = [programs_of(kept, seed, LEVELS["example"], "local", 0, leaky(seed)) for seed in (1, 2)]
    assert found[1] - found[0]


@pytest.mark.slow
def test_where_programs_go_and_where_they_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    assert kept.stat().st_mode & 0o777 == 0o700
    assert kept_programs.keep_programs() is None, "JAX was told a place"
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv(kept_programs.NAMED, "")
    assert kept_programs.keep_programs() is None
    monkeypatch.setenv(kept_programs.NAMED, str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    assert kept_programs.keep_programs() is None
    monkeypatch.setenv(kept_programs.NAMED, str(kept.parent))
    kept.chmod(0o777)
    assert kept_programs.keep_programs() == kept
    assert kept.stat().st_mode & 0o777 == 0o700
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(os, "getuid", lambda: kept.stat().st_uid + 1)
    assert kept_programs.keep_programs() is None, "somebody else decides what is in it"


def test_old_programs_and_torn_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_programs, "MOST", 100)
    for age, size in enumerate((0, 40, 40, 40)):
        (tmp_path / f"{age}").write_bytes(b"x" * size)
        os.utime(tmp_path / f"{age}", (age, age))
    kept_programs._forget_old(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"3"}
    (tmp_path / "torn").touch()
    kept_programs._forget_old(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"3"}


def test_help_does_not_wait_for_anything_large() -> None:
    """Under 0.4 s on a quiet core; what takes longer is not even imported."""
    large = ("jax", "numpy", "scipy", "polars", "dp_accounting", "flwr", "starlette")
    script = f"import sys, kinfolk.cli.main; sys.exit(', '.join(set({large}) & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
