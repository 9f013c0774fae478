"""Runs an experiment: charges the ledger, computes, publishes, in that order, chunk by chunk, and can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import runs, trees
from kinfolk.experiment import Experiment
from kinfolk.fresh_noise import checked_for_release, release_size, with_fresh_noise
from kinfolk.jobs import Job, as_sweep, prepare, releases_per_round
from kinfolk.privacy import accounting
from kinfolk.privacy.ledger import RELEASED, SIMULATED, Ledger, LedgerError, Line
from kinfolk.privacy.levels import CLEAN
from kinfolk.privacy.mechanisms import Cost
from kinfolk.privacy.release import PrivacyError
from kinfolk.privacy.statement import statement, text
from kinfolk.runs import Run
from kinfolk.simulation import engine
from kinfolk.simulation.engine import State

CHUNKS = 20
"""A run is computed in about this many chunks of rounds, each charged beforehand and saved afterwards."""
TAPE_BYTES = 2**27

Progress = Callable[[int, int, dict[str, float]], None]
"""Called after every chunk with rounds done, rounds in all, and a few numbers."""


@dataclass(frozen=True)
class Chunk:
    """Some rounds of one phase."""

    phase: int
    begin: int
    end: int
    first: int
    """The phase's first round."""


def run(
    experiment: Experiment,
    output: Path = Path("runs"),
    *,
    ledger: Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Trains, and returns the run directory. Without a seed this is a release, charged to the data set's ledger."""
    job = prepare(experiment)
    _refuse_bad_release(job)
    where = runs.create(output, experiment)
    path = _default_ledger(job, where) if ledger is None else ledger
    runs.write_json(where.private / "run.json", {"version": 1, "ledger": str(path.absolute()), **_identity(where)})
    try:
        return _go(job, where, path, progress)
    except LedgerError:
        if not (where.private / "checkpoint.npz").exists():  # refused before anything was published
            shutil.rmtree(where.path)
        raise


def resume(path: Path, *, ledger: Path | None = None, progress: Progress | None = None) -> Run:
    """Goes on with a run that was stopped. A simulation continues bit for bit; a release draws fresh noise."""
    where = runs.open_run(path)
    if where.done():
        return where
    begun = json.loads((where.private / "run.json").read_text())
    if _identity(where)["experiment"] != begun["experiment"]:
        raise PrivacyError(f"{where.public / 'experiment.toml'} was changed since the run began: start a new run")
    path = Path(begun["ledger"])
    if ledger is not None and ledger.absolute() != path:
        raise PrivacyError(f"this run is charged to {path}, not to {ledger}: resume it without --ledger")
    job = prepare(where.experiment())
    _refuse_bad_release(job)
    return _go(job, where, path, progress)


def _identity(where: Run) -> dict[str, str]:
    """What must not change between the start of a run and its end."""
    text = (where.public / "experiment.toml").read_bytes()
    return {"experiment": hashlib.sha256(text).hexdigest()}


def _default_ledger(job: Job, where: Run) -> Path:
    """A simulation's ledger is its own. A release is charged to its data set's: the same, wherever runs are kept."""
    if job.experiment.seed is not None:
        return where.public / "ledger.jsonl"
    named = os.environ.get("KINFOLK_LEDGERS")
    folder = Path(named) if named else Path.home() / ".local" / "share" / "kinfolk" / "ledgers"
    return folder / f"{job.federations[0].name}.jsonl"


def _refuse_bad_release(job: Job) -> None:
    """A release needs a budget, and data that were prepared without looking at them."""
    level, data = job.experiment.privacy, job.federations[0]
    if job.experiment.seed is not None or level.level == "none":
        return
    if level.epsilon is None:
        raise PrivacyError("a release needs a budget: give epsilon (besides noise_multiplier), or a seed to simulate")
    if level.level == "example" and not data.scaling_is_private:
        raise PrivacyError(
            f"data {data.name!r} was scaled with raw statistics ({data.scaling}), which no account covers: scale by "
            "declared bounds, or give a seed to simulate"
        )


def _go(job: Job, where: Run, ledger_path: Path, progress: Progress | None) -> Run:
    released = job.experiment.seed is None
    if released:
        job = checked_for_release(job, _chunk_rounds(job))
    for check in job.checks:
        check.require()
    with Ledger(ledger_path) as ledger:
        state, done, phase = _start(job, where)
        if released:
            _require_charged(job, where, ledger, done)
        for chunk in _affordable(job, where, ledger, list(_chunks(job, done)), released):
            if chunk.phase != phase:
                state, phase = _enter_phase(job, chunk.phase, state), chunk.phase
            _charge(job, where, ledger, chunk, released)
            state = _compute(job, chunk, state, released)
            done = chunk.end
            _save(job, where, state, done)
            _describe(job, where, chunk.phase, state, done)
            numbers = measure(job, phase, state)
            runs.append_json(where.private / "metrics.jsonl", {"round": done, **_summary(numbers)})
            if progress:
                progress(done, job.experiment.rounds, _summary(numbers))
        _finish(job, where, ledger, state, phase, done)
    return where


def _require_charged(job: Job, where: Run, ledger: Ledger, done: int) -> None:
    """Refuses to go on with a release whose earlier rounds are not in the ledger."""
    found: dict[tuple[str, str, Cost], int] = {}
    for line in ledger.lines:
        if line.run == where.name and line.noise == RELEASED and line.rounds[1] <= done:
            key = (line.party, line.kind, line.cost)
            found[key] = found.get(key, 0) + line.uses
    for line in (line for chunk in _chunks(job, 0) if chunk.end <= done for line in _lines(job, where, chunk, True)):
        key = (line.party, line.kind, line.cost)
        found[key] = found.get(key, 0) - line.uses
    if any(left < 0 for left in found.values()):
        raise PrivacyError(f"ledger {ledger.path} does not hold the {done} rounds that this run has behind it")


def _chunks(job: Job, done: int) -> Iterator[Chunk]:
    """The run in chunks, from round `done` on; chunk borders do not depend on where it was interrupted."""
    most = _chunk_rounds(job)
    first = 0
    for number, phase in enumerate(job.experiment.phases):
        for begin in range(first, first + phase.rounds, most):
            end = min(begin + most, first + phase.rounds)
            if end > done:
                yield Chunk(number, max(begin, done), end, first)
        first += phase.rounds


def _chunk_rounds(job: Job) -> int:
    """Rounds in a chunk: a twentieth of the run, or what noise for a release fits into memory."""
    rounds = -(-job.experiment.rounds // CHUNKS)
    if job.experiment.seed is None:
        uses = sum(int(part.max(initial=0)) for part in job.uses[0].values())
        rounds = min(rounds, TAPE_BYTES // max(1, 4 * uses * len(job.parties) * release_size(job)))
    return max(1, rounds)


def _lines(job: Job, where: Run, chunk: Chunk, released: bool) -> list[Line]:
    noise = RELEASED if released else SIMULATED
    rounds = slice(chunk.begin - chunk.first, chunk.end - chunk.first)
    return [
        Line(
            party,
            job.federations[0].name,
            job.plan.level,
            kind,
            cost,
            int(uses),
            where.name,
            (chunk.begin, chunk.end),
            noise,
        )
        for kind, counted in job.uses[chunk.phase].items()
        for party, cost, uses in zip(job.parties, job.costs()[kind], counted[rounds].sum(axis=0), strict=True)
    ]


def _affordable(job: Job, where: Run, ledger: Ledger, chunks: list[Chunk], released: bool) -> list[Chunk]:
    """The chunks that the budgets still cover.

    All of them, or an error, except after a crash of a release: what was charged then and never published stays
    charged, so the last rounds may have to be given up.
    """
    budgets, level = job.budgets(), job.plan.level
    data = job.federations[0].name

    def require(count: int) -> None:
        planned: dict[str, list[Any]] = {party: [] for party in job.parties}
        for chunk in chunks[:count]:
            for line in _lines(job, where, chunk, released):
                if released or not _already_charged(ledger, where, chunk):
                    planned[line.party].append((where.name, line.cost, line.uses))
        ledger.require(data, level, planned, budgets)

    crashed = released and any(line.run == where.name for line in ledger.lines)
    if not crashed:
        require(len(chunks))
        return chunks

    def fits(count: int) -> bool:
        try:
            require(count)
        except PrivacyError:
            return False
        return True

    return chunks[: accounting.largest(fits, len(chunks)) if chunks else 0]


def _already_charged(ledger: Ledger, where: Run, chunk: Chunk) -> bool:
    return any(x.run == where.name and x.rounds[0] <= chunk.begin and chunk.end <= x.rounds[1] for x in ledger.lines)


def _charge(job: Job, where: Run, ledger: Ledger, chunk: Chunk, released: bool) -> None:
    """Charges a chunk before it is computed. A simulation's repeated chunk has the same noise: charged once."""
    bound = releases_per_round(job, chunk.phase)
    for kind, counted in job.uses[chunk.phase].items():
        if counted.max(initial=0) > bound.get(kind, 0):
            raise PrivacyError(
                f"{kind}: {counted.max()} uses in a round, but the traced program makes {bound.get(kind, 0)}"
            )
    if released or not _already_charged(ledger, where, chunk):
        ledger.charge(_lines(job, where, chunk, released))


def _compute(job: Job, chunk: Chunk, state: State, released: bool) -> State:
    """Runs the chunk and compares the meters with what was charged."""
    algorithm, terms = as_sweep(job.algorithms[chunk.phase]), as_sweep(job.terms)
    if released:
        state = with_fresh_noise(job, state, _chunk_rounds(job))
    before = _uses(job, state)
    state = engine.run_rounds(
        job.plan, algorithm, terms, job.clients, state, jnp.int32(chunk.begin), jnp.int32(chunk.end)
    )
    rounds = slice(chunk.begin - chunk.first, chunk.end - chunk.first)
    for kind, after in _uses(job, state).items():
        charged = job.uses[chunk.phase][kind][rounds].sum(axis=0)
        if not (after - before[kind] == charged).all():
            raise PrivacyError(
                f"{kind}: the meters counted other uses than the ledger was charged; nothing is published"
            )
    if released:
        state = replace(state, meters=replace(state.meters, tape=None), server=replace(state.server, tape=None))
    return state


def _uses(job: Job, state: State) -> dict[str, np.ndarray]:
    """Uses so far of the kinds that are paid for, per sweep point, seed and party."""
    data = {kind: np.array(uses, copy=True) for kind, uses in state.meters.uses.items()}
    return {**data, **{kind: np.array(uses, copy=True)[..., None] for kind, uses in state.server.uses.items()}}


def _start(job: Job, where: Run) -> tuple[State, int, int]:
    """The state to go on from, how many rounds it has behind it, and its phase."""
    seed = job.experiment.seed
    first = seed if seed is not None else int.from_bytes(os.urandom(4), "big")
    numbers = jnp.arange(first, first + job.experiment.seeds, dtype=jnp.uint32)
    keys = jax.vmap(lambda number: jax.random.key(number, impl="threefry2x32"))(numbers)
    checkpoint = where.private / "checkpoint.npz"
    if not checkpoint.exists():
        return engine.start_all(job.plan, as_sweep(job.algorithms[0]), keys), 0, 0
    with np.load(checkpoint) as file:
        done = int(file["round"])
    phase = next(c.phase for c in _chunks(job, 0) if c.begin < done <= c.end)
    fresh = engine.start_all(job.plan, as_sweep(job.algorithms[phase]), keys)
    (shared, personal, uses, draws, server_uses, server_draws), _ = runs.read_tree(checkpoint, _kept(fresh))
    shared, personal, uses, draws, server_uses, server_draws = jax.tree.map(
        jnp.asarray, (shared, personal, uses, draws, server_uses, server_draws)
    )
    state = State(
        shared,
        personal,
        replace(fresh.meters, uses=uses, draws=draws),
        replace(fresh.server, uses=server_uses, draws=server_draws),
    )
    _publish(job, where, state, done)
    return state, done, phase


def _kept(state: State) -> tuple[Any, ...]:
    """What a checkpoint holds: everything but keys and noise."""
    meters, server = state.meters, state.server
    return state.shared, state.personal, meters.uses, meters.draws, server.uses, server.draws


def _enter_phase(job: Job, phase: int, state: State) -> State:
    """The next phase's state: the shared state goes on where it has the same form, personal states start from it."""
    algorithm = as_sweep(job.algorithms[phase])

    def one(algorithm: Any, shared: Any) -> tuple[Any, Any]:
        slots = jnp.arange(job.plan.clients, dtype=jnp.int32)
        shared = algorithm.init(shared, job.plan.clients)
        personal = jax.vmap(lambda slot: algorithm.init_client(shared, slot))(slots)
        return shared, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (job.plan.clients, *leaf.shape[1:])), personal)

    seeds = jax.vmap(one, in_axes=(None, 0))
    shared, personal = jax.vmap(seeds)(algorithm, state.shared)
    return replace(state, shared=shared, personal=personal)


def _save(job: Job, where: Run, state: State, done: int) -> None:
    """Saves first, publishes second: what is published can always be sent again, never computed again."""
    runs.write_tree(where.private / "checkpoint.npz", _kept(state), round=np.int64(done))
    _publish(job, where, state, done)


def _publish(job: Job, where: Run, state: State, done: int) -> None:
    if job.plan.level == "none":
        return
    folder = where.public / "shared"
    with runs.writing(folder):
        folder.mkdir(exist_ok=True)
    path = folder / f"{done:06d}.npz"
    if not path.exists():
        runs.write_tree(path, state.shared, round=np.int64(done))


def _describe(job: Job, where: Run, phase: int, state: State, done: int) -> None:
    """Appends what an algorithm can say about its shared state (strengths, say), which is as public as that state."""
    describe = getattr(job.algorithms[phase], "describe", None)
    if describe is not None:
        folder = where.private if job.plan.level == "none" else where.public
        values = describe(trees.row(state.shared, (0, 0)))
        runs.append_json(folder / "strengths.jsonl", {"round": done, "strength": values})


def measure(job: Job, phase: int, state: State) -> dict[str, np.ndarray]:
    """Test loss and error of every seed and client."""
    found = engine.errors(job.plan, as_sweep(job.algorithms[phase]), job.tests, state)
    return {name: np.asarray(values)[0] for name, values in found.items()}


def _summary(numbers: dict[str, np.ndarray]) -> dict[str, float]:
    """Means over seeds: the mean client's error, and that of the worst tenth of clients."""
    errors = np.sort(numbers["error"], axis=1)
    worst = max(1, errors.shape[1] // 10)
    return {
        "loss": float(numbers["loss"].mean()),
        "error": float(errors.mean()),
        "worst_decile_error": float(errors[:, -worst:].mean()),
    }


def _finish(job: Job, where: Run, ledger: Ledger, state: State, phase: int, done: int) -> None:
    """Writes models, per-client results and the privacy statement."""
    released = job.experiment.seed is None
    models = trees.row(state.personal, (0, 0))
    clean = "personal" in CLEAN[job.plan.level]
    runs.write_tree((where.public if clean else where.private) / "models.npz", models, ids=np.array(job.ids))
    runs.write_tree(
        (where.public if job.plan.level != "none" else where.private) / "shared.npz", trees.row(state.shared, (0, 0))
    )
    numbers = measure(job, phase, state)
    runs.write_json(
        where.private / "clients.json",
        [
            {"client": name, **{key: values[:, k].tolist() for key, values in numbers.items()}}
            for k, name in enumerate(job.ids)
        ],
    )
    data = job.federations[0]
    unit = job.plan.level
    lines = ledger.about(data.name, unit, job.experiment.privacy.relation)
    result = statement(
        job.experiment.privacy,
        lines,
        {} if unit == "none" else job.deltas(),
        data=data.name,
        noise=RELEASED if released else SIMULATED,
        program=[check.program for check in job.checks],
        scaling=data.scaling,
        scaling_is_private=data.scaling_is_private or unit == "client",
        other_accounts=len(lines) < len([x for x in ledger.lines if x.data == data.name]),
    )
    result["strength_learned"] = any(hasattr(algorithm, "describe") for algorithm in job.algorithms)
    result |= {"run": where.name, "rounds": done, "ledger": ledger.path.name}
    if released:
        shutil.copyfile(ledger.path, where.public / "ledger.jsonl")
    runs.write_text(where.public / "statement.txt", text(result))
    runs.write_json(where.public / "statement.json", result)
