"""A run's state on disk: saved first, published second, and found again after a crash."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.engines import resident
from kinfolk.engines.resident import State
from kinfolk.training import job_file, run_directory, run_files
from kinfolk.training.build import as_sweep
from kinfolk.training.charges import chunks_of
from kinfolk.training.prepare import Job
from kinfolk.training.run_directory import Run
from kinfolk.types import Tree


def start(job: Job, where: Run) -> tuple[State, int, int]:
    """The state to go on from, how many rounds it has behind it, and its phase."""
    keys = keys_of(job)
    checkpoint = where.private / "checkpoint.npz"
    if not checkpoint.exists():
        return resident.start_all(job.plan, as_sweep(job.algorithms[0]), keys), 0, 0
    done, phase = reached(job, checkpoint)
    fresh = resident.start_all(job.plan, as_sweep(job.algorithms[phase]), keys)
    found, _ = run_directory.read_tree(checkpoint, kept(fresh))
    state = restored(fresh, jax.tree.map(jnp.asarray, found))
    publish(job, where, state, done)
    return state, done, phase


def reached(job: Job, checkpoint: Path) -> tuple[int, int]:
    """How many rounds a checkpoint has behind it, and in which phase that is."""
    found = run_files.read_arrays(checkpoint, "round").get("round")
    done = -1 if found is None or found.shape or found.dtype.kind not in "iu" else int(found)
    phase = next((c.phase for c in chunks_of(job, 0) if c.begin < done <= c.end), None)
    if phase is None:
        raise run_files.damaged(checkpoint, "its round is none of this run's")
    return done, phase


def keys_of(job: Job) -> jax.Array:
    """One key per seed; a release's first key is thrown away before noise is drawn, and comes from the system."""
    seed = job.experiment.seed
    first = seed if seed is not None else int.from_bytes(os.urandom(4), "big")
    numbers = jnp.arange(first, first + job.experiment.seeds, dtype=jnp.uint32)
    return jax.vmap(lambda number: jax.random.key(number, impl="threefry2x32"))(numbers)


def restored(fresh: State, found: Tree) -> State:
    """A state from what a checkpoint holds, and fresh keys."""
    shared, personal, models, own, theirs = found
    meters, server = (
        replace(meter, uses=uses, draws=draws, memory=memory)
        for meter, (uses, draws, memory) in ((fresh.meters, own), (fresh.server, theirs))
    )
    return State(shared, personal, meters, server, models)


def kept(state: State) -> tuple[Tree, ...]:
    """What a checkpoint holds: everything but keys and noise."""
    return job_file.result_arrays(state)


def save(job: Job, where: Run, state: State, done: int) -> None:
    """Saves first, publishes second: what is published can always be sent again, never computed again."""
    run_directory.write_tree(where.private / "checkpoint.npz", kept(state), round=np.int64(done))
    publish(job, where, state, done)


def publish(job: Job, where: Run, state: Tree, done: int) -> None:
    """The shared state after so many rounds, for everybody to read; where nothing is private, nothing is published."""
    if job.plan.level.private:
        run_directory.publish(where.public / "shared", done, state.shared, round=np.int64(done))
