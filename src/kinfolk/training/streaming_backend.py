"""Runs whose clients' states are kept outside the program: how they are found again, saved, measured and written."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import trees
from kinfolk.batching import over
from kinfolk.data.client_data import Data
from kinfolk.engines import client_store, streaming
from kinfolk.engines.resident import Plan, counters_of, one_run, with_counters
from kinfolk.engines.results import errors_of
from kinfolk.engines.streamed_round import states_of
from kinfolk.engines.streaming import Streamed
from kinfolk.training import run_directory
from kinfolk.training.build import as_array
from kinfolk.training.charges import Chunk
from kinfolk.training.checkpoints import keys_of, publish, reached
from kinfolk.training.prepare import Job, beside_alone
from kinfolk.training.run_directory import Run
from kinfolk.types import Algorithm, Params, Rows, Shared, Tree

BLOCK = 2**24
"""Weights of clients that are measured, or whose models are written, together."""
WATCHED = 1024
"""Clients, spread evenly, that are measured while training goes on; at the end everybody is."""


def start(job: Job, where: Run) -> tuple[Streamed, int, int]:
    """The state to go on from, how many rounds it has behind it, and its phase."""
    (key,) = keys_of(job)
    checkpoint = where.private / "checkpoint.npz"
    if not checkpoint.exists():
        return streaming.start(job.plan, as_array(job.algorithms[0]), key, _new_store(job, where, 0)), 0, 0
    done, phase = reached(job, checkpoint)
    algorithm = as_array(job.algorithms[phase])
    fresh = streaming.start(job.plan, algorithm, key, lambda shapes: client_store.in_memory(shapes, job.plan.clients))
    found, _ = run_directory.read_tree(checkpoint, _kept(fresh, job.experiment.engine.store))
    (shared, begun, counters), (now, draws, made), rows = found
    uses, drawn, memory = jax.tree.map(jnp.asarray, counters)
    store = fresh.store
    if job.experiment.engine.store == "disk":
        shapes = streaming.shapes_of(algorithm, fresh.shared)
        store = client_store.from_disk(shapes, now, where.private, _name(phase))
    else:
        store = replace(store, leaves=tuple(rows), now=now, safe=now.copy())
    server = replace(fresh.server, uses=uses, draws=drawn, memory=memory)
    shared, begun = jax.tree.map(jnp.asarray, (shared, begun))
    own = jax.tree.map(lambda leaf: leaf[None, None], (made, draws))
    meters = with_counters(fresh.meters, (*own, None))
    state = Streamed(shared, begun, meters, server, store)
    publish(job, where, state, done)
    return state, done, phase


def enter(job: Job, where: Run, phase: int, state: Streamed) -> Streamed:
    return streaming.enter_phase(job.plan, as_array(job.algorithms[phase]), state, _new_store(job, where, phase))


def advance(job: Job, chunk: Chunk, state: Streamed) -> Streamed:
    """The rounds of a chunk."""
    algorithm, terms, clients = as_array(job.algorithms[chunk.phase]), as_array(job.terms), trees.row(job.clients, 0)
    data, rounds = job.federations[0].train, range(chunk.begin, chunk.end)
    return streaming.run_rounds(job.plan, algorithm, terms, clients, data, state, rounds)


def save(job: Job, where: Run, state: Streamed, done: int) -> None:
    """The store first, then the checkpoint that knows it, then what is published."""
    state.store.flush()
    kept = _kept(state, job.experiment.engine.store)
    run_directory.write_tree(where.private / "checkpoint.npz", kept, round=np.int64(done))
    state.store.keep()
    for file in where.private.glob("phase*.npy"):  # an earlier phase's, which nobody needs any more
        if job.experiment.engine.store == "disk" and file not in state.store.files:
            file.unlink()
    publish(job, where, state, done)


def _kept(state: Streamed, kind: str) -> Tree:
    """What a checkpoint holds: everything but keys, noise and files."""
    server = (state.server.uses, state.server.draws, state.server.memory)
    rows = state.store.leaves if kind == "memory" else ()
    made, draws, _ = one_run(counters_of(state.meters))
    return (state.shared, state.begun, server), (state.store.now, draws, made), rows


def _name(phase: int) -> str:
    return f"phase{phase}"


def _new_store(job: Job, where: Run, phase: int) -> Callable[[Tree], client_store.Store]:
    if job.experiment.engine.store == "memory":
        return lambda shapes: client_store.in_memory(shapes, job.plan.clients)
    later = _models_size(job) * (1 if job.afterwards is None else 2)
    return lambda shapes: client_store.on_disk(shapes, job.plan.clients, where.private, _name(phase), later)


def _models_size(job: Job) -> int:
    """Bytes of all clients' models: written at the end, beside the store, and before if they change after training."""
    return 4 * trees.size(jax.eval_shape(job.plan.model.init, jax.random.key(0))) * job.plan.clients


def personalise(job: Job, where: Run, phase: int, state: Streamed) -> tuple[Streamed, np.ndarray | None]:
    """What clients do alone after the last round, some at a time, into a store of models."""
    step, chooses = beside_alone(job)
    plan, data, test = job.plan, job.federations[0].train, job.federations[0].test
    algorithm, terms = as_array(job.algorithms[phase]), as_array(job.terms)
    models, alone = _model_store(job, where, algorithm, state), []
    for ids, made in streaming.personalised(
        plan, as_array(step), algorithm, terms, trees.row(job.clients, 0), data, state
    ):
        if chooses:
            made, own = made
            alone.append(_errors(plan, own, test.rows(ids, _longest(test)))["error"])
        models.write(ids, made)
    return replace(state, models=models), np.concatenate(alone)[None] if chooses else None


def _model_store(job: Job, where: Run, algorithm: Algorithm, state: Streamed) -> client_store.Store:
    shapes, clients = _model_shapes(algorithm, state), job.plan.clients
    if job.experiment.engine.store == "memory":
        return client_store.in_memory(shapes, clients)
    return client_store.on_disk(shapes, clients, where.private, "afterwards", _models_size(job), places=1)


def _model_shapes(algorithm: Algorithm, state: Streamed) -> Tree:
    """Of one client's model."""
    return jax.eval_shape(
        lambda shared: algorithm.model(shared, algorithm.init_client(shared, jnp.int32(0))), one_run(state.shared)
    )


def _longest(test: Data) -> int:
    return max(1, int(test.sizes.max()))


def measure(job: Job, phase: int, state: Streamed, everybody: bool) -> dict[str, np.ndarray]:
    """Test loss and error, of all clients or of some, with a leading axis for the one seed."""
    test = job.federations[0].test
    clients, length = job.plan.clients, _longest(test)
    watched = np.arange(clients) if everybody else np.linspace(0, clients - 1, min(clients, WATCHED)).astype(int)
    found = [
        jax.tree.map(lambda leaf, n=count: np.asarray(leaf)[:n], _errors(job.plan, models, test.rows(ids, length)))
        for ids, count, models in _blocks(job, phase, state, watched.astype(np.int32))
    ]
    return {name: np.concatenate([part[name] for part in found])[None] for name in found[0]}


@partial(jax.jit, static_argnums=0)
def _errors(plan: Plan, models: Params, rows: Rows) -> dict[str, Array]:
    return over(plan.model, partial(errors_of, plan.model), (0, 0))(models, rows)


def _blocks(job: Job, phase: int, state: Streamed, clients: np.ndarray) -> Iterator[tuple[np.ndarray, int, Params]]:
    """Numbers of some clients (the last repeated to fill the block), how many they are, and their models."""
    algorithm, (shared, begun) = as_array(job.algorithms[phase]), one_run((state.shared, state.begun))
    weights = trees.size(jax.eval_shape(job.plan.model.init, jax.random.key(0)))
    block = min(max(1, BLOCK // weights), len(clients), 1024)
    for first in range(0, len(clients), block):
        own = clients[first : first + block]
        ids = np.pad(own, (0, block - len(own)), mode="edge")
        if state.models is not None:
            yield ids, len(own), state.models.read(ids)[0]
        else:
            yield ids, len(own), _models(algorithm, shared, begun, ids, *state.store.read(ids))


@jax.jit
def _models(algorithm: Algorithm, shared: Shared, begun: Shared, slots: Array, stored: Tree, known: Array) -> Params:
    personal = states_of(algorithm, begun, slots, known, stored)
    return jax.vmap(partial(algorithm.model, shared), axis_size=slots.shape[0])(personal)


def tidy(state: Streamed) -> None:
    """The stores' files are not needed any more."""
    for store in (state.store, state.models):
        if store is not None:
            store.remove()


def write_models(job: Job, path: Path, phase: int, state: Streamed) -> None:
    """All clients' models, as `runs.write_tree` would write them, block by block; the store is not needed any more."""
    everybody = np.arange(job.plan.clients, dtype=np.int32)
    shapes = _model_shapes(job.algorithms[phase], state)
    unfinished = path.with_name(f".{path.name}")
    with run_directory.writing(path), zipfile.ZipFile(unfinished, "w") as archive:
        for number, (place, shape) in enumerate(jax.tree_util.tree_leaves_with_path(shapes)):
            header: Any = {"descr": shape.dtype.str, "fortran_order": False, "shape": (len(everybody), *shape.shape)}
            with archive.open(f"{jax.tree_util.keystr(place)}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_2_0(file, header)
                for _, count, models in _blocks(job, phase, state, everybody):
                    file.write(np.asarray(jax.tree.leaves(models)[number])[:count].tobytes())
        with archive.open("ids.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, np.array(job.ids))
    with run_directory.writing(path), unfinished.open("rb") as written:
        os.fsync(written.fileno())
        unfinished.replace(path)
