"""Writing a run's privacy statement, and opening the ledger it is about: after training, and after an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kinfolk.accounting import owner
from kinfolk.accounting.account import Account, Preparation
from kinfolk.accounting.ledger import Ledger, extract
from kinfolk.accounting.statement import METRICS, METRICS_BESIDE, Statement, text
from kinfolk.algorithms.relations import RELATED
from kinfolk.training import inputs, run_directory
from kinfolk.training.experiment import Phase
from kinfolk.training.prepare import Job
from kinfolk.training.run_directory import Run
from kinfolk.training.sets_format import sets_before
from kinfolk.training.shown import Shown, shown_before

RELATIONS = "who is related to whom: groups, a graph or a matrix that was given, and counts as public"


def opened(path: Path, where: Run, account: Account) -> Ledger:
    """The ledger to charge: its owner's, which other runs in the same folder may remember; or a simulation's own."""
    if not account.released:
        return Ledger(path)
    return owner.open_owned(path, remembers=where.private, others=sorted(where.path.parent.glob("*/private")))


def facts(job: Job) -> dict[str, object]:
    """What a run keeps, in private, to know its data and its model again."""
    return inputs.facts(job.experiment, job.federations, [check.program for check in job.checks])


def write(job: Job, where: Run, ledger: Ledger, done: int) -> None:
    """Writes the statement as text and as JSON, and for a release its lines of the ledger.

    What the run has published of its test rows (evaluations, prediction sets) is in it. `done`: rounds of training.
    """
    account, data, shown, sets = job.account, job.federations[0], shown_before(where), sets_before(where)
    private = (data.scaling_is_private or account.level.server_pays) and not data.guesses
    program = [check.program for check in job.checks]
    result = account.statement(ledger, where.name, program=program, prepared=Preparation(data.scaling, private))
    result["strength_learned"] = any(hasattr(algorithm, "describe") for algorithm in job.algorithms)
    result.update({"run": where.name, "rounds": done, "ledger": ledger.path.name})
    result.update({"clients": len(job.ids), "outcome": data.outcome})
    add_shown(result, shown)
    add_relations(result, job.experiment.phases)
    if sets:
        result["prediction_sets"] = [
            {"coverage": one["coverage"], "epsilon": one["epsilon"], "simulated": one["simulated"]} for one in sets
        ]
    if account.released:
        names = (where.name, *(one["ledger_run"] for one in (*shown, *sets) if "ledger_run" in one))
        run_directory.write_bytes(where.public / "ledger.jsonl", extract(ledger.lines, *names))
        run_directory.write_json(where.private / "account.json", account_of_rows(account, ledger, where.name))
    run_directory.write_text(where.public / "statement.txt", text(result))
    run_directory.write_json(where.public / "statement.json", result)


def add_shown(result: Statement, shown: Sequence[Shown]) -> None:
    """Adds a run's evaluations to its statement.

    `result`: is changed.
    """
    if shown:
        result["not_covered"] = [METRICS_BESIDE if item == METRICS else item for item in result["not_covered"]]
        result["may_be_shown"] = [dict(one) for one in shown]


def add_relations(result: Statement, phases: Iterable[Phase]) -> None:
    """Says of a run with a relation between clients that it is public.

    `result`: is changed.
    """
    if any(option in RELATED for phase in phases for option in phase.options):
        result["not_covered"] = [*result["not_covered"], RELATIONS]


def account_of_rows(account: Account, ledger: Ledger, run: str) -> dict[str, object]:
    """What the units of this release have lost in all releases of the ledger: for the eyes of their owner."""
    worst = account.standing(ledger, run)
    return {
        "version": 1,
        "worst": {
            party: {"epsilon": found.epsilon, "delta": found.delta, "releases": list(found.releases)}
            for party, found in worst.items()
        },
    }
