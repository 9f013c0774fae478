"""A silo's worker: the one process that sees the silo's data, and the one place where requests are judged.

A request is served when it is of this study, for a round of a run that the policy covers, well formed, and within the
budget. The answer is the release and nothing else; every other request gets the same fixed text, and a line in the
silo's own log. The order of a round: charge the ledger, compute with fresh noise, compare the meter with the charge,
store, answer. What was stored is sent again when asked for again; it is never computed again.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kinfolk.accounting import locks, owner, views
from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.accounting.statement import text
from kinfolk.deploy import silo_evaluation, silo_state
from kinfolk.deploy.evaluation import EVALUATE
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.silo_evaluation import EVALUATED
from kinfolk.deploy.silo_program import Program
from kinfolk.deploy.silo_state import MODEL
from kinfolk.deploy.silo_sums import SiloSums
from kinfolk.deploy.sum_messages import PER_SILO, packed, unpacked
from kinfolk.deploy.wire import LONGEST_HEADER, RECEIPT, WireError, pack, read_header, size_of, unpack
from kinfolk.privacy.gates import EVALUATION
from kinfolk.training import run_directory
from kinfolk.training.statements import add_relations
from kinfolk.types import Tree

VERSION = 1
SUMS = "sums"
"""The kind of a question in secure sums."""
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Refused(Exception):
    """A request that the silo does not serve. The reason stays in the silo's log."""


class Worker:
    """A silo's data, program, ledger and state. Use it as a context manager; one request at a time."""

    def __init__(self, program: Program, folder: Path, ledger: Path | None = None) -> None:
        self.program = program
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "runs").mkdir(exist_ok=True)
        self._stack = ExitStack()
        with ExitStack() as stack:
            stack.enter_context(locks.alone(folder / "running", f"silo folder {folder}"))
            self.ledger = stack.enter_context(self._opened(folder / "ledger.jsonl", ledger))
            self._stack = stack.pop_all()
        self._sums = None if program.sums is None else SiloSums(program, self.ledger)

    def _opened(self, own: Path, given: Path | None) -> Ledger:
        """The owner's ledger; tests have one in the silo's own folder, as all had before owners had one."""
        if not self.program.pays.released:
            return Ledger(own)
        ledger = owner.open_owned(given or own, remembers=self.folder)
        if given is not None and given.absolute() != own.absolute() and own.exists():
            owner.import_lines(ledger, own)
        return ledger

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def _costs(self) -> set[int]:
        """The rounds that the silo pays for: none where it trusts the aggregator."""
        account = self.program.pays
        each = ((number, account.lines("", range(number, number + 1))) for number in range(self.program.rounds))
        return {number for number, lines in each if any(line.uses for line in lines)}

    @property
    def longest_request(self) -> int:
        """No request of this study is longer; what is longer need not be read."""
        study = self.program.study
        phases = range(len(study.algorithms))
        steps = PER_SILO * (study.clients + 1) if self._sums else 0
        return LONGEST_HEADER + steps + max(size_of(study.request_shape(phase)) for phase in phases)

    def answer(self, request: bytes) -> bytes:
        """The release that was asked for, or the fixed refusal. Nothing that goes wrong inside shows outside."""
        try:
            answer, note = self._serve(request)
        except Refused as error:
            answer, note = REFUSAL, f"refused: {error}"
        except LedgerError as error:
            answer, note = REFUSAL, f"refused by the ledger: {error}"
        except Exception as error:
            answer, note = REFUSAL, f"failed: {type(error).__name__}: {error}"
        try:
            self._note(note)
        except run_directory.RunError:
            return REFUSAL
        return answer

    def _note(self, what: str) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        run_directory.append_json(self.folder / "log.jsonl", {"time": time, "what": what[:1000]})

    def _serve(self, request: bytes) -> tuple[bytes, str]:
        if len(request) > self.longest_request:
            raise Refused(f"a request of {len(request)} bytes is too long")
        try:
            header, _ = read_header(request)
            if header.get("kind") == SUMS:
                return self._serve_sums(request)
            kind, run, number = self._checked(header)
            phase = self.program.study.phase(number)
            form = () if kind == EVALUATE else self.program.study.request_shape(phase)
            _, sent = unpack(request, form, self.program.policy.largest_value)
        except WireError as error:
            raise Refused(f"malformed: {error}") from None
        folder = self._folder_of(run)
        if kind == EVALUATE:
            return self._evaluate(folder, run, number)
        shared, entry = (sent, None) if phase == 0 else sent
        if kind == "end":
            self._finish(folder, number, phase, shared)
            return RECEIPT, f"run {run} has ended"
        return self._round(folder, run, number, phase, shared, entry)

    def _serve_sums(self, request: bytes) -> tuple[bytes, str]:
        header, steps, tail = unpacked(request, self.program.study.clients)
        _, run, number = self._checked(header)
        if self._sums is None:
            raise Refused("secure sums were asked for in a study without them")
        folder = self._folder_of(run)
        self._require_paid()
        found, vector, note = self._sums.answer(folder, steps, tail)
        if not found:
            raise Refused(note)
        return packed(self._header(run, number), found, vector), note

    def _checked(self, header: dict[str, Any]) -> tuple[str, str, int]:
        """Kind, run and round of a request of this study."""
        if set(header) != {"version", "kind", "study", "run", "round"} or header["version"] != VERSION:
            raise Refused("not a request of this version")
        kind, run, number = header["kind"], header["run"], header["round"]
        if kind not in ((SUMS, "end") if self._sums else ("round", "end", EVALUATE)):
            raise Refused(f"unknown kind {str(kind)[:20]!r}")
        if header["study"] != self.program.study.digest:
            raise Refused("the request belongs to another study: method, numbers or rounds differ from what was agreed")
        if not isinstance(run, str) or not RUN_NAME.fullmatch(run):
            raise Refused("not the name of a run")
        if type(number) is not int or not number >= 0:
            raise Refused("not the number of a round")
        rounds = self.program.rounds if kind in ("round", SUMS) else self.program.study.experiment.rounds
        if number >= rounds:
            raise Refused(f"round {number} is beyond the {self.program.rounds} rounds of the policy")
        return kind, run, number

    def _folder_of(self, run: str) -> Path:
        """The folder of a run; a new one only as far as the policy goes."""
        folder = self.folder / "runs" / run
        if not folder.is_dir():
            known = sum(1 for _ in (self.folder / "runs").iterdir())
            if known >= self.program.policy.runs:
                raise Refused(f"run {run} would be one more than the {known} that the policy allows")
        return folder

    def _round(self, folder: Path, run: str, number: int, phase: int, shared: Tree, entry: Tree) -> tuple[bytes, str]:
        program = self.program
        if silo_state.path_of(folder, number).exists():
            return self._packed(
                run, number, silo_state.sent(program, folder, number)
            ), f"round {number} of {run}: sent again"
        last = silo_state.last_round(folder)
        if last is not None and last > number:
            raise Refused(f"round {number} of {run} is over: round {last} was served")
        if (folder / MODEL).exists():
            raise Refused(f"run {run} has ended")
        self._require_paid()
        own = silo_state.after_round(program, silo_state.before(program, folder, phase, entry), number - 1, shared)
        account, this = program.pays, range(number, number + 1)
        account.require_charged(self.ledger, run, [range(n, n + 1) for n in silo_state.served(folder)])
        begun = any(line.run == run for line in self.ledger.lines)
        if program.study.level.server_pays and account.released and account.source is not None:
            views.trust(self.ledger, account.source, program.study.roster.name, program.policy.trust_because)
        if not begun:
            silo_evaluation.reserve(program.tests, self.ledger, run)
        account.require(self.ledger, run, [this if begun else range(number, program.rounds)])
        with silo_state.reserve(program, folder, number) as room:
            account.charge(self.ledger, run, this)
            before = program.meter(number, own.uses, own.draws)
            message, personal, meter = program.compute(number, shared, own.personal, before)
            account.require_metered(before.uses, meter.uses, this)
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((message, personal))):
                raise Refused("the result is not finite")
            silo_state.store(folder, number, room, message, silo_state.with_round(own, personal, meter))
        return self._packed(run, number, message), f"round {number} of {run}: served"

    def _evaluate(self, folder: Path, run: str, number: int) -> tuple[bytes, str]:
        """The one answer of a run to the study's evaluation, where the policy has leave for it."""
        tests = self.program.tests
        if tests is None:
            raise Refused("an evaluation was asked for, and the policy has no leave for one (evaluate)")
        if (folder / EVALUATED).exists():
            return self._packed(run, number, silo_evaluation.sent(tests, folder)), f"evaluation of {run}: sent again"
        if not (folder / MODEL).exists():
            raise Refused(f"an evaluation was asked for, and run {run} has not ended")
        self._require_paid()
        table = silo_evaluation.answered(self.program, tests, self.ledger, folder)
        self._state_privacy(folder)
        return self._packed(run, number, table), f"evaluation of {run}: served"

    def _require_paid(self) -> None:
        """Refuses while the ledger lacks rounds, of any run, that are stored here: it was lost, or is another one."""
        paid: dict[str, set[int]] = {}
        evaluated = {line.run for line in self.ledger.lines if line.kind == EVALUATION}
        for line in self.ledger.lines:
            if line.kind != EVALUATION:
                paid.setdefault(line.run, set()).update(range(*line.rounds))
        for folder in (self.folder / "runs").iterdir():
            unpaid = [f"round {n}" for n in self._costs & set(silo_state.served(folder)) - paid.get(folder.name, set())]
            if self._costs and (folder / EVALUATED).exists() and folder.name not in evaluated:
                unpaid.append("the evaluation")
            if unpaid:
                raise Refused(
                    f"ledger {self.ledger.path} does not hold {min(unpaid)} of run {folder.name}, which was "
                    "served and is stored here: restore the ledger from a copy"
                )

    def _packed(self, run: str, number: int, message: Tree) -> bytes:
        return pack(self._header(run, number), message)

    def _header(self, run: str, number: int) -> dict[str, Any]:
        return {"version": VERSION, "study": self.program.study.digest, "run": run, "round": number}

    def _finish(self, folder: Path, number: int, phase: int, shared: Tree) -> None:
        """Keeps the last shared state and the silo's model. Nothing is released, so nothing is paid."""
        program, last = self.program, silo_state.last_round(folder)
        if self._sums is not None:
            self._sums.erase()
        if (folder / MODEL).exists():  # a server that was not sure says it again; what it says now changes nothing
            return
        if last is None:
            raise Refused("the run ended without this silo")
        if program.study.phase(last) != phase:
            raise Refused("the run ended in a phase that this silo has not seen")
        own = silo_state.after_round(program, silo_state.before(program, folder, phase, ()), number, shared)
        model = own.tail if own.seen else program.model(phase, shared, own.personal)
        model = program.personalised(phase, shared, model)
        protected = "personal" in program.study.level.clean
        run_directory.write_tree(folder / MODEL, {"model": model, "shared": shared}, round=number, protected=protected)
        self._state_privacy(folder)

    def _state_privacy(self, folder: Path) -> None:
        """The silo's own statement, from its own ledger; with a trusted aggregator the account is that one's."""
        program, account = self.program, self.program.pays
        if not account.level.private:
            return
        checked = [*program.fingerprints, *silo_evaluation.programs(folder)]
        result = account.statement(self.ledger, folder.name, program=checked)
        add_relations(result, program.study.experiment.phases)
        run_directory.write_text(folder / "statement.txt", text(result))
        run_directory.write_json(folder / "statement.json", result)
