"""Runs that are killed without mercy: nothing is published twice, or without being charged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk.accounting.ledger import read_lines
from kinfolk.toml import to_toml
from kinfolk.training import loop, run_directory
from kinfolk.training.experiment import Phase
from tests.training.test_loop import experiment, models_of

pytestmark = pytest.mark.usefixtures("small_schools")
ROOT = Path(__file__).parents[2]
KILLED = """
import sys
from pathlib import Path
from kinfolk.data import registry
from kinfolk.data.sets.catalogue import BuiltIn
from kinfolk.training import loop
from kinfolk.training.experiment import load
from tests.small import six_schools
registry.BUILT_IN["synthetic_schools"] = BuiltIn(six_schools)
output = Path(sys.argv[2])
going = [p for p in output.glob("run-*")]
progress = lambda done, total, numbers: print("done", done, flush=True)
if going:
    loop.resume(going[0], progress=progress)
else:
    loop.run(load(Path(sys.argv[1])), output, progress=progress)
"""


def run_and_kill(config: Path, output: Path, after: int | None) -> None:
    """Runs in another process; kills it as soon as `after` chunks are reported, without mercy."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(config), str(output)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += line.startswith("done")
        if after is not None and seen >= after:
            time.sleep(0.002 * after)
            os.kill(process.pid, signal.SIGKILL)
            break
    process.stdout.close()
    assert process.wait() == (0 if after is None else -signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, None])
def test_kill_at_any_moment_then_resume(seed: int | None, tmp_path: Path) -> None:
    wanted = experiment(seed=seed, phases=(Phase("mean_regularized", 200),))
    if seed is None:  # room for what a crash wastes
        wanted = replace(wanted, privacy=replace(wanted.privacy, epsilon=50.0, noise_multiplier=20.0))
    config = tmp_path / "experiment.toml"
    config.write_text(to_toml(wanted))
    published: dict[str, bytes] = {}
    output = tmp_path / "out"
    for after in (1, 3, 2, 5, None):
        run_and_kill(config, output, after)
        (run,) = output.glob("run-*")
        for file in (run / "public" / "shared").glob("*.npz"):
            assert published.setdefault(file.name, file.read_bytes()) == file.read_bytes(), (
                "published twice, differently"
            )
        ledger = run / "public" / "ledger.jsonl" if seed else tmp_path / "ledgers" / "ledger.jsonl"
        charged = max(line.rounds[1] for line in read_lines(ledger))
        assert charged >= max((int(name[:6]) for name in published), default=0)
    (run,) = output.glob("run-*")
    assert len(published) == 20
    if seed is not None:
        whole = loop.run(wanted, tmp_path / "whole")
        for name, value in models_of(whole).items():
            np.testing.assert_array_equal(value, models_of(run_directory.Run(run))[name])
        assert run_directory.Run(run).statement()["epsilon"] == whole.statement()["epsilon"]
