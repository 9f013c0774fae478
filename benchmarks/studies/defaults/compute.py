"""Computes what `plan.py` wrote: jax and numpy are enough. One process for each file, as many at a time as asked for.

python -m benchmarks.studies.defaults.compute FOLDER [--processes 8] [--again]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.engines import resident, results
from kinfolk.privacy.levels import Level
from kinfolk.training import job_file
from kinfolk.training.build import build_model
from kinfolk.training.experiment import ModelChoice


def compute(path: Path, again: bool = False) -> None:
    """Every piece's losses, of the last models and of averaged ones, per point and federation: `NAME.losses.json`.

    `again`: those of the grid, which no recipe changes, are kept from before.
    """
    about, losses = json.loads(path.with_suffix(".json").read_text()), path.with_suffix(".losses.json")
    before = json.loads(losses.read_text()) if again else [None] * len(about["pieces"])
    clients, tests, programs = job_file.load(path)
    model = build_model(ModelChoice(about["model"]), tuple(about["shape"]), about["outcome"], about["classes"])
    plan = resident.Plan(model, Level(about["level"]), tuple(about["widths"]), tuple(about["most_steps"]))
    keys = jax.vmap(jax.random.key)(jnp.asarray(about["seeds"] * len(about["taus"]), jnp.uint32))
    done = []
    for piece, (algorithm, terms, afterwards, weights), kept in zip(about["pieces"], programs, before, strict=True):
        if kept is not None and piece["names"][0].startswith("strength"):
            done.append(kept)
            continue
        began, cpu = time.time(), time.process_time()
        states, clients = resident.start_all(plan, algorithm, keys), replace(clients, weights=weights)
        states = resident.run_rounds(plan, algorithm, terms, clients, states, jnp.int32(0), jnp.int32(piece["rounds"]))
        if afterwards is not None:
            states = results.personalise(plan, afterwards, algorithm, terms, clients, states)
        found = {"averaged": losses_of(plan, algorithm, tests, states)}
        if hasattr(states.personal, "track"):
            ended = replace(states, models=states.personal.track.model)
            found["last"] = losses_of(plan, algorithm, tests, ended)
        seconds = {"seconds": round(time.time() - began, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
        done.append({**found, **seconds})
    losses.write_text(json.dumps(done))
    print(path.stem, f"{sum(one['seconds'] for one in done):.0f} seconds", flush=True)


def losses_of(plan: resident.Plan, algorithm: object, tests: object, states: resident.State) -> list[list[float]]:
    """The mean client's test loss, per point and federation."""
    found = results.errors(plan, algorithm, tests, states)["loss"]  # type: ignore[arg-type]
    return np.nanmean(np.asarray(found, np.float64), axis=-1).round(7).tolist()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the folder, or one file of it")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="all but the grid of what was computed and planned anew")
    given = parser.parse_args()
    if given.path.suffix == ".npz":
        compute(given.path, given.again)
        return
    every = sorted(given.path.glob("*.npz"))
    waiting = [one for one in every if one.with_suffix(".losses.json").exists() == given.again]
    quiet = {**os.environ, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}

    def one(path: Path) -> int:
        words = [sys.executable, "-m", "benchmarks.studies.defaults.compute", str(path), *["--again"][: given.again]]
        return subprocess.run(words, env=quiet, check=False).returncode

    with ThreadPoolExecutor(given.processes) as pool:
        failed = [path.stem for path, code in zip(waiting, pool.map(one, waiting), strict=True) if code]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
