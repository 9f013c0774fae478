"""The server's part of secure sums as deployed: what it asks whom, three times a round, until a sum is opened.

    shares    signed keys of all go to all; shares of each one's secrets come back    (and the last round's are opened)
    vector    the model and these shares go out; masked vectors come back
    list      who was heard goes out; signatures of that list come back               (and keys for the next round)

With fewer silos than the study's `survivors` in any of them the attempt is given up: nothing of it is opened, and the
round is tried again with new keys, for which everybody pays again. It knows nothing of networks, like the coordinator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.sum_messages import BEGIN, MASK, OPEN, PER_SILO, SHARE, SIGN, as_json, from_json, packed, unpacked
from kinfolk.deploy.sums import Sums
from kinfolk.deploy.wire import LONGEST_HEADER, WireError, arrays_of
from kinfolk.deploy.worker import SUMS, VERSION
from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure.messages import Attempt, KeyCard, ListSignature, MaskedVector, Opening, Packets
from kinfolk.secure.server import Aborted, Gathering
from kinfolk.training import run_directory

KEYS, SHARES, VECTOR, LIST = "keys", "shares", "vector", "list"
BEGUN = "attempt.json"
"""The private file with the last attempt's number."""
GIVEN_UP = "given_up.jsonl"
"""The private file that says which attempts were given up, and why."""
Step = dict[str, Any]
Answers = Mapping[str, tuple[Step, bytes]]
"""By name: steps, and what followed them."""


@dataclass
class ServerSums:
    """A server's secure sums. Ask what `questions` says, hand what comes back to `take`, until it is `finished`."""

    server: Coordinator
    evaluates: bool = False
    """Whether the sum is the evaluation's, after the last words, instead of the rounds'."""
    exchange: str = KEYS
    """Which comes next."""
    why: str = ""
    """Why the last attempt was given up; empty after one that was not."""
    _now: Gathering | None = None
    _before: Gathering | None = None
    """The last round's, while it is not opened."""
    _next: Gathering | None = None
    """The next round's, while its keys come in."""

    @property
    def finished(self) -> bool:
        """All rounds are done, or the budget does not cover another one; or there is an evaluation to show."""
        if self.evaluates:
            return self.server.ask_evaluation() is None
        return self.exchange == KEYS and (self.server.finished() or not self.server.affordable())

    @property
    def longest(self) -> int:
        """Bytes of the longest answer."""
        study = self.server.study
        numbers = range(study.experiment.rounds + (self._sums.evaluation is not None))
        vector = 4 * max(map(self._sums.length, numbers))
        return LONGEST_HEADER + PER_SILO * (study.clients + 1) + vector

    @property
    def _sums(self) -> Sums:
        assert self.server.sums is not None
        return self.server.sums

    @property
    def _names(self) -> tuple[str, ...]:
        return self.server.study.roster.clients

    def questions(self) -> dict[int, bytes]:
        """What to ask the silos, by their places in the roster."""
        asked = {KEYS: self._ask_keys, SHARES: self._ask_shares, VECTOR: self._ask_vectors, LIST: self._ask_lists}
        return asked[self.exchange]()

    def take(self, answers: Mapping[int, bytes]) -> None:
        """What came back. An answer that does not fit is none.

        `answers`: by place.
        """
        found = {name: self._read(answers[slot]) for slot, name in enumerate(self._names) if slot in answers}
        taken = {KEYS: self._take_keys, SHARES: self._take_shares, VECTOR: self._take_vectors, LIST: self._take_lists}
        try:
            taken[self.exchange](found)
        except Aborted as error:
            now = self._before or self._now
            where = {} if now is None else {"round": now.attempt.round, "attempt": now.attempt.number}
            run_directory.append_json(self.server.run.private / GIVEN_UP, {**where, "why": str(error)})
            self.exchange, self.why = KEYS, str(error)
            self._now = self._before = self._next = None

    def _new(self, number: int) -> Gathering:
        """The next attempt, at a round; its number, on disk before anybody is asked, was never used in this run."""
        path = self.server.run.private / BEGUN
        last = json.loads(path.read_text())["number"] if path.exists() else -1
        run_directory.write_json(path, {"version": 1, "number": last + 1})
        return Gathering(self._sums.agreement(number), Attempt(self.server.run.name, number, last + 1))

    def _ask(self, names: Collection[str], steps: Callable[[str], Step], tail: bytes = b"") -> dict[int, bytes]:
        number = max(0, min(self.server.done, self.server.study.experiment.rounds - 1))
        header = self.server.header(SUMS, number)
        each = {slot: steps(name) for slot, name in enumerate(self._names) if name in names}
        return {slot: packed(header, own, tail) for slot, own in each.items() if own}

    def _read(self, answer: bytes) -> tuple[Step, bytes]:
        study = self.server.study
        try:
            header, steps, tail = unpacked(answer, study.clients)
        except WireError:
            return {}, b""
        wanted = {"version": VERSION, "study": study.digest, "run": self.server.run.name}
        return (steps, bytes(tail)) if wanted.items() <= header.items() else ({}, b"")

    def _ask_keys(self) -> dict[int, bytes]:
        self._now = now = self._new(self.server.study.experiment.rounds if self.evaluates else self.server.done)
        return self._ask(self._names, lambda _: {BEGIN: _of(now)})

    def _take_keys(self, found: Answers) -> None:
        assert self._now is not None
        _taken(self._now, BEGIN, KeyCard, found)
        self._now.all_cards()
        self.exchange = SHARES

    def _ask_shares(self) -> dict[int, bytes]:
        now, before = self._now, self._before
        cards = None if now is None else [as_json(card) for card in now.all_cards()]

        def steps(name: str) -> Step:
            found: Step = {}
            if before is not None and name in before.signatures:
                tags = {sender: tag.hex() for sender, tag in before.tags_for(name).items()}
                found[OPEN] = {**_of(before), "tags": tags}
            if now is not None and name in now.cards:
                found[SHARE] = {**_of(now), "cards": cards}
            return found

        return self._ask(self._names, steps)

    def _take_shares(self, found: Answers) -> None:
        now, before = self._now, self._before
        if before is not None:
            _taken(before, OPEN, Opening, found)
            self.server.take_sum(before.attempt.round, before.total(), before.heard())
            self._before, self.why = None, ""
        if now is None or not (self.evaluates or self.server.affordable()):
            self._now, self.exchange = None, KEYS
            return
        _taken(now, SHARE, Packets, found)
        now.packets_for(next(iter(now.packets), ""))
        self.exchange = VECTOR

    def _ask_vectors(self) -> dict[int, bytes]:
        now, memory = self._now, float(self.server.memory)
        assert now is not None
        tail = b"" if self.evaluates else arrays_of(self.server.state_for(now.attempt.round))
        self.server.pay(now.attempt.round)

        def steps(name: str) -> Step:
            packets = {sender: packet.hex() for sender, packet in now.packets_for(name).items()}
            return {MASK: {**_of(now), "packets": packets, "memory": memory}}

        return self._ask(now.packets, steps, tail)

    def _take_vectors(self, found: Answers) -> None:
        assert self._now is not None
        for steps, tail in found.values():
            with suppress(SecureError, WireError):
                if MASK in steps:
                    self._now.take(from_json(MaskedVector, steps[MASK], vector=tail))
        self._now.heard()
        self.exchange = LIST

    def _ask_lists(self) -> dict[int, bytes]:
        now = self._now
        assert now is not None
        after, heard = now.attempt.round + 1, now.heard()
        self._next = self._new(after) if after < self.server.study.experiment.rounds else None
        begin = {} if self._next is None else {BEGIN: _of(self._next)}
        sign = {SIGN: {**_of(now), "heard": list(heard)}}
        return self._ask(self._names, lambda name: {**(sign if name in heard else {}), **begin})

    def _take_lists(self, found: Answers) -> None:
        assert self._now is not None
        _taken(self._now, SIGN, ListSignature, found)
        self._now.tags_for(next(iter(self._now.signatures), ""))
        self._before, self._now, self._next, self.exchange = self._now, self._next, None, SHARES
        if self._now is not None:
            _taken(self._now, BEGIN, KeyCard, found)
            if len(self._now.cards) < self._now.agreement.survivors:
                self._now = None


def _of(view: Gathering) -> Step:
    return {"attempt": [view.attempt.round, view.attempt.number]}


def _taken(view: Gathering, step: str, kind: Any, found: Answers) -> None:
    """Takes what answers hold of a step; one that is forged, of another view or malformed is left out."""
    for steps, _ in found.values():
        with suppress(SecureError, WireError):
            if step in steps:
                view.take(from_json(kind, steps[step]))
