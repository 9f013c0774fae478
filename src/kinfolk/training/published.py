"""Numbers that may be published: one evaluation of a finished run on its test rows, paid for like any other release.

One evaluation is one release of one table (per client at example level, of all clients at client level): every unit as
a whole moves it by at most 1, all bins and groups and all its rows together. Metrics and their intervals are computed
from the noisy table alone (`kinfolk.metrics`). The ledger is charged before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import limits, trees
from kinfolk.accounting import locks
from kinfolk.accounting.account import Account
from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.data.federation import DataError
from kinfolk.privacy import exact_noise, noise_tape
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.mechanisms import NoisySum
from kinfolk.privacy.release import Meter, PrivacyError, Tape, new_meter
from kinfolk.privacy.tables import Board, Unit, counts
from kinfolk.training import evaluation_account, inputs, run_directory, run_files, statements
from kinfolk.training.evaluation_account import ONCE, paid_by
from kinfolk.training.evaluation_units import Question, question
from kinfolk.training.inputs import GivenData
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.run_directory import Begun, Run
from kinfolk.training.shown import Release, Shown, metrics_of, shown_before
from kinfolk.types import Model
from kinfolk.verify.flow import Report, check, must_be_clean, must_be_counters
from kinfolk.verify.labels import CLEAN, COUNTER, KEY, ROWS, TERMS, For

EVALUATIONS_FROM = 0xE7A1
"""Numbers of evaluations begin here, among the streams of a simulation's seed."""


@dataclass(frozen=True)
class Planned:
    """An evaluation that is ready to be paid for."""

    question: Question
    account: Account
    mechanism: NoisySum
    report: Report
    """The flow check of the very program."""

    @property
    def scale(self) -> float:
        """Of the noise in each cell of a table."""
        return float(np.max(self.mechanism.noise_multiplier)) * self.mechanism.excess**0.5


def evaluate(
    path: Path,
    epsilon: float,
    *,
    by: str | None = None,
    data: GivenData | None = None,
    model: Model | None = None,
) -> Shown:
    """Evaluates a finished run on its test rows, charges its owner's ledger and adds what may be shown to the run.

    `path`: the run directory. `epsilon`: what this evaluation costs each unit, beside what was spent before; the run's
    promise must have room for it. `by`: a column with few declared values, for metrics of each of its groups. `data`,
    `model`: the objects that the run began with, where it was given any.
    """
    epsilon = float(limits.checked("epsilon", epsilon))
    where, job = finished(path, data, model)
    ready = plan(job, question(job, where, epsilon, by), epsilon)
    with charging(where, job) as ledger:
        before = shown_before(where)
        was_planned = not before and epsilon == job.experiment.evaluate
        name = where.name if was_planned else f"{where.name}+evaluation-{len(before) + 1}"
        meter = meter_of(ready.question, job.experiment.seed, EVALUATIONS_FROM + len(before))
        table = released(ready, ledger, name, meter).sum(axis=0)
        how = Release(epsilon, ready.scale, ready.report.program, not job.account.released, ready.mechanism.law)
        found = metrics_of(ready.question, table, how)
        keep(job, where, ledger, found, name)
    return found


def finished(path: Path, data: GivenData | None, model: Model | None) -> tuple[Run, Job]:
    """A run that has ended, and its job, made ready again from the same data."""
    where = run_directory.open_run(path.resolve())
    if not where.done():
        raise PrivacyError(f"{path} is not finished: kinfolk train --resume {path}, then evaluate")
    if where.name != where.statement()["run"]:
        raise PrivacyError(f"{path} was called {where.statement()['run']}, and its ledger knows it so: name it back")
    experiment = where.experiment()
    inputs.check_given(experiment, data, model)
    inputs.require_given(experiment, data, model)
    job = prepare(experiment, data, model)
    inputs.require_same(run_files.read_json(where.private / "run.json", Begun), statements.facts(job))
    return where, job


@contextmanager
def charging(where: Run, job: Job) -> Iterator[Ledger]:
    """The run's ledger, with nobody else at the run."""
    begun = run_files.read_json(where.private / "run.json", Begun)
    with (
        locks.alone(where.private / "running", f"run {where.name}"),
        statements.opened(Path(begun["ledger"]), where, job.account) as ledger,
    ):
        yield ledger


def planned(where: Run, data: GivenData | None, model: Model | None) -> Run:
    """The finished run, after the evaluation that its settings ask for, if it had none yet."""
    epsilon = where.experiment().evaluate
    if epsilon is not None and where.experiment().privacy.level.private and not shown_before(where):
        evaluate(where.path, epsilon, data=data, model=model)
    return where


def plan(job: Job, asked: Question, epsilon: float) -> Planned:
    """The account and the mechanism of an evaluation of a run, and the flow check of its program."""
    return plan_of(asked, *account_of(job, epsilon))


def plan_of(asked: Question, account: Account, mechanism: NoisySum) -> Planned:
    """An evaluation, after the flow check of its program."""
    exact_noise.check_grid(mechanism, asked.mask.shape[-1])
    return Planned(asked, account, mechanism, checked(asked, mechanism, account.released))


def account_of(job: Job, epsilon: float) -> tuple[Account, NoisySum]:
    """Who pays for an evaluation of a run and what, and the mechanism that makes it."""
    return paid_by(job.account, epsilon, _counted(job))


def _counted(job: Job) -> np.ndarray:
    """For each party whether it has test rows."""
    there = np.asarray(job.federations[0].test.sizes) > 0
    return np.array([there.any()]) if job.plan.level.server_pays else there


def table_of(board: Board, meter: Meter, mechanism: NoisySum, units: Unit, mask: jax.Array) -> tuple[jax.Array, Meter]:
    """The one release: a noisy table of these units."""
    return mechanism(EVALUATION, meter, counts(), board, units, mask, True)


def checked(asked: Question, mechanism: NoisySum, exact: bool) -> Report:
    """The flow check of an evaluation: nothing of a unit leaves but through one release."""
    board, units, mask = asked.board, asked.units, jnp.asarray(asked.mask)
    own = mechanism
    if asked.by_client:
        board, units, mask, own = jax.tree.map(lambda leaf: leaf[0], (asked.boards(), units, mask, mechanism))
    meter = new_meter(jax.random.key(0), (EVALUATION,))
    noise = None
    if exact:
        shapes = noise_tape.tape_shapes((EVALUATION,), {EVALUATION: asked.cells}, {EVALUATION: 1})
        assert shapes is not None
        meter = replace(meter, tape=shapes)
        noise = trees.filled(Tape, {EVALUATION: For(KEY, (EVALUATION,))}, shapes.mode)
    marks = trees.filled(Meter, KEY, KEY, {EVALUATION: For(COUNTER, (EVALUATION,))}, CLEAN, CLEAN, noise)
    report = check(table_of, (board, meter, own, units, mask), (CLEAN, marks, For(TERMS, (EVALUATION,)), ROWS, ROWS))
    if report.labels is not None:
        must_be_clean(report, "the table", report.labels[0])
        must_be_counters(report, report.places[1].uses)
    if not report.violations and report.releases != {EVALUATION: 1}:
        report.violations.append(f"an evaluation makes {report.releases} releases instead of one")
    if report.violations:
        raise PrivacyError("the flow check found leaks:\n- " + "\n- ".join(report.violations))
    return report


def meters(key: Array, clients: int) -> Meter:
    """A meter for each of so many clients' tables."""
    return jax.vmap(lambda one: new_meter(one, (EVALUATION,)))(jax.random.split(key, clients))


def meter_of(asked: Question, seed: int | None, number: int) -> Meter:
    """What an evaluation counts and draws with; only a simulation's noise comes from its keys.

    `seed`: of the run. `number`: another one for each release of a run.
    """
    key = jax.random.fold_in(jax.random.key(0 if seed is None else seed), number)
    return meters(key, asked.mask.shape[0]) if asked.by_client else new_meter(key, (EVALUATION,))


def released(planned: Planned, ledger: Ledger, name: str, meter: Meter) -> np.ndarray:
    """Charges the ledger, then makes the release: the noisy table of each party.

    `name`: what the ledger calls the run. `meter`: in a release its keys are not used.
    """
    account, asked = planned.account, planned.question
    try:
        account.require(ledger, name, [ONCE])
    except LedgerError as error:
        raise LedgerError(
            f"{error}. What may still be published is what the promise leaves: plan the evaluation with the training "
            "(--evaluate, or evaluate in a policy), or promise more than training spends (--promise, or promise)"
        ) from error
    account.charge(ledger, name, ONCE)
    if account.released:

        def draw(kind: str, shape: tuple[int, ...]) -> np.ndarray:
            scales = account.scales(kind, ONCE, shape[-2])
            return exact_noise.integers(planned.mechanism, scales.reshape(*shape[:-1], 1), shape)

        lead = (len(account.parties),) if asked.by_client else ()
        shapes = noise_tape.tape_shapes((EVALUATION,), {EVALUATION: asked.cells}, {EVALUATION: 1}, *lead)
        meter = noise_tape.with_fresh_noise(meter, shapes, draw)
    before = {EVALUATION: np.zeros(len(account.parties), int)}
    tables, after = each(asked, meter, planned.mechanism)
    used = np.atleast_1d(np.asarray(after.uses[EVALUATION])) * np.atleast_1d(asked.mask.any(axis=-1))
    account.require_metered(before, {EVALUATION: used}, ONCE)
    return tables


def ask(asked: Question, meter: Meter, mechanism: NoisySum) -> tuple[np.ndarray, Meter]:
    """The noisy table of all clients together, and the meter."""
    tables, after = each(asked, meter, mechanism)
    return tables.sum(axis=0), after


def each(asked: Question, meter: Meter, mechanism: NoisySum) -> tuple[np.ndarray, Meter]:
    """The noisy table of every party, and the meter. A client without test rows is not asked: its table is empty."""
    if not asked.by_client:
        table, after = jax.jit(table_of)(asked.board, meter, mechanism, asked.units, jnp.asarray(asked.mask))
        return np.asarray(table, np.float64)[None], after
    program = jax.jit(jax.vmap(table_of))
    tables, after = program(asked.boards(), meter, mechanism, asked.units, jnp.asarray(asked.mask))
    return np.where(asked.mask.any(axis=-1, keepdims=True), np.asarray(tables, np.float64), 0.0), after


def keep(job: Job, where: Run, ledger: Ledger, found: Shown, name: str) -> None:
    """Writes what may be shown into the run: its own file, and a section of the statement."""
    run_directory.write_json(
        where.public / run_directory.EVALUATIONS, [*shown_before(where), {**found, "ledger_run": name}]
    )
    statements.write(job, where, ledger, where.statement()["rounds"])


def with_room(job: Job) -> Job:
    """The job with a promise that has room for the evaluation that its settings ask for, if they do."""
    epsilon = job.experiment.evaluate
    if epsilon is None:
        return job
    there = _counted(job)
    if not there.any():
        raise DataError(f"evaluate={epsilon:g} needs test rows, and there are none: keep some, or leave it out")
    exact_noise.check_grid(paid_by(job.account, epsilon, there)[1], int(there.max()))
    account = evaluation_account.with_room(job.account, epsilon, there, job.experiment.rounds)
    return replace(job, experiment=replace(job.experiment, privacy=account.privacy), account=account)


def reserve(job: Job, run: str, ledger: Ledger) -> None:
    """Keeps room in the ledger for the evaluation that a run has planned, before it begins."""
    epsilon = job.experiment.evaluate
    if epsilon is not None and job.account.released:
        account_of(job, epsilon)[0].require(ledger, run, [ONCE])
