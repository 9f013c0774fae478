"""A tiny federation with secure sums: a server and silos in one process, with bytes between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kinfolk.data.federation import Federation, from_rows
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.server_sums import ServerSums
from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.study import Roster, Study
from kinfolk.deploy.sums import Sums, sums_of
from kinfolk.deploy.worker import Worker
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.training.experiment import Experiment, ModelChoice, Phase
from tests.deploy.federations import TRAINING, policy_of, rows_of

NAMES = ("a", "b", "c", "d")
SURVIVORS, COLLUDING = 3, 1
FEATURES = ("u", "v", "w")
LINEAR = ModelChoice("linear")


def key_of(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(name.encode() * 32)


def public_of(name: str) -> str:
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key_of(name).public_key().public_bytes(*openssh).decode()


KEYS = {name: public_of(name) for name in NAMES}


def tables(rows: int = 6) -> Federation:
    generator = np.random.default_rng(4)
    x = generator.uniform(-1, 1, size=(rows * len(NAMES), 3)).astype(np.float32)
    y = generator.uniform(size=len(x)).astype(np.float32)
    return from_rows(x, y, np.repeat(NAMES, rows), test_fraction=0.0, name="rows")


def secure_study(
    name: str = "mean_regularized",
    *,
    rounds: int = 2,
    phases: Any = None,
    model: ModelChoice = LINEAR,
    **options: Any,
) -> Study:
    """Two rounds cost an epsilon of about 4, and more is left for attempts that are given up."""
    sharing = {"aggregator": "secure", "survivors": SURVIVORS, "colluding": COLLUDING}
    spending = {"noise_multiplier": 1.4, "epsilon": 12.0, "delta": 1e-3}
    privacy = PrivacyLevel(Level.CLIENT, **{**spending, **sharing, **options})
    experiment = Experiment(model=model, training=TRAINING, privacy=privacy, phases=phases or (Phase(name, rounds),))
    return Study(Roster("tiny", NAMES, FEATURES, "number", keys=tuple(KEYS.values())), experiment)


_SUMS: dict[str, Sums] = {}


def prepared(study: Study) -> Sums:
    """The sums of a study, made once: in place of `sums_of`."""
    if study.digest not in _SUMS:
        _SUMS[study.digest] = sums_of(study)
    return _SUMS[study.digest]


_PROGRAMS: dict[tuple[str, int, float | None], Program] = {}


def secure_program(study: Study, slot: int, epsilon: float | None = None) -> Program:
    """A silo's program, made once; `epsilon`: its own budget, where that is not the study's."""
    key = (study.digest, slot, epsilon)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _program(study, slot, epsilon)
    return _PROGRAMS[key]


def _program(study: Study, slot: int, epsilon: float | None) -> Program:
    changes: dict[str, Any] = {"silos": KEYS}
    if epsilon is not None:
        changes["privacy"] = replace(study.experiment.privacy, epsilon=epsilon)
    policy = policy_of(study, NAMES[slot], **changes)
    return prepare_silo(study, policy, rows_of(tables(), slot), key=key_of(NAMES[slot]))


@contextmanager
def secure_workers(study: Study, folder: Path, epsilon: float | None = None) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(Worker(secure_program(study, slot, epsilon), folder / name))
            for slot, name in enumerate(NAMES)
        ]


Ask = Callable[[str, int, bytes], bytes | None]
"""`ask(exchange, slot, question)`: an answer, or None from a silo that is not there."""


def play(server: Coordinator, ask: Ask, most: int = 40) -> ServerSums:
    """All rounds; given up after `most` exchanges."""
    sums = ServerSums(server)
    while not sums.finished and most:
        most, exchange = most - 1, sums.exchange
        answers = {slot: ask(exchange, slot, question) for slot, question in sums.questions().items()}
        sums.take({slot: answer for slot, answer in answers.items() if answer is not None})
    return sums


def everybody(workers: list[Worker]) -> Ask:
    def ask(_: str, slot: int, question: bytes) -> bytes:
        answer = workers[slot].answer(question)
        assert answer != REFUSAL, (workers[slot].folder / "log.jsonl").read_text()
        return answer

    return ask
