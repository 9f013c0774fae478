"""Requests to a silo as its server sends them, and what they cost it."""

from __future__ import annotations

from typing import Any

from kinfolk.accounting.ledger import read_lines
from kinfolk.deploy.study import Study
from kinfolk.deploy.wire import pack
from kinfolk.deploy.worker import Worker
from tests.deploy.federations import study_of

STUDY = study_of("mean_regularized", "example", seed=None, epsilon=2.0, noise_multiplier=None, rounds=3)


def request(of: Study = STUDY, number: Any = 0, tree: Any = None, **changes: Any) -> bytes:
    header = {"version": 1, "kind": "round", "study": of.digest, "run": "run-1", "round": number}
    return pack({**header, **changes}, of.first() if tree is None else tree)


def charges(worker: Worker) -> int:
    return sum(line.uses for line in read_lines(worker.folder / "ledger.jsonl"))
