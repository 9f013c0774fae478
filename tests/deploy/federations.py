"""A tiny federation for the deploy tests: a server and workers in one process, with serialised messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.algorithms import REGISTRY
from kinfolk.data.federation import Federation, from_rows
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.policy import Columns, Policy
from kinfolk.deploy.silo_program import prepare_silo
from kinfolk.deploy.study import Roster, Study
from kinfolk.deploy.worker import Worker
from kinfolk.engines import resident, results
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.training import run_directory
from kinfolk.training.build import as_array, as_sweep
from kinfolk.training.experiment import Afterwards, Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import prepare
from kinfolk.training.recipes import MODELS
from kinfolk.types import Rows

PAIRS = [(name, level) for name, entry in REGISTRY.items() for level in entry.levels]
SIZES = (5, 6, 9)
CLIENTS = ("a", "b", "c")
ROUNDS = 3
TRAINING = Training(batch_size=4)


def federation_of(seed: int = 3, outcome: str = "number") -> Federation:
    """Three clients of unequal size, all rows for training; numbers, or whether they are large."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, size=(sum(SIZES), 3)).astype(np.float32)
    y = generator.uniform(size=sum(SIZES)).astype(np.float32)
    y = y if outcome == "number" else (y > 0.5).astype(np.int32)
    return from_rows(x, y, np.repeat(CLIENTS, SIZES), test_fraction=0.0, name="rows", outcome=outcome)


def rows_of(federation: Federation, slot: int) -> Rows:
    size = int(federation.train.sizes[slot])
    return Rows(federation.train.x[slot, :size], federation.train.y[slot, :size], np.ones(size, bool))


def level_of(level: str, **options: Any) -> PrivacyLevel:
    if level == "none":
        return PrivacyLevel(Level.NONE, **options)
    return PrivacyLevel(Level(level), **{"noise_multiplier": 1.5, "delta": 1e-3, **options})


def study_of(
    name: str = "mean_regularized",
    level: str = "example",
    *,
    seed: int | None = 7,
    cohort: float | None = None,
    phases: tuple[Phase, ...] | None = None,
    rounds: int = ROUNDS,
    training: Training = TRAINING,
    afterwards: Afterwards | None = None,
    **options: Any,
) -> Study:
    privacy, outcome = replace(level_of(level, **options), cohort=cohort), REGISTRY[name].outcome
    experiment = Experiment(
        seed=seed,
        model=ModelChoice(MODELS[outcome]),
        training=training,
        privacy=privacy,
        phases=phases or (Phase(name, rounds),),
        afterwards=afterwards,
    )
    return Study(Roster("tiny", CLIENTS, ("u", "v", "w"), outcome), experiment)


def policy_of(study: Study, client: str, **changes: Any) -> Policy:
    policy = Policy(
        client,
        Columns("rows.csv", f"rows of {client}", "y"),
        replace(study.experiment.privacy, cohort=None),
        study.experiment.training,
        tuple(dict.fromkeys(phase.method for phase in study.experiment.phases)),
        study.experiment.rounds,
        answer_every=0.0,
        test_keys=study.experiment.seed is not None,
    )
    return replace(policy, **changes)


def worker_of(study: Study, federation: Federation, slot: int, folder: Path, **changes: Any) -> Worker:
    policy = policy_of(study, study.roster.clients[slot], **changes)
    return Worker(prepare_silo(study, policy, rows_of(federation, slot)), folder / policy.client)


@contextmanager
def workers_of(study: Study, federation: Federation, folder: Path) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        yield [stack.enter_context(worker_of(study, federation, slot, folder)) for slot in range(len(CLIENTS))]


def play(server: Coordinator, workers: list[Worker]) -> dict[int, Any]:
    """All rounds; returns the personal states that the workers kept, by place."""
    while not server.finished():
        ask = server.ask()
        answers = {slot: workers[slot].answer(ask.request) for slot in ask.cohort}
        assert REFUSAL not in answers.values(), [log_of(worker) for worker in workers]
        server.take(ask, answers)
    for worker in workers:
        worker.answer(server.last_words())
    return {slot: personal_of(worker) for slot, worker in enumerate(workers) if personal_of(worker) is not None}


def simulated(study: Study, federation: Federation) -> resident.State:
    """The same experiment in the resident engine, phase by phase."""
    job = prepare(study.experiment, [federation])
    keys = jax.random.key(jnp.uint32(study.experiment.seed))[None]
    state, begin = resident.start_all(job.plan, as_sweep(job.algorithms[0]), keys), 0
    for number, (phase, algorithm) in enumerate(zip(job.experiment.phases, job.algorithms, strict=True)):
        if number:
            state = resident.enter_phase(job.plan, as_sweep(algorithm), state)
        end = begin + phase.rounds
        state = resident.run_rounds(
            job.plan, as_sweep(algorithm), as_sweep(job.terms), job.clients, state, jnp.int32(begin), jnp.int32(end)
        )
        begin = end
    algorithm = as_sweep(job.algorithms[-1])
    if job.afterwards is not None:
        state = results.personalise(
            job.plan, as_array(job.afterwards), algorithm, as_sweep(job.terms), job.clients, state
        )
    state = replace(state, models=results.all_models(algorithm, state))
    return trees.row(state, (0, 0))


def require_parity(study: Study, federation: Federation, workers: list[Worker], folder: Path) -> None:
    """Plays all rounds; shared state, personal states and models must be those of simulation."""
    with Coordinator(study, folder / "server", test_keys=True) as server:
        personal = play(server, workers)
        expected = simulated(study, federation)
        pairs = [(server.shared, expected.shared)]
    pairs += [(own, trees.row(expected.personal, slot)) for slot, own in personal.items()]
    assert len(pairs) > 1
    pairs += [(model_of(workers[slot]), trees.row(expected.models, slot)) for slot in personal]
    for ours, theirs in pairs:
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


def personal_of(worker: Worker) -> Any:
    """The personal state after the last round of the only run."""
    found = sorted(worker.folder.glob("runs/*/[0-9]*.npz"))
    if not found:
        return None
    shape = worker.program.personal_shape(worker.program.study.phase(int(found[-1].stem)))
    return run_directory.read_tree(found[-1], {"personal": shape})[0]["personal"]


def model_of(worker: Worker) -> Any:
    """The model that the only run left."""
    (found,) = worker.folder.glob("runs/*/model.npz")
    return run_directory.read_tree(found, {"model": worker.program.study.model_shape})[0]["model"]


def log_of(worker: Worker) -> str:
    path = worker.folder / "log.jsonl"
    return path.read_text() if path.exists() else ""
