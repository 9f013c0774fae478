"""How rounds are computed and kept: with all clients in the program, or streamed cohort by cohort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.engines import resident, results
from kinfolk.engines.resident import State
from kinfolk.training import checkpoints, run_directory, streaming_backend
from kinfolk.training.build import as_array, as_sweep
from kinfolk.training.charges import Chunk
from kinfolk.training.evaluate import measure
from kinfolk.training.prepare import Job, beside_alone
from kinfolk.training.run_directory import Run
from kinfolk.types import Tree


class Backend(Protocol):
    """What training asks of an engine. States are the engine's own, with `shared`, `meters` and `server` in them."""

    def start(self, job: Job, where: Run) -> tuple[Tree, int, int]:
        """The state to go on from, rounds behind it, its phase."""
        ...

    def enter(self, job: Job, where: Run, phase: int, state: Tree) -> Tree:
        """The state at the beginning of a phase."""
        ...

    def advance(self, job: Job, chunk: Chunk, state: Tree) -> Tree:
        """The state after a chunk of rounds."""
        ...

    def save(self, job: Job, where: Run, state: Tree, done: int) -> None:
        """A checkpoint, then what is published."""
        ...

    def measure(self, job: Job, phase: int, state: Tree, everybody: bool) -> dict[str, np.ndarray]:
        """Test errors per client: of everybody, or of enough to watch."""
        ...

    def personalise(self, job: Job, where: Run, phase: int, state: Tree) -> tuple[Tree, np.ndarray | None]:
        """The state after what clients do alone, and, if they choose, their test errors with what they had alone."""
        ...

    def write_models(self, job: Job, path: Path, phase: int, state: Tree) -> None:
        """All clients' models, in one file."""
        ...

    def tidy(self, state: Tree) -> None:
        """Removes what a finished run does not need."""
        ...


class Resident:
    """All clients in one compiled program."""

    def start(self, job: Job, where: Run) -> tuple[State, int, int]:
        return checkpoints.start(job, where)

    def enter(self, job: Job, where: Run, phase: int, state: State) -> State:
        return resident.enter_phase(job.plan, as_sweep(job.algorithms[phase]), state)

    def advance(self, job: Job, chunk: Chunk, state: State) -> State:
        algorithm, terms = as_sweep(job.algorithms[chunk.phase]), as_sweep(job.terms)
        rounds = (jnp.int32(chunk.begin), jnp.int32(chunk.end))
        return resident.run_rounds(job.plan, algorithm, terms, job.clients, state, *rounds)

    def save(self, job: Job, where: Run, state: State, done: int) -> None:
        checkpoints.save(job, where, state, done)

    def measure(self, job: Job, phase: int, state: State, everybody: bool) -> dict[str, np.ndarray]:
        return measure(job, phase, state)

    def personalise(self, job: Job, where: Run, phase: int, state: State) -> tuple[State, np.ndarray | None]:
        step, chooses = beside_alone(job)
        algorithm, terms = as_sweep(job.algorithms[phase]), as_sweep(job.terms)
        after = results.personalise(job.plan, as_array(step), algorithm, terms, job.clients, state)
        if not chooses:
            return after, None
        after, alone = (replace(after, models=models) for models in after.models)
        return after, measure(job, phase, alone)["error"]

    def write_models(self, job: Job, path: Path, phase: int, state: State) -> None:
        models = resident.one_run(jax.device_get(results.all_models(as_sweep(job.algorithms[phase]), state)))
        run_directory.write_tree(path, models, ids=np.array(job.ids))

    def tidy(self, state: State) -> None:
        pass


class Streaming:
    """Only a round's cohort in the program; all other clients in a store."""

    start = staticmethod(streaming_backend.start)
    enter = staticmethod(streaming_backend.enter)
    advance = staticmethod(streaming_backend.advance)
    save = staticmethod(streaming_backend.save)
    measure = staticmethod(streaming_backend.measure)
    personalise = staticmethod(streaming_backend.personalise)
    write_models = staticmethod(streaming_backend.write_models)
    tidy = staticmethod(streaming_backend.tidy)


def backend_of(job: Job) -> Backend:
    """The engine that an experiment asks for."""
    return Resident() if job.experiment.engine.store == "device" else Streaming()
