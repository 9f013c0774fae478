"""A silo's part of secure sums as deployed: which attempts it takes part in, what it pays, what it keeps of them.

The secrets of an attempt are in memory alone, of the last two attempts at most: while the sum of one round is opened,
keys for the next are agreed on; so is the sealing key of the run. Which attempts were begun is on disk before a key is
shown, and a masked vector before it is sent; that one is only ever sent again. A silo that was stopped has lost its
secrets and drops out until the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kinfolk.accounting import views
from kinfolk.accounting.ledger import Ledger
from kinfolk.deploy import silo_evaluation, silo_state
from kinfolk.deploy.silo_program import Program
from kinfolk.deploy.sum_messages import (
    BEGIN,
    MASK,
    OPEN,
    SHARE,
    SIGN,
    as_json,
    attempt_of,
    bytes_by_name,
    from_json,
    texts,
)
from kinfolk.deploy.wire import WireError, unpack_body
from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure.messages import Attempt, KeyCard, MaskedVector
from kinfolk.secure.session import Session
from kinfolk.secure.silo import Silo
from kinfolk.training import run_directory
from kinfolk.types import Tree

BEGUN = "attempt.json"
"""The last attempt that was begun."""
PARTS = ("view", "vector", "signature")
"""Of a masked vector, as they are kept."""
ALIVE = 2
"""Attempts whose secrets are kept at the same time."""


@dataclass
class SiloSums:
    """What a worker does about secure sums. `ledger` is the owner's."""

    program: Program
    ledger: Ledger
    _alive: dict[Attempt, Silo] = field(default_factory=dict)
    _session: Session | None = None
    """Of the run that was last asked about: its sealing key."""

    def answer(self, folder: Path, steps: dict[str, Any], tail: memoryview) -> tuple[dict[str, Any], bytes, str]:
        """What becomes of each step of a question; one that is refused is left out. Also bytes, and a line for the log.

        `folder`: of the run. `steps`: by name. `tail`: the shared state, where a vector is asked for.
        """
        found: dict[str, Any] = {}
        vector, refused = b"", []
        todo: dict[str, Callable[[Attempt, Any], Any]] = {
            OPEN: self._open,
            SHARE: self._share,
            MASK: partial(self._mask, folder, tail),
            SIGN: self._sign,
            BEGIN: partial(self._begin, folder),
        }
        for name in [name for name in todo if name in steps]:
            step = steps[name]
            if not isinstance(step, dict):
                raise WireError("a step is not an object")
            try:
                made = todo[name](attempt_of(step.get("attempt"), folder.name), step)
            except SecureError as error:
                refused.append(f"{name} refused: {error}")
                continue
            vector = made.vector if isinstance(made, MaskedVector) else vector
            found[name] = as_json(made)
        words = [f"{name} {'/'.join(map(str, steps[name]['attempt']))}" for name in found]
        return found, vector, f"sums of {folder.name}: {', '.join([*words, *refused]) or 'nothing'}"

    def erase(self) -> None:
        """Forgets all secrets."""
        self._alive.clear()
        self._session = None

    def _silo(self, attempt: Attempt) -> Silo:
        if attempt not in self._alive:
            raise SecureError(f"round {attempt.round}, attempt {attempt.number}: this silo has no keys for it")
        return self._alive[attempt]

    def _begin(self, folder: Path, attempt: Attempt, _: dict[str, Any]) -> KeyCard:
        """New keys, under a number that no attempt of this run had before."""
        if attempt in self._alive:
            return self._alive[attempt].begin(attempt)
        self._require_open(folder, attempt.round)
        begun = json.loads((folder / BEGUN).read_text())["number"] if (folder / BEGUN).exists() else -1
        if attempt.number <= begun:
            raise SecureError(f"attempt {attempt.number}: attempt {begun} was begun already")
        sums = self.program.sums
        assert sums is not None
        with run_directory.writing(folder):
            folder.mkdir(exist_ok=True)
        run_directory.write_json(folder / BEGUN, {"version": 1, "number": attempt.number})
        pins = sums.pins_for(attempt.round, self.program.tests)
        own = (self.program.policy.client, sums.key, pins, self._pay)
        silo = Silo(sums.shared.agreement(attempt.round), *own, session=self._session)
        self._alive = dict([*self._alive.items(), (attempt, silo)][-ALIVE:])
        card, self._session = silo.begin(attempt), silo.session
        return card

    def _is_evaluation(self, number: int) -> bool:
        """Whether a sum is the evaluation's; refused where the policy has no leave for it."""
        sums = self.program.sums
        if sums is None or not sums.shared.is_evaluation(number):
            return False
        if self.program.tests is None:
            raise SecureError("an evaluation was asked for, and the policy has no leave for one (evaluate)")
        return True

    def _require_open(self, folder: Path, number: int) -> None:
        if self._is_evaluation(number):
            if not (folder / silo_state.MODEL).exists():
                raise SecureError(f"an evaluation was asked for, and run {folder.name} has not ended")
            return
        last = silo_state.last_round(folder)
        if number >= self.program.rounds or (last is not None and last > number):
            raise SecureError(f"round {number} is over, or beyond the {self.program.rounds} rounds of the policy")
        if (folder / silo_state.MODEL).exists():
            raise SecureError(f"run {folder.name} has ended")

    def _share(self, attempt: Attempt, step: dict[str, Any]) -> Any:
        cards = step.get("cards")
        if not isinstance(cards, list):
            raise WireError("no cards")
        return self._silo(attempt).share(attempt, [from_json(KeyCard, card) for card in cards])

    def _mask(self, folder: Path, tail: memoryview, attempt: Attempt, step: dict[str, Any]) -> MaskedVector:
        """The silo's vector: paid, computed, stored, in that order, or the one that was stored before."""
        program, number = self.program, attempt.round
        if self._is_evaluation(number):
            return self._mask_evaluation(folder, attempt, step)
        if silo_state.path_of(folder, number).exists():
            stored = silo_state.sent(program, folder, number)
            if int(stored["attempt"]) == attempt.number:
                parts = (stored[name].tobytes() for name in PARTS)
                return MaskedVector(program.policy.client, *parts)
        self._require_open(folder, number)
        silo, packets, memory = self._silo(attempt), bytes_by_name(step.get("packets")), step.get("memory")
        if not isinstance(memory, float) or not 1e-4 < memory < 1e4:
            raise WireError("not what adaptive clipping remembers")
        phase = program.study.phase(number)
        sent = unpack_body(tail, program.study.request_shape(phase), program.policy.largest_value)
        shared, entry = (sent, None) if phase == 0 else sent
        own = silo_state.before(program, folder, phase, entry, number)
        own = silo_state.after_round(program, own, number - 1, shared)
        kept: list[silo_state.Kept] = []

        def contribution() -> np.ndarray:
            sums = program.sums
            assert sums is not None
            message, personal, meter = program.compute(
                number, shared, own.personal, program.meter(number, own.uses, own.draws)
            )
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((message, personal))):
                raise SecureError("the result is not finite")
            kept.append(silo_state.with_round(own, personal, meter))
            return sums.shared.contribution(number, shared, message, program.slot, memory)

        with silo_state.reserve(program, folder, number) as room:
            made = silo.mask(attempt, packets, contribution)
            if not kept:  # it was made before, and could not be stored
                raise SecureError("a vector for these keys was made already")
            silo_state.store(folder, number, room, _kept_form(made, attempt), kept[0], anew=True)
        return made

    def _mask_evaluation(self, folder: Path, attempt: Attempt, step: dict[str, Any]) -> MaskedVector:
        """The vector of the silo's test rows: checked, paid, computed, stored; or the one that was stored before."""
        program, tests = self.program, self.program.tests
        assert tests is not None
        stored = silo_evaluation.masked(folder)
        if stored is not None and int(stored["attempt"]) == attempt.number:
            return MaskedVector(program.policy.client, *(stored[name].tobytes() for name in PARTS))
        self._require_open(folder, attempt.round)
        silo, packets = self._silo(attempt), bytes_by_name(step.get("packets"))
        asked, checked = silo_evaluation.checked(program, tests, folder)
        with silo_evaluation.room(folder, 2 * asked.cells) as room:
            made = silo.mask(attempt, packets, lambda: silo_evaluation.vector_of(asked))
            silo_evaluation.store(folder, room, _kept_form(made, attempt), checked)
        return made

    def _pay(self, attempt: Attempt) -> None:
        program, run, number = self.program, attempt.run, attempt.round
        assert program.sums is not None
        if self._is_evaluation(number):
            assert program.tests is not None
            silo_evaluation.pay(program.tests, self.ledger, run)
            return
        account, this = program.sums.account, range(number, number + 1)
        if account.source is not None and self.ledger.store is not None:
            because, colluding = program.policy.trust_because, account.privacy.colluding
            views.trust(self.ledger, account.source, program.study.roster.name, because, colluding)
        begun = any(line.run == run for line in self.ledger.lines)
        if not begun:
            silo_evaluation.reserve(program.tests, self.ledger, run)
        account.require(self.ledger, run, [this if begun else range(number, program.rounds)])
        account.charge(self.ledger, run, this)

    def _sign(self, attempt: Attempt, step: dict[str, Any]) -> Any:
        return self._silo(attempt).sign(attempt, texts(step.get("heard")))

    def _open(self, attempt: Attempt, step: dict[str, Any]) -> Any:
        return self._silo(attempt).open(attempt, bytes_by_name(step.get("tags")))


def _kept_form(made: MaskedVector, attempt: Attempt) -> Tree:
    parts = {name: np.frombuffer(getattr(made, name), np.uint8) for name in PARTS}
    return {**parts, "attempt": np.int64(attempt.number)}
