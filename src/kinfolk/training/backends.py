"""How rounds are computed and kept: with all clients in the program, or streamed cohort by cohort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.engines import resident
from kinfolk.engines.resident import State
from kinfolk.training import checkpoints, run_directory, streaming_backend
from kinfolk.training.build import as_sweep
from kinfolk.training.charges import Chunk
from kinfolk.training.evaluate import measure
from kinfolk.training.prepare import Job
from kinfolk.types import Tree


@dataclass(frozen=True)
class Way:
    """What training asks of an engine. States are the engine's own, with `shared`, `meters` and `server` in them."""

    start: Callable[..., tuple[Tree, int, int]]
    """`start(job, where)`: the state to go on from, rounds behind it, its phase."""
    enter: Callable[..., Tree]
    """`enter(job, where, phase, state)`: the state at the beginning of a phase."""
    advance: Callable[..., Tree]
    """`advance(job, chunk, state)`: the state after a chunk of rounds."""
    save: Callable[..., None]
    """`save(job, where, state, done)`: a checkpoint, then what is published."""
    measure: Callable[..., dict[str, np.ndarray]]
    """`measure(job, phase, state, everybody)`: test errors per client."""
    write_models: Callable[..., None]
    """`write_models(job, path, phase, state)`"""
    tidy: Callable[[Tree], None]
    """Removes what a finished run does not need."""


def _advance(job: Job, chunk: Chunk, state: State) -> State:
    algorithm, terms = as_sweep(job.algorithms[chunk.phase]), as_sweep(job.terms)
    rounds = (jnp.int32(chunk.begin), jnp.int32(chunk.end))
    return resident.run_rounds(job.plan, algorithm, terms, job.clients, state, *rounds)


def _write_models(job: Job, path: Path, phase: int, state: State) -> None:
    algorithm = trees.row(as_sweep(job.algorithms[phase]), 0)
    run_directory.write_tree(path, resident.final_models(algorithm, trees.row(state, (0, 0))), ids=np.array(job.ids))


RESIDENT = Way(
    checkpoints.start,
    lambda job, where, phase, state: resident.enter_phase(job.plan, as_sweep(job.algorithms[phase]), state),
    _advance,
    checkpoints.save,
    lambda job, phase, state, everybody: measure(job, phase, state),
    _write_models,
    lambda state: None,
)
STREAMED = Way(
    streaming_backend.start,
    streaming_backend.enter,
    streaming_backend.advance,
    streaming_backend.save,
    streaming_backend.measure,
    streaming_backend.write_models,
    lambda state: state.store.remove(),
)


def way_of(job: Job) -> Way:
    """The engine that an experiment asks for."""
    return RESIDENT if job.experiment.engine.store == "device" else STREAMED
