"""Prediction sets and intervals per client that hold with a chosen chance (split conformal prediction).

The rows kept for testing, which nobody trained on, say how little outcomes conform to a client's model. Where a client
keeps its model to itself (client level) it takes the quantile of its own rows, which costs nothing as long as the sets
stay with it. At example level models are public, and how far they reach comes from one noisy table of each client, in a
release like an evaluation: charged before it is made.
"""

from __future__ import annotations

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import limits
from kinfolk.data.federation import Federation
from kinfolk.data.target import Target
from kinfolk.metrics import conformal
from kinfolk.privacy.release import PrivacyError
from kinfolk.privacy.tables import Board, Unit, nonconformity
from kinfolk.toml import ConfigError
from kinfolk.training import published, run_directory, run_files, scorecard, statements
from kinfolk.training.evaluation_units import Question, models_of, people_of, per_row, require_test_rows
from kinfolk.training.inputs import GivenData
from kinfolk.training.prepare import Job
from kinfolk.training.run_directory import Run
from kinfolk.training.sets_format import Reach, Sets, sets_before
from kinfolk.types import Model, Params

OUTCOMES = ("number", "binary", "classes")
"""What there are prediction sets of."""
SETS_FROM = 0x5E75
"""Numbers of releases of sets begin here, among the streams of a simulation's seed."""


def prediction_sets(
    path: Path,
    coverage: float = 0.9,
    *,
    epsilon: float | None = None,
    data: GivenData | None = None,
    model: Model | None = None,
) -> Sets:
    """Finds how far a finished run's predictions have to reach, and keeps it with the run.

    `path`: the run directory. `coverage`: the chance with which a set, or interval, is to hold what comes out.
    `epsilon`: at example level, what the release costs each unit; at client level there is none. `data`, `model`: the
    objects that the run began with, where it was given any.
    """
    coverage = limits.checked("coverage", coverage)
    cost = None if epsilon is None else limits.checked("epsilon", epsilon)
    where, job = published.finished(path, data, model)
    require_test_rows(job)
    if job.plan.model.outcome not in OUTCOMES:
        raise ConfigError(f"outcome={job.plan.model.outcome!r} has no prediction sets yet: {', '.join(OUTCOMES)} have")
    own, _ = models_of(job, where)
    if not job.plan.level.clients_pay:
        if cost is not None:
            raise ConfigError(
                f"epsilon={cost:g}: at level={job.experiment.privacy.level!r} sets come from each client's own rows "
                "and stay with it, which costs nothing: leave epsilon out"
            )
        found = free(job, own, coverage)
        kept = where.private / run_directory.SETS
        before = run_files.read_json(kept, list[Sets]) if kept.exists() else []
        run_directory.write_json(kept, [*before, found])
        return found
    if cost is None:
        raise PrivacyError("at example level sets are read off test rows for everybody to see: give --epsilon for them")
    return _released(job, where, own, coverage, cost)


def free(job: Job, own: Params, coverage: float) -> Sets:
    """Every client's quantile of its own rows, one row of each person; for its eyes only.

    `own`: the clients' models.
    """
    data, model = job.federations[0], job.plan.model
    scores = scores_of(model, own, data)
    reach = [conformal.quantile(mine, 1 - coverage) for mine in scores]
    clients = [_reach(job.ids[k], value, "own", len(scores[k])) for k, value in enumerate(reach)]
    return _sets(job, coverage, clients, math.inf)


def scores_of(model: Model, own: Params, data: Federation) -> list[np.ndarray]:
    """How little each test row conforms to its client's model, client by client; one row of each person."""
    sizes = np.asarray(data.test.sizes)
    rows = data.test.rows(slice(None), max(1, int(sizes.max())))
    mask = np.asarray(rows.mask)
    x = jax.tree.map(lambda leaf: np.asarray(leaf)[mask], rows.x)
    outputs = scorecard.predicted(model, own, np.nonzero(mask)[0], x)
    score = jax.jit(jax.vmap(lambda output, y: nonconformity(model.outcome, output, y)))
    found = np.split(np.asarray(score(outputs, np.asarray(rows.y)[mask]), float), np.cumsum(sizes)[:-1])
    firsts = [np.unique(whose, return_index=True)[1] for whose in data.test_units]
    return [mine[first] for mine, first in zip(found, firsts, strict=True)]


def asked(job: Job, own: Params) -> Question:
    """A table of scores of each client: where bins end is decided by the declared range alone.

    `own`: the clients' models, which are public.
    """
    data, model = job.federations[0], job.plan.model
    rows = data.test.rows(slice(None), int(np.asarray(data.test.sizes).max()))
    mask = np.asarray(rows.mask)
    unit = Unit(rows.x, rows.y, np.zeros(mask.shape, np.int32), mask, None)
    whose, _ = people_of(data)
    units, real = per_row(unit, whose, 1)
    target = data.target or Target()
    width = target.scaled_high - target.scaled_low if model.outcome == "number" else 1.0
    edges = width * np.asarray(conformal.NUMBERS if model.outcome == "number" else conformal.LABELS, np.float32)
    board = Board(jnp.asarray(edges, jnp.float32), None, None, model, data.classes, 1, sets=True)
    words = "people, one row each" if data.has_people else "rows"
    return Question(board, units, np.asarray(real), True, own, groups=(), by="", target=target, unit=words)


def _released(job: Job, where: Run, own: Params, coverage: float, epsilon: float) -> Sets:
    ready = published.plan(job, asked(job, own), epsilon)
    with published.charging(where, job) as ledger:
        before = sets_before(where)
        name = f"{where.name}+sets-{len(before) + 1}"
        meter = published.meter_of(ready.question, job.experiment.seed, SETS_FROM + len(before))
        tables = published.released(ready, ledger, name, meter)
        found = of_tables(job, ready.question, tables, ready.scale, coverage)
        found["epsilon"], found["program"], found["ledger_run"] = epsilon, ready.report.program, name
        run_directory.write_json(where.public / run_directory.SETS, [*before, found])
        statements.write(job, where, ledger, where.statement()["rounds"])
    return found


def of_tables(job: Job, question: Question, tables: np.ndarray, scale: float, coverage: float) -> Sets:
    """Sets from noisy tables, one of each client; of everybody's together for a client whose rows are too few.

    `tables`: axes (clients, cells). `scale`: of the noise in each cell of each.
    """
    counts, edges = question.mask.sum(axis=-1), np.asarray(question.board.edges, float)
    miss = 1 - coverage
    there = int((counts > 0).sum())
    everybody = conformal.private_quantile(
        tables.sum(axis=0), edges, int(counts.sum()), scale=scale, parties=there, miss=miss
    )
    clients = []
    for client, table, count in zip(job.ids, tables, counts.tolist(), strict=True):
        if conformal.enough(count, len(edges), scale=scale, miss=miss):  # public: what came out must not decide
            mine = conformal.private_quantile(table, edges, count, scale=scale, parties=1, miss=miss)
            clients.append(_reach(client, mine, "own", count))
        else:
            clients.append(_reach(client, everybody, "everybody", count))
    return _sets(job, coverage, clients, everybody)


def _reach(client: str, score: float, whose: str, rows: int) -> Reach:
    return {"client": client, "score": score if math.isfinite(score) else None, "of": whose, "rows": rows}


def _sets(job: Job, coverage: float, clients: list[Reach], everybody: float) -> Sets:
    target = job.federations[0].target or Target()
    number = job.plan.model.outcome == "number"
    return {
        "version": 1,
        "coverage": coverage,
        "epsilon": None,
        "simulated": not job.account.released,
        "outcome": job.plan.model.outcome,
        "factor": target.factor if number else 1.0,
        "unit": target.words if number else "",
        "clients": clients,
        "everybody": everybody if math.isfinite(everybody) else None,
    }
