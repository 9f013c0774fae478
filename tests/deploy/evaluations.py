"""A tiny federation whose study asks for an evaluation: three wards, the outcome follows the first of two features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.accounting.ledger import Line, read_lines
from kinfolk.data.federation import Federation, from_rows
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.policy import Columns, Policy
from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.silo_rows import divided
from kinfolk.deploy.study import Roster, Study
from kinfolk.deploy.wire import pack
from kinfolk.deploy.worker import Worker
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.types import Rows
from tests.deploy.federations import CLIENTS, play, policy_of

SIZES, TESTS = (90, 110, 130), (40, 50, 60)
EPSILON = 1.0


def rows(slot: int) -> Rows:
    generator = np.random.default_rng(slot)
    x = generator.uniform(-1, 1, (SIZES[slot], 2)).astype(np.float32)
    y = (generator.random(SIZES[slot]) < 1 / (1 + np.exp(-4 * x[:, 0]))).astype(np.int32)
    return Rows(x, y, np.ones(SIZES[slot], bool))


def study_of(level: str = "example", *, seed: int | None = 7, roster: Mapping[str, Any] = {}, **options: Any) -> Study:
    """`roster`: what else the study says."""
    experiment = Experiment(
        seed=seed,
        model=ModelChoice("logistic"),
        training=Training(batch_size=None),
        privacy=PrivacyLevel(Level(level), **{"epsilon": 4.0, "delta": 1e-4, **options}),
        phases=(Phase("mean_regularized", 2),),
        evaluate=EPSILON,
    )
    return Study(Roster("wards", CLIENTS, ("u", "v"), **{"tests": TESTS, **roster}), experiment)


REAL = study_of(seed=None)


def policy(study: Study, slot: int, **changes: Any) -> Policy:
    name = CLIENTS[slot]
    own = policy_of(study, name, data=Columns("rows.csv", f"rows of {name}", "y"), evaluate=EPSILON)
    return replace(own, **changes)


def program(study: Study, slot: int, **changes: Any) -> Program:
    return prepare_silo(study, policy(study, slot, **changes), rows(slot))


def on_one_machine(study: Study) -> Federation:
    """The same rows in one federation, divided as the silos divide theirs."""
    parts = [divided(study, policy(study, slot), rows(slot), None) for slot in range(len(CLIENTS))]
    x = np.concatenate([np.concatenate([one.train.x, one.tests.x]) for one in parts if one.tests is not None])
    y = np.concatenate([np.concatenate([one.train.y, one.tests.y]) for one in parts if one.tests is not None])
    test = np.concatenate([np.arange(size) >= size - kept for size, kept in zip(SIZES, TESTS, strict=True)])
    return from_rows(x, y, np.repeat(CLIENTS, SIZES), test=test, name="wards", outcome="binary")


@contextmanager
def workers(study: Study, folder: Path, **changes: Any) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(Worker(program(study, slot, **changes), folder / name))
            for slot, name in enumerate(CLIENTS)
        ]


def evaluated(study: Study, silos: list[Worker], folder: Path) -> Coordinator:
    """The server after all rounds, the evaluation and its end."""
    with Coordinator(study, folder, test_keys=study.experiment.seed is not None) as server:
        play(server, silos)
        ask = server.ask_evaluation()
        assert ask is not None
        server.take_evaluation(ask, {slot: silos[slot].answer(ask.request) for slot in ask.cohort})
        server.finish()
    return server


def request(of: Study = REAL, kind: str = "evaluate", run: str = "run-1", number: int = 0) -> bytes:
    header = {"version": 1, "kind": kind, "study": of.digest, "run": run, "round": number}
    return pack(header, () if kind == "evaluate" else of.first())


def after_its_end(silo: Worker) -> Worker:
    """With one round and the last words behind it."""
    silo.answer(request(kind="round"))
    silo.answer(request(kind="end"))
    return silo


def evaluation_lines(silo: Worker) -> list[Line]:
    return [line for line in read_lines(silo.folder / "ledger.jsonl") if line.kind == EVALUATION]
