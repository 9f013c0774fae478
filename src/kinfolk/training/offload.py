"""Simulations for another machine: calibrated and charged here, run there, checked and written down here again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp

from kinfolk.accounting.ledger import Ledger
from kinfolk.engines import resident, results
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from kinfolk.training import inputs, job_file, run_directory, run_files
from kinfolk.training.build import as_array, as_sweep
from kinfolk.training.charges import affordable, charge, chunks_of, uses_of
from kinfolk.training.checkpoints import kept, keys_of, restored, save
from kinfolk.training.evaluate import measure, summary
from kinfolk.training.experiment import Experiment
from kinfolk.training.inputs import GivenData
from kinfolk.training.loop import default_ledger, finish
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.run_directory import Begun, Run
from kinfolk.training.statements import facts


def export(
    experiment: Experiment,
    output: Path = Path("runs"),
    *,
    ledger: Path | None = None,
    data: GivenData | None = None,
) -> Run:
    """Makes a simulation ready for another machine: calibrated here, charged here, `private/job.npz` to be carried.

    There `python -m kinfolk.training.job_file job.npz result.npz` runs it; `merge` takes the result. The parameters are
    those of `run`; a model of one's own is code, and stays here.
    """
    if experiment.engine.store != "device":
        raise ConfigError(f"store={experiment.engine.store!r} stays where its files are: use store='device', or run it")
    if experiment.seed is None:
        raise PrivacyError("a release draws its noise where its ledger is: give a seed, or run it here")
    inputs.check_given(experiment, data, None)
    job = prepare(inputs.in_words(experiment, data, None), data)
    where = run_directory.create(output, job.experiment)
    path = default_ledger(job, where) if ledger is None else ledger
    run_directory.write_json(
        where.private / "run.json", {"version": 1, "ledger": str(path.absolute()), **where.digests(), **facts(job)}
    )
    job.require_checked()
    with Ledger(path) as book:
        for chunk in affordable(job, where.name, book, list(chunks_of(job, 0))):
            charge(job, where.name, book, chunk)
    with run_directory.writing(where.private / "job.npz"):
        job_file.save(parcel(job), where.private / "job.npz")
    begun = run_files.read_json(where.private / "run.json", Begun)
    run_directory.write_json(where.private / "run.json", {**begun, "job": job_file.digest(where.private / "job.npz")})
    return where


def parcel(job: Job) -> job_file.Parcel:
    """A prepared job as something that can be carried."""
    data, plan = job.federations[0], job.plan
    return job_file.Parcel(
        model=job.experiment.model,
        shape=data.shape,
        outcome=data.outcome,
        classes=data.classes,
        level=plan.level,
        widths=plan.widths,
        most_steps=plan.most_steps,
        tail_from=plan.tail_from,
        rounds=tuple(phase.rounds for phase in job.experiment.phases),
        first_seed=job.experiment.seed or 0,
        algorithms=tuple(as_sweep(algorithm) for algorithm in job.algorithms),
        terms=as_sweep(job.terms),
        clients=job.clients,
        tests=job.tests,
        afterwards=None if job.afterwards is None else as_array(job.afterwards),
    )


def merge(path: Path, result: Path, *, data: GivenData | None = None) -> Run:
    """Takes the result of an exported run home: its meters must have counted what the ledger was charged.

    `data`: the objects that `export` was given, if any.
    """
    where = run_directory.open_run(path)
    begun = run_files.read_json(where.private / "run.json", Begun)
    if where.done() or "job" not in begun:
        raise PrivacyError(f"{path} was not exported, or is finished: only an exported run takes a result")
    if where.digests()["experiment"] != begun["experiment"]:
        raise PrivacyError(
            f"{where.public / 'experiment.toml'} was changed since the run was exported: export it again"
        )
    arrays = run_files.read_arrays(result)
    if str(arrays.get("job")) != begun["job"]:
        raise PrivacyError(f"{result} is the result of another job than {where.private / 'job.npz'}")
    inputs.require_given(where.experiment(), data, None)
    job = prepare(where.experiment(), data)
    inputs.require_same(begun, facts(job))
    job.require_checked()
    rounds, last = job.experiment.rounds, len(job.experiment.phases) - 1
    fresh = resident.start_all(job.plan, as_sweep(job.algorithms[last]), keys_of(job))
    models = job.afterwards is not None
    like = replace(fresh, models=results.all_models(as_sweep(job.algorithms[last]), fresh)) if models else fresh
    wanted = [f"leaf{n}" for n in range(len(jax.tree.leaves(kept(like))))]
    if not arrays.keys() >= {*wanted}:
        raise run_files.damaged(result, "arrays are missing")
    leaves = [jnp.asarray(arrays[name]) for name in wanted]
    state = restored(fresh, jax.tree.unflatten(jax.tree.structure(kept(like)), leaves))
    with Ledger(Path(begun["ledger"])) as ledger:
        job.account.require_charged(ledger, where.name, [chunk.rounds for chunk in chunks_of(job, 0)])
        job.account.require_metered(uses_of(fresh), uses_of(state), range(rounds))
        save(job, where, state, rounds)
        run_directory.append_json(
            where.private / "metrics.jsonl", {"round": rounds, **summary(measure(job, last, state))}
        )
        finish(job, where, ledger, state, last, rounds)
    return where
