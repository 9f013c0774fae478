"""Secure sums as deployed with all randomness on tapes: everything that the server is sent, and what it should be."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from kinfolk.deploy import silo_sums
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.server_sums import LIST, VECTOR
from kinfolk.deploy.study import Study
from kinfolk.deploy.sum_messages import BEGIN, OPEN, SIGN, from_json, packed, unpacked
from kinfolk.deploy.sums import Sums
from kinfolk.deploy.worker import Worker
from kinfolk.privacy.exact_samplers import discrete_gaussian
from kinfolk.secure.contribution import bounded
from kinfolk.secure.messages import KeyCard, Opening
from kinfolk.secure.server import Gathering
from kinfolk.secure.silo import Silo
from kinfolk.training import run_directory
from kinfolk.training.experiment import Experiment
from kinfolk.training.run_directory import Run
from kinfolk.types import Rows
from kinfolk.verify.secure_check import Tape
from tests.deploy.secure_federations import NAMES, play, secure_program

LOST = 3
"""The silo that does not send its vector in the first round."""
CREATE = run_directory.create
Part = Callable[..., np.ndarray]


@dataclass
class View:
    """What a server was sent and what it opened; and, for comparison, what silos put in."""

    agreements: dict[int, Any] = field(default_factory=dict)
    answers: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Exchange, silo, bytes."""
    totals: list[np.ndarray] = field(default_factory=list)
    """Of the sums that were opened, as they were."""
    heard: list[tuple[str, ...]] = field(default_factory=list)
    parts: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    """By round and silo: what a sound silo puts in before its noise."""
    noise: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    """Likewise: the noise that the bytes drawn there stand for."""
    put_in: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    """Likewise: what this kind of silo did put in, modulo 2^32."""
    broken: list[str] = field(default_factory=list)
    """What silos answered to a server that cheats."""

    def due(self, number: int) -> np.ndarray:
        """The sum that is accounted for, modulo 2^32."""
        slots = [NAMES.index(name) for name in self.heard[number]]
        whole = sum(self.parts[number, slot] + self.noise[number, slot] for slot in slots)
        return np.asarray(whole).astype(np.uint32)


@contextmanager
def on_tape(view: View, kind: type[Silo], part: Part | None, released: list[np.ndarray] | None) -> Iterator[list[Tape]]:
    """All silos' randomness from tapes, by silo; contributions and noise noted; releases held where they are given."""
    tapes, now = [Tape(name.encode()) for name in (*NAMES, "server")], [len(NAMES)]
    real_part, real_total, real_answer = Sums.contribution, Gathering.total, Worker.answer

    def source(count: int) -> bytes:
        return tapes[now[0]](count)

    def contribution(self: Sums, number: int, *rest: Any) -> np.ndarray:
        made, slot, terms = real_part(self, number, *rest), now[0], self.agreement(number)
        view.agreements[number], view.parts[number, slot] = terms, bounded(made)
        drawn = Tape(tapes[slot].seed, tapes[slot].used)
        view.noise[number, slot] = discrete_gaussian(terms.share, terms.length, drawn).astype(np.int64)
        return made if part is None else part(self, number, *rest)

    def total(self: Gathering) -> np.ndarray:
        view.totals.append(real_total(self))
        view.heard.append(self.heard())
        return view.totals[-1] if released is None else released[len(view.totals) - 1]

    def answer(self: Worker, request: bytes) -> bytes:
        now[0] = self.program.slot
        try:
            return real_answer(self, request)
        finally:
            now[0] = len(NAMES)

    class Noted(kind):
        def _contribution(self, message: np.ndarray) -> np.ndarray:
            assert self._secrets is not None
            made = super()._contribution(message)
            view.put_in[self._secrets.attempt.round, now[0]] = made
            return made

    def silo(*args: Any, **options: Any) -> Silo:
        return Noted(*args, source=source, **options)

    with ExitStack() as stack:
        for where, name, new in (
            (silo_sums, "Silo", silo),
            (Sums, "contribution", contribution),
            (Gathering, "total", total),
            (Worker, "answer", answer),
            (os, "urandom", source),
        ):
            stack.enter_context(mock.patch.object(where, name, new))
        yield tapes


def seen(
    study: Study,
    folder: Path,
    kind: type[Silo] = Silo,
    *,
    rows: Rows | None = None,
    part: Part | None = None,
    released: list[np.ndarray] | None = None,
) -> View:
    """A whole run as its server sees it; the last silo does not send its vector in the first round.

    `rows`: of the first silo, in place of its own. `part`: in place of `Sums.contribution`. `released`: held in place
    of the sums that are opened. The server is honest, but tries to get an opening without anybody's word on the list.
    """
    view = View()
    with ExitStack() as stack:
        programs = [secure_program(study, slot, 40.0) for slot in range(len(NAMES))]
        programs[0] = programs[0] if rows is None else replace(programs[0], rows=rows)
        with mock.patch.object(run_directory, "create", _always_run):
            server = stack.enter_context(Coordinator(study, folder / "server"))
        workers = [
            stack.enter_context(Worker(program, folder / name)) for program, name in zip(programs, NAMES, strict=True)
        ]
        stack.enter_context(on_tape(view, kind, part, released))

        def ask(exchange: str, slot: int, question: bytes) -> bytes | None:
            if (exchange, slot, server.done) == (VECTOR, LOST, 0):
                return None
            found = workers[slot].answer(question)
            view.answers.append((exchange, slot, found))
            if exchange == LIST:
                _open_alone(view, workers[slot], question)
            return found

        play(server, ask, most=10)
    return view


def _always_run(parent: Path, experiment: Experiment) -> Run:
    made = CREATE(parent, experiment)
    return Run(made.path.rename(parent / "run"))


def _open_alone(view: View, worker: Worker, question: bytes) -> None:
    header, steps, _ = unpacked(question, len(NAMES))
    if SIGN in steps:
        cheat = packed(header, {OPEN: {"attempt": steps[SIGN]["attempt"], "tags": {}}})
        if OPEN in _steps(worker.answer(cheat)):
            view.broken.append("shares are opened for a list that nobody else vouches for")


def _steps(answer: bytes) -> dict[str, Any]:
    try:
        return unpacked(answer, len(NAMES))[1]
    except ValueError:  # the fixed refusal
        return {}


def violations(view: View) -> set[str]:
    """What silos did that they must not, read off what the server was sent."""
    found, keys = set(view.broken), defaultdict[str, list[str]](list)
    for number, total in enumerate(view.totals):
        if (total != view.due(number)).any():
            found.add("a sum is not the bounded parts and exactly the noise that is accounted for")
    for _, slot, answer in view.answers:
        steps = _steps(answer)
        if OPEN in steps:
            opening = from_json(Opening, steps[OPEN])
            if {*opening.seeds} & {*opening.mask_keys}:
                found.add("both secrets of one silo are opened")
        if BEGIN in steps:
            card = from_json(KeyCard, steps[BEGIN])
            keys[NAMES[slot]] += [card.mask_key.hex(), card.seed_hash.hex()]
    if any(len({*used}) < len(used) for used in keys.values()):
        found.add("a key is used in more than one attempt")
    return found
