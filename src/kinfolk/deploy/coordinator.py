"""The server's part of a federation: who is asked, what is made of the answers, and what is published.

It knows nothing of networks: `ask()` says what to send to whom, `take()` gets the bytes that came back. An answer that
is missing, late, malformed, of another round, not finite or too large is a zero message; nobody is asked in its place,
and means are divided by the expected size. After a crash it goes on from the last round that was saved.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.accounting.shown_text import in_words
from kinfolk.accounting.statement import Statement, text
from kinfolk.deploy.evaluation import EVALUATE
from kinfolk.deploy.round_account import NOTHING_TO_CHECK, as_compiled, checked_phase, round_meter
from kinfolk.deploy.server_evaluation import server_evaluation
from kinfolk.deploy.server_terms import server_account
from kinfolk.deploy.study import Study
from kinfolk.deploy.sums import sums_of
from kinfolk.deploy.wire import WireError, pack, unpack
from kinfolk.deploy.worker import VERSION
from kinfolk.engines.cohorts import draw_cohort
from kinfolk.privacy.noise_tape import fresh_keys
from kinfolk.privacy.release import Meter, PrivacyError, new_meter
from kinfolk.rounds import Mail, RoundSpec, server_round
from kinfolk.training import run_directory
from kinfolk.training.run_directory import Run
from kinfolk.training.shown import shown_before
from kinfolk.training.statements import add_relations, add_shown
from kinfolk.types import Tree
from kinfolk.verify.round_check import RoundCheck

run_server = jax.jit(server_round, static_argnums=0)
LARGEST_VALUE = 1e6
"""An answer with a larger value is malformed. Honest models stay far below."""
LETTING_GO = 30.0
"""Seconds that a coordinator which was stopped may still hold the ledger."""


@dataclass(frozen=True)
class Ask:
    """One round's question: to which clients, by their places in the roster, and what."""

    number: int
    cohort: tuple[int, ...]
    """At client level a secret: who was asked, and how many, is told to nobody and written nowhere."""
    request: bytes


class Coordinator:
    """A federation's server. Use it as a context manager; its folder is a run directory beside a ledger."""

    def __init__(self, study: Study, folder: Path, *, test_keys: bool = False) -> None:
        if test_keys != (study.experiment.seed is not None):
            raise PrivacyError(
                f"test_keys={test_keys} but the experiment's seed={study.experiment.seed}: a seed is for tests and "
                "needs test keys; a real federation has neither"
            )
        self.study, self.test_keys = study, test_keys
        self.sums = sums_of(study) if study.sums_are_secure else None
        self.account = self.sums.account if self.sums else server_account(study, released=not test_keys)
        if self.account.parties and not (test_keys or self.account.budgets()):
            raise PrivacyError("a federation needs a budget: give epsilon (besides noise_multiplier)")
        self.evaluation = server_evaluation(study, self.account)
        phases = range(len(study.algorithms))
        self.checks = self.sums.checks if self.sums else tuple(self._check(phase) for phase in phases)
        self.ledger, self._entered = Ledger(folder / "ledger.jsonl", wait=LETTING_GO), 0
        try:
            self.run, self.done, self._state = self._open(folder)
            self.account.require_charged(self.ledger, self.run.name, [range(n, n + 1) for n in range(self.done)])
            if not any(line.run == self.run.name for line in self.ledger.lines):
                self.account.require(self.ledger, self.run.name, [range(self.done, study.experiment.rounds)])
        except LedgerError:
            shutil.rmtree(self.run.path)  # refused before anything was published
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.ledger.__exit__(None, None, None)

    @property
    def shared(self) -> Tree:
        return self._state["shared"]

    def finished(self) -> bool:
        return self.done >= self.study.experiment.rounds or self.run.done()

    def _open(self, folder: Path) -> tuple[Run, int, dict[str, Tree]]:
        """The unfinished run of this study in the folder, or a new one."""
        for path in sorted(folder.glob("*/private/study.json")):
            run = Run(path.parent.parent)
            if not run.done() and json.loads(path.read_text())["digest"] == self.study.digest:
                return run, *self._load(run)
        run = run_directory.create(folder, self.study.experiment)
        run_directory.write_json(run.private / "study.json", {"version": 1, "digest": self.study.digest})
        return run, 0, self._first()

    def _first(self) -> dict[str, Tree]:
        counts = dict.fromkeys(self.study.level.inbox_kinds, 0)
        return {"shared": self.study.first(), "entry": (), "uses": counts, "draws": 0, "memory": np.float32(1)}

    def _load(self, run: Run) -> tuple[int, dict[str, Tree]]:
        path = run.private / "checkpoint.npz"
        if not path.exists():
            return 0, self._first()
        with np.load(path) as file:
            done = int(file["round"])
        phase = self.study.phase(done - 1)
        shape = self.study.shapes[phase]
        state, _ = run_directory.read_tree(path, {**self._first(), "shared": shape, "entry": shape if phase else ()})
        self._publish(run, state["shared"], done)
        return done, state

    def ask(self) -> Ask:
        """The next round's question. At client level every client's coin is flipped anew, with a fresh key."""
        number, sent = self.done, self.state_for(self.done)
        key = self._test_meter().coins if self.test_keys else fresh_keys()
        sampling = self.account.terms.inbox.sampling
        present = np.asarray(draw_cohort(sampling, key, jnp.int32(number), self.study.clients).present)
        return Ask(number, tuple(np.flatnonzero(present).tolist()), self._pack("round", number, sent))

    def state_for(self, number: int) -> Tree:
        """What silos are sent with a round: the shared state, and after the first phase the one that theirs began
        with."""
        study, phase = self.study, self.study.phase(number)
        if number and study.phase(number - 1) != phase and self._entered != phase:
            entry = study.algorithms[phase].init(jax.tree.map(jnp.asarray, self.shared), study.clients)
            self._state, self._entered = {**self._state, "shared": entry, "entry": entry}, phase
        return self.shared if phase == 0 else (self.shared, self._state["entry"])

    def last_words(self) -> bytes:
        """What everybody gets after the last round: the shared state."""
        number = max(0, self.done - 1)
        phase = self.study.phase(number)
        return self._pack("end", number, self.shared if phase == 0 else (self.shared, self._state["entry"]))

    def _pack(self, kind: str, number: int, tree: Tree) -> bytes:
        return pack(self.header(kind, number), tree)

    def header(self, kind: str, number: int) -> dict[str, Any]:
        """What every question begins with."""
        return {"version": VERSION, "kind": kind, "study": self.study.digest, "run": self.run.name, "round": number}

    def enough(self, ask: Ask, answers: Mapping[int, bytes], there: Collection[int]) -> bool:
        """Whether a round has the study's quorum. `there`: the silos that are there, by place.

        At client level the answers must not decide: a round that is drawn anew because those who were drawn did not
        answer takes everybody else with a larger probability than is paid for.
        """
        if self.study.level.server_pays:
            return len(there) >= self.study.roster.quorum
        form = self.study.message_shapes[self.study.phase(ask.number)]
        heard = sum(self._read(answers.get(slot), ask.number, form) is not None for slot in ask.cohort)
        return heard >= min(self.study.roster.quorum, len(ask.cohort))

    def take(self, ask: Ask, answers: Mapping[int, bytes], away: Collection[int] = ()) -> None:
        """Makes the next shared state of the answers, by place: charged, computed, saved, published, in that order.

        `away`: the places of silos that were not there before anybody was drawn.
        """
        study, number = self.study, ask.number
        if number != self.done:
            raise ValueError(f"round={number} was asked for, but round {self.done} is next")
        phase = study.phase(number)
        form = study.message_shapes[phase]
        messages = jax.tree.map(lambda leaf: np.zeros((study.clients, *leaf.shape), leaf.dtype), form)
        present = np.zeros(study.clients, bool)
        for slot in ask.cohort:
            found = self._read(answers.get(slot), number, form)
            if found is None:
                continue
            present[slot] = True
            for whole, leaf in zip(jax.tree.leaves(messages), jax.tree.leaves(found[0]), strict=True):
                whole[slot] = leaf
        missing = set(away) if study.level.server_pays else {slot for slot in range(study.clients) if not present[slot]}
        if missing or not study.level.server_pays:  # at client level not who took part, only who was not there
            absent = [name for slot, name in enumerate(study.roster.clients) if slot in missing]
            run_directory.append_json(self.run.private / "rounds.jsonl", {"round": number, "absent": absent})
        self.pay(number)
        before = self._test_meter() if self.test_keys else self._fresh_meter(phase, number)
        self._publish_round(number, *self._compute(number, messages, present, before))

    def pay(self, number: int) -> None:
        """Charges a round, on disk when this returns: before it is computed, or before masked vectors are asked for."""
        if self.evaluation is not None and number == self.study.experiment.rounds:
            self.evaluation.pay(self.ledger, self.run.name)
            return
        this = range(number, number + 1)
        self.account.require(self.ledger, self.run.name, [this])
        self.account.charge(self.ledger, self.run.name, this)

    def take_sum(self, number: int, total: np.ndarray, heard: Collection[str]) -> None:
        """Makes the next shared state of a secure sum, which `pay` has paid for: computed, saved, published.

        `total`: what the survivors' vectors add up to, modulo 2^32. `heard`: the survivors.
        """
        assert self.sums is not None
        if self.evaluation is not None and self.sums.is_evaluation(number):
            places = [slot for slot, name in enumerate(self.study.roster.clients) if name in heard]
            self.evaluation.take_sum(total, places, self.shared, self.run)
            return
        form = self.study.message_shapes[self.study.phase(number)]
        nothing = jax.tree.map(lambda leaf: np.zeros((self.study.clients, *leaf.shape), leaf.dtype), form)
        absent = [name for name in self.study.roster.clients if name not in heard]
        run_directory.append_json(self.run.private / "rounds.jsonl", {"round": number, "absent": absent})
        meter = self.sums.meter(number, total, self.memory)
        self._publish_round(number, *self._compute(number, nothing, np.zeros(self.study.clients, bool), meter))

    def _read(self, answer: bytes | None, number: int, form: Tree) -> tuple[Tree] | None:
        """The message in an answer, or nothing."""
        if answer is None:
            return None
        try:
            header, message = unpack(answer, form, LARGEST_VALUE)
        except WireError:
            return None
        wanted = {"version": VERSION, "study": self.study.digest, "run": self.run.name, "round": number}
        return (message,) if header == wanted else None

    def _compute(self, number: int, messages: Tree, present: np.ndarray, before: Meter) -> tuple[Tree, Meter]:
        study, weights, phase = self.study, jnp.asarray(self.study.weights()), self.study.phase(number)
        inbox = self.account.terms.at(number).inbox
        messages, shared = jax.tree.map(jnp.asarray, (messages, self.shared))
        slots = jnp.arange(study.clients, dtype=jnp.int32)
        mail = Mail(messages, weights, slots, jnp.asarray(present), before, inbox, inbox.sampling.rate * weights)
        spec = RoundSpec(study.model, study.level, 1, study.clients)
        spec = as_compiled(spec, self.account, self.checks[phase])
        shared, meter = run_server(spec, study.algorithms[phase], shared, mail, jnp.int32(number))
        self.account.require_metered(before.uses, meter.uses, range(number, number + 1))
        return shared, meter

    def _publish_round(self, number: int, shared: Tree, meter: Meter) -> None:
        """Saves first, publishes second; keys and noise are not kept."""
        uses = {kind: np.int64(count) for kind, count in meter.uses.items()}
        streams = {"uses": uses, "draws": np.int64(meter.draws), "memory": np.float32(meter.memory)}
        self._state = {**self._state, "shared": shared, **streams}
        self.done = number + 1
        run_directory.write_tree(self.run.private / "checkpoint.npz", self._state, round=np.int64(self.done))
        self._publish(self.run, shared, self.done)

    def _publish(self, run: Run, shared: Tree, done: int) -> None:
        if self.study.level.private:
            run_directory.publish(run.public / "shared", done, shared, round=np.int64(done))

    def _test_meter(self) -> Meter:
        """The stream that simulation would use, gone on from the saved counts."""
        meter = new_meter(jax.random.fold_in(self.study.key, 2), self.study.level.inbox_kinds)
        counts = {kind: jnp.int32(self._state["uses"][kind]) for kind in meter.uses}
        return replace(meter, uses=counts, draws=jnp.int32(self._state["draws"]), memory=self.memory)

    def _fresh_meter(self, phase: int, number: int) -> Meter:
        meter = new_meter(fresh_keys(), self.study.level.inbox_kinds)
        return replace(round_meter(self.account, meter, self.checks[phase].sizes, number), memory=self.memory)

    @property
    def memory(self) -> Array:
        """Where adaptive clipping has got to: read off releases, so it is public, and outlives a restart."""
        return jnp.asarray(self._state["memory"], jnp.float32)

    def _check(self, phase: int) -> RoundCheck:
        """The flow check of the very program that publishes. At example level the server sees nothing private."""
        study = self.study
        if not study.level.server_pays:
            return NOTHING_TO_CHECK
        spec = RoundSpec(study.model, study.level, 1, study.clients)
        program = (spec, study.algorithms[phase], self.account.terms, study.row_shapes(2))
        return checked_phase(program, self.account, study.experiment.spans[phase])

    def ask_evaluation(self) -> Ask | None:
        """What silos are asked after the last words; None where nothing is, or there is something to show already."""
        if self.evaluation is None or shown_before(self.run):
            return None
        number = max(0, self.done - 1)
        return Ask(number, self.evaluation.shared.asked, self._pack(EVALUATE, number, ()))

    def take_evaluation(self, ask: Ask, answers: Mapping[int, bytes]) -> None:
        """Makes and publishes what may be shown of the answers, by place; what is not in them is not in it."""
        assert self.evaluation is not None
        read = {
            place: found[0]
            for place in ask.cohort
            if (found := self._read(answers.get(place), ask.number, self.evaluation.shared.form))
        }
        self.evaluation.take(read, self.shared, self.ledger, self.run)

    def affordable(self) -> bool:
        """Whether the budget covers the next round; after a crash, which is paid for twice, it may not."""
        try:
            self.account.require(self.ledger, self.run.name, [range(self.done, self.done + 1)])
        except LedgerError:
            return False
        return True

    def finish(self) -> Statement:
        """Writes the last shared state and the statement: what is promised, and who keeps which account."""
        study, public = self.study, self.run.public
        if study.level.private:
            run_directory.write_tree(public / "shared.npz", self.shared)
        result = self.account.statement(self.ledger, self.run.name, program=[check.program for check in self.checks])
        result.update({"run": self.run.name, "rounds": self.done, "study": study.digest, "clients": study.clients})
        result["absent"] = absences(self.run)
        add_shown(result, shown_before(self.run))
        add_relations(result, study.experiment.phases)
        if study.level.clients_pay:
            result["epsilon"] = result["delta"] = None
            result["accounts"] = "every silo has its own budget and ledger; `kinfolk deploy status` there shows it"
            words = (
                "PRIVACY STATEMENT\n\nWhat is protected: one example of a silo (one person with all rows there, where "
                "its policy names people), against everybody else, this server included. How well: "
                f"{result['accounts']}. This server saw nothing that is not already private.\n"
            )
            words += "\n".join(line for one in result.get("may_be_shown", ()) for line in in_words(one))
        else:
            words = text(result)
        missed = [f"{name} in {count} of {self.done} rounds" for name, count in result["absent"].items()]
        words += f"\nAbsent: {', '.join(missed)}.\n" if missed else ""
        run_directory.write_text(public / "statement.txt", words)
        run_directory.write_json(public / "statement.json", result)
        return result


def absences(run: Run) -> dict[str, int]:
    """In how many rounds of a run each silo was missing; a round that was taken up again after a crash counts once."""
    rounds = run_directory.read_json_lines(run.private / "rounds.jsonl")
    last = {entry["round"]: entry["absent"] for entry in rounds}
    return dict(Counter(name for absent in last.values() for name in absent))
