"""FEMNIST in full: the femnist study's own steps, behind the command of `full_runs`."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import jax

from benchmarks.studies.femnist.study import Setting, Study
from kinfolk.training.experiment import ModelChoice

ITEMS = ("pmtl/figure-3b", "pmtl/figure-7b", "pmtl/table-1", "pmtl/table-3")
COMPARED = ("global", "personal", "FedProx")
"""What these items compare; the other methods are a question of our own (`femnist.run`)."""
TINY = Setting(
    writers=6,
    most_images=6,
    cohort=3,
    places=6,
    epsilons=(8.0,),
    rounds=(1, 2),
    local_rounds=2,
    seeds=1,
    tuning_steps=2,
    model=ModelChoice("cnn", (2, 2)),
    speed=False,
)


def next_step(folder: Path | None, seconds: float, *, here: bool, small: bool) -> None:
    """Packs, runs or merges, whichever comes next; `small`: all of it on a tiny setting, kept nowhere."""
    if small:
        with tempfile.TemporaryDirectory() as temporary:
            rows = tried(Path(temporary))
        print(json.dumps([row for row in rows if row["part"] in ("figure", "tune")]))
        return
    assert folder is not None
    if not (folder / "terms.json").exists():
        from benchmarks.studies.femnist.run import FULL, pack

        pack(folder, FULL)
        print(f"{folder} is packed: carry it to the accelerator, and give the same command there")
    elif here or jax.default_backend() != "cpu":
        setting = Setting(methods=COMPARED, speed=jax.default_backend() != "cpu")
        Study(folder, setting, seconds, folder / "results.json", select=False).run()
        print(f"take {folder / 'results.json'} home; give the command again here if it stopped for time")
    else:
        merge(folder)


def merge(folder: Path) -> None:
    """Takes results home: written down, and the pages built."""
    from benchmarks.studies.reproduce import run
    from benchmarks.studies.reproduce.pmtl_measures import FULL_FEMNIST

    shutil.copy(folder / "results.json", FULL_FEMNIST)
    known = run.items()
    for name in ITEMS:
        run.keep(run.measure(known[name], "full"))
    run.write_pages(known)


def tried(folder: Path) -> list[dict[str, object]]:
    """Packed and run on a tiny setting, here: the results' rows."""
    from benchmarks.studies.femnist.run import pack

    pack(folder, TINY)
    study = Study(folder, replace(TINY), float("inf"), folder / "results.json", select=False)
    return study.run()["rows"]
