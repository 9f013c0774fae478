"""Runs an experiment: charges the ledger, computes, publishes, in that order, chunk by chunk, and can be resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NoReturn, TypedDict

import jax
import numpy as np

from kinfolk.accounting import locks, owner
from kinfolk.accounting.account import Account
from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.engines import resident
from kinfolk.engines.client_store import StoreError
from kinfolk.privacy.release import PrivacyError
from kinfolk.training import inputs, published, run_directory, run_files, scorecard, statements, tracking
from kinfolk.training.backends import Backend, backend_of
from kinfolk.training.charges import Chunk, affordable, charge, chunk_rounds, chunks_of, uses_of
from kinfolk.training.evaluate import at_the_end, gains, measured, summary, watched
from kinfolk.training.experiment import Experiment
from kinfolk.training.inputs import GivenData
from kinfolk.training.noise_tape import checked_for_release, with_fresh_noise, without_noise
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.run_directory import Begun, Run, StoppedError
from kinfolk.types import Model, Tree

STOPPED = "stopped.json"


class Stopped(TypedDict):
    """Why a release ended before its last round."""

    round: int
    why: str


"""In a run's private part: that it stopped for good, and why."""
Progress = Callable[[int, int, dict[str, float]], None]
"""Called after every chunk with rounds done, rounds in all, and a few numbers; what a run is judged by stands under its
name and unit, as `MAE (points)`. In the first chunk also after 1, 2, 4, 8, ... rounds, without numbers: after one
everything is compiled, and the others tell how long a round takes."""


def run(
    experiment: Experiment,
    output: Path = Path("runs"),
    *,
    ledger: Path | None = None,
    data: GivenData | None = None,
    model: Model | None = None,
    progress: Progress | None = None,
    track: Sequence[str] = (),
    disjoint_because: str | None = None,
    begun: Callable[[Run], None] | None = None,
) -> Run:
    """Trains, and returns the run directory. Without a seed this is a release, charged to its owner's ledger.

    `output`: where the run directory goes. `ledger`: the file that is charged; None: the run's own for a simulation,
    its owner's for a release. `data`: a `Federation` (or one per seed) and `model`: a `Model`, where they are
    objects and not what the experiment names; they are checked like everything else, and `resume` needs them again.
    `progress` is called after every chunk of rounds. `track`: where numbers go while it trains, besides the run
    directory (see `tracking`).

    `experiment`: all settings. `disjoint_because`: why nobody in the data is in any other data set of the ledger; asked
    for once, by the first release under a new name, and quoted in statements. `begun` is called with the run directory
    before the first round, for those who would `resume` it after a kill.
    """
    tracking.check(track)
    inputs.check_given(experiment, data, model)

    def nothing_left(account: Account) -> None:
        kept = owner.default_ledger() if ledger is None else ledger
        if account.released and kept.exists():
            with owner.open_owned(kept, others=sorted(output.glob("*/private"))) as spent:
                account.disjoint(disjoint_because).require_left(spent)

    job = prepare(inputs.in_words(experiment, data, model), data, model, before=nothing_left)
    job = job.disjoint(disjoint_because)
    job = published.with_room(job)
    refuse_bad_release(job)
    where = run_directory.create(output, job.experiment)
    _write_encoding(job, where)
    path = default_ledger(job, where) if ledger is None else ledger
    run_directory.write_json(
        where.private / "run.json",
        {"version": 1, "ledger": str(path.absolute()), **where.digests(), **statements.facts(job)},
    )
    if begun:
        begun(where)
    try:
        _go(job, where, path, progress, track)
    except (LedgerError, StoreError):
        if not (where.private / "checkpoint.npz").exists():  # refused before anything was published
            shutil.rmtree(where.path)
        raise
    return published.planned(where, data, model)


def resume(
    path: Path,
    *,
    data: GivenData | None = None,
    model: Model | None = None,
    ledger: Path | None = None,
    progress: Progress | None = None,
    track: Sequence[str] = (),
) -> Run:
    """Goes on with a run that was stopped. A simulation continues bit for bit; a release draws fresh noise.

    `path`: the run directory. `data` and `model`: the objects that the run began with, where it was given any; the
    other parameters are those of `run`.

    `ledger`: must be the one the run began with. `progress`: as for `run`. `track`: as for `run`.
    """
    tracking.check(track)
    where = run_directory.open_run(path)
    if where.done():
        return published.planned(where, data, model)
    if (where.private / STOPPED).exists():
        raise StoppedError(run_files.read_json(where.private / STOPPED, Stopped)["why"])
    begun = run_files.read_json(where.private / "run.json", Begun)
    if where.digests()["experiment"] != begun["experiment"]:
        raise PrivacyError(f"{where.public / 'experiment.toml'} was changed since the run began: start a new run")
    path = Path(begun["ledger"])
    if ledger is not None and ledger.absolute() != path:
        raise PrivacyError(f"this run is charged to {path}, not to {ledger}: resume it without --ledger")
    experiment = where.experiment()
    inputs.check_given(experiment, data, model)
    inputs.require_given(experiment, data, model)
    job = prepare(experiment, data, model)
    inputs.require_same(begun, statements.facts(job))
    refuse_bad_release(job)
    if job.federations[0].encoding != (where.schema() or ""):
        raise PrivacyError("the schema was changed since the run began: undo that, or start a new run")
    _go(job, where, path, progress, track)
    return published.planned(where, data, model)


def _write_encoding(job: Job, where: Run) -> None:
    """Keeps the schema beside the models; one that was guessed from the data is private like the data."""
    data = job.federations[0]
    if data.encoding:
        run_directory.write_text((where.private if data.guesses else where.public) / "schema.toml", data.encoding)


def default_ledger(job: Job, where: Run) -> Path:
    """A simulation's ledger is its own. A release is charged to its owner's: one, wherever runs are kept."""
    if job.experiment.seed is not None:
        return where.public / "ledger.jsonl"
    return owner.default_ledger()


def refuse_bad_release(job: Job) -> None:
    """A release needs a budget, and data that were prepared without looking at them."""
    level, data = job.experiment.privacy, job.federations[0]
    if job.experiment.seed is not None or not level.level.private:
        return
    if job.experiment.data.given and data.name == "data":
        raise PrivacyError(
            "name='data' is nobody's name: a release needs the name that its owner gives the data in every table and "
            "year (name= of from_rows, data= of an estimator), because all its releases add up"
        )
    if data.guesses:
        raise PrivacyError(
            f"these columns of data {data.name!r} were guessed from its rows, which no account covers: "
            f"{', '.join(data.guesses)}. Declare them in a schema (`kinfolk schema` drafts one; confirm every entry) "
            "and give it with --schema, or give a seed to simulate"
        )
    if level.epsilon is None:
        raise PrivacyError("a release needs a budget: give epsilon (besides noise_multiplier), or a seed to simulate")
    if level.aggregator != "trusted":
        raise PrivacyError(
            f"aggregator={level.aggregator!r}: in a release of one process whoever runs it sees all rows, so nobody "
            "else can add the noise: give a seed to simulate, or leave it out"
        )
    if level.noise_bands > 1:
        raise PrivacyError("correlated noise has no exact noise yet: give a seed to simulate, or noise_bands=1")
    if job.experiment.data.pooled:
        raise PrivacyError("pooled data are a reference for simulations: give a seed, or leave data.pooled out")
    if level.level.clients_pay and not data.scaling_is_private:
        raise PrivacyError(
            f"data {data.name!r} was scaled with raw statistics ({data.scaling}), which no account covers: scale by "
            "declared bounds, or give a seed to simulate"
        )


def _go(job: Job, where: Run, ledger_path: Path, progress: Progress | None, track: Sequence[str]) -> Run:
    account, backend = job.account, backend_of(job)
    if account.released:
        job = checked_for_release(job, chunk_rounds(job))
    job.require_checked()
    with (
        locks.alone(where.private / "running", f"run {where.name}"),
        statements.opened(ledger_path, where, account) as ledger,
        tracking.tracking(track, job.experiment, where.private) as log,
    ):
        state, done, phase = backend.start(job, where)
        if account.released:
            behind = [chunk.rounds for chunk in chunks_of(job, 0) if chunk.end <= done]
            account.require_charged(ledger, where.name, behind)
        planned = affordable(job, where.name, ledger, list(chunks_of(job, done)))
        published.reserve(job, where.name, ledger)
        for place, chunk in enumerate(planned):
            if chunk.phase != phase:
                state = backend.enter(job, where, chunk.phase, state)
                phase = chunk.phase
            charge(job, where.name, ledger, chunk)
            state, described = _compute(job, chunk, state, backend, None if place else progress)
            if not is_finite(job, state):
                stop(job, where, ledger, chunk, planned[place + 1 :])
            done = chunk.end
            backend.save(job, where, state, done)
            _write_down(job, where, described)
            found = backend.measure(job, phase, state, everybody=False)
            numbers = summary(found)
            run_directory.append_json(where.private / "metrics.jsonl", {"round": done, **numbers})
            numbers |= watched(job, found)
            if progress or track:
                numbers |= _spent(job, ledger)
            log(done, numbers)
            if progress:
                progress(done, job.experiment.rounds, numbers)
        if job.afterwards is not None:
            state = _personalise(job, where, backend, phase, state, done)
        finish(job, where, ledger, state, phase, done)
    return where


def is_finite(job: Job, state: Tree) -> bool:
    """Whether weights are numbers, as far as everybody may know it: at client level a client's own are its own."""
    own = () if job.plan.level.server_pays else (getattr(state, "personal", ()), getattr(state, "models", ()))
    return all(bool(np.isfinite(leaf).all()) for leaf in jax.device_get(jax.tree.leaves((state.shared, own))))


def stop(job: Job, where: Run, ledger: Ledger, chunk: Chunk, left: Sequence[Chunk]) -> NoReturn:
    """Ends a release whose weights are not finite. Its whole plan is charged, as a stop may itself tell about data.

    What was published is then part of what was planned and paid for. Charged for the rounds until the stop alone, it
    would be as if that had been planned. A simulation just ends.
    """
    remedy = "choose a smaller step_size"
    if not job.account.released:
        raise StoppedError(f"round={chunk.end}: weights are NaN or infinite, so the simulation stopped: {remedy}")
    for later in left:
        charge(job, where.name, ledger, later)
    planned = left[-1].end if left else chunk.end
    why = (
        f"round={chunk.end}: weights are NaN or infinite, so the run stopped for good, and nothing of these rounds was "
        f"published. All {planned} planned rounds are charged, as the stop may tell something about the data: "
        f"{remedy}, try it with a seed (a simulation costs nothing), then start a new run"
    )
    run_directory.write_json(where.private / STOPPED, {"round": chunk.end, "why": why})
    raise StoppedError(why)


def _personalise(job: Job, where: Run, backend: Backend, phase: int, state: Tree, done: int) -> Tree:
    """What clients do alone after the last round, and who gained or lost by sharing (which nobody else may see)."""
    state, alone = backend.personalise(job, where, phase, state)
    found = backend.measure(job, phase, state, everybody=alone is not None)
    if alone is not None:
        run_directory.write_json(where.private / "self_selection.json", gains(alone, found["error"]))
    after = {"round": done, "afterwards": True, **summary(found)}
    run_directory.append_json(where.private / "metrics.jsonl", after)
    return state


def _spent(job: Job, ledger: Ledger) -> dict[str, float]:
    """What the party with the largest budget has spent so far, for the person who watches."""
    budgets = job.account.budgets()
    if not budgets:
        return {}
    party = max(budgets, key=lambda name: budgets[name].epsilon)
    account, relation = job.account, job.account.privacy.relation
    return {"epsilon": ledger.epsilon(party, account.data, account.unit, budgets[party].delta, relation=relation)}


def _compute(
    job: Job, chunk: Chunk, state: Tree, backend: Backend, told: Progress | None
) -> tuple[Tree, list[dict[str, object]]]:
    """Runs the chunk and compares the meters with what was charged. Also: what there is to say about each round."""
    if job.account.released:
        state = with_fresh_noise(job, state, chunk_rounds(job), chunk.rounds)
    before = uses_of(state)
    state, described = _advance(job, chunk, state, backend, told)
    job.account.require_metered(before, uses_of(state), chunk.rounds)
    return without_noise(state) if job.account.released else state, described


def _advance(
    job: Job, chunk: Chunk, state: Tree, backend: Backend, told: Progress | None
) -> tuple[Tree, list[dict[str, object]]]:
    """The chunk in one go; round by round if the algorithm can say something about its shared state (strengths).

    `told` hears when 1, 2, 4, 8, ... rounds of it are done.
    """
    describe, described = getattr(job.algorithms[chunk.phase], "describe", None), []
    count = len(chunk.rounds)
    heard = [chunk.begin + 2**power for power in range((count - 1).bit_length())] if told else []
    ends = range(chunk.begin + 1, chunk.end + 1) if describe else [*heard, chunk.end]
    for begin, end in pairwise([chunk.begin, *ends]):
        state = backend.advance(job, replace(chunk, begin=begin, end=end), state)
        if describe:
            found = describe(resident.one_run(state.shared))
            described.append({"round": end, "strength": {name: round(float(v), 6) for name, v in found.items()}})
        if told and end in heard:
            jax.block_until_ready(state.shared)
            told(end, job.experiment.rounds, {})
    return state, described


def _write_down(job: Job, where: Run, described: list[dict[str, object]]) -> None:
    """Appends what was said about the shared state, which is as public as that state."""
    folder = where.private if not job.plan.level.private else where.public
    for record in described:
        run_directory.append_json(folder / "strengths.jsonl", record)


def finish(job: Job, where: Run, ledger: Ledger, state: Tree, phase: int, done: int) -> None:
    """Writes models, per-client results and the privacy statement."""
    backend = backend_of(job)
    clean = "personal" in job.plan.level.clean
    backend.write_models(job, (where.public if clean else where.private) / "models.npz", phase, state)
    run_directory.write_tree(
        (where.public if job.plan.level.private else where.private) / "shared.npz",
        resident.one_run(jax.device_get(state.shared)),
    )
    numbers = backend.measure(job, phase, state, everybody=True)
    clients = measured(numbers["error"]).tolist()
    card, own = at_the_end(job, phase, state, numbers)
    kept = {"loss": numbers["loss"], "error": numbers["error"], **own}
    each = {key: (values.T.tolist(), np.asarray(~np.isnan(values).any(axis=0))) for key, values in kept.items()}
    rows = [
        {"client": job.ids[k]} | {key: values[k] for key, (values, there) in each.items() if there[k]} for k in clients
    ]
    if rows:
        run_directory.write_json(where.private / "clients.json", rows)
        run_directory.write_json(where.private / scorecard.FILE, card)
    statements.write(job, where, ledger, done)
    backend.tidy(state)
