"""The ledger: an append-only record of every release, and the only source of every reported epsilon.

A record is on disk before anything it pays for is published. Records are chained by hashes, so that a change is noticed
unless it is to the very end; a run that goes on checks that its own lines are all there, and an owner's ledger has its
length written down elsewhere (`owner.py`). What a crash tore paid for nothing that was published: it is set aside, in a
file beside the ledger. One process writes at a time: to the end, or in turns.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from kinfolk.accounting import composition, locks
from kinfolk.accounting.member_store import MemberStore
from kinfolk.accounting.records import RELEASED, SIMULATED, Content, LedgerError, Line, Note, Record, read, to_text
from kinfolk.files import sync_directory
from kinfolk.privacy.mechanisms import Cost

__all__ = ["RELEASED", "SIMULATED", "Allowance", "Ledger", "LedgerError", "Line", "Note"]


@dataclass(frozen=True)
class Allowance:
    """What one party may spend: the budget, and the charges a run has planned against it."""

    epsilon: float
    """The most it may reach."""
    delta: float
    """The delta at which that is computed."""


class Ledger:
    """A ledger file, opened for one process. Use it as a context manager.

    `path`: the file; made if it is not there. `wait`: for how many seconds another process may still have it, such as
    one that was just stopped. `hold`: keep others out until it is closed; else only while it is checked and written
    (`turn`).
    """

    lines: list[Line]
    """All charges."""
    notes: list[Note]
    """What else its owner said or promised."""
    head: str
    """Hash of the last record."""
    on_append: Callable[[Ledger], None] | None = None
    """Called when records are on disk."""
    store: MemberStore | None = None
    """Who was in its releases, where it is an owner's (`owner.py`); else parties are known by name."""

    def __init__(self, path: Path, wait: float = 0.0, *, hold: bool = True) -> None:
        self.path, self._wait = path, wait
        self._mine = False
        self._forget()
        self._opened = datetime.now(UTC).isoformat(timespec="seconds")  # of the process: a round's time says too much
        self._torn = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - open as long as the ledger is
            if is_new:
                sync_directory(path.parent)
        except OSError as error:
            raise LedgerError(f"ledger {path} cannot be opened for writing: {error.strerror}") from error
        try:
            if hold:
                self._take()
                self._read()
            else:
                with self.turn():
                    pass
        except BaseException:
            self._file.close()
            raise

    def _take(self) -> None:
        try:
            locks.lock(self._file, self.path, self._wait)
        except BlockingIOError:
            raise LedgerError(
                f"ledger {self.path} is in use by another process: wait for it, or give another one"
            ) from None
        self._mine = True

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Nobody else writes meanwhile, and what others wrote before has been read."""
        if self._mine:
            yield
            return
        self._take()
        try:
            self._read()
            yield
        finally:
            self._mine = False
            locks.unlock(self._file)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._mine and not self._file.closed:
            locks.unlock(self._file)
            self._mine = False
        self._file.close()

    def __len__(self) -> int:
        return len(self.lines) + len(self.notes)

    def _read(self) -> None:
        """What was written since it was read last, by whomever."""
        size = self._file.seek(0, os.SEEK_END)
        if size < self._size or not self._is_there():
            raise LedgerError(
                f"ledger {self.path} was cut or replaced while it was open: put it back as it was, and begin again"
            )
        if not self._ends:
            self._forget()
        if size == self._size:
            return
        self._file.seek(self._size)
        content = read(self._file.read(), self.path, self.head, len(self._hashes) + 1)
        if content.torn:
            self._set_aside(content.torn, self._size + content.size)
        self.lines += content.lines
        self.notes += content.notes
        self._hashes += content.hashes
        self.head = content.head or self.head
        self._size, self._ends, self._torn = self._size + content.size, content.ended, False

    def _is_there(self) -> bool:
        """Whether the open file is still the one of this name."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def _forget(self) -> None:
        self.lines, self.notes, self._hashes, self.head = [], [], [], ""
        self._size, self._ends = 0, True

    def _set_aside(self, torn: bytes, size: int) -> None:
        """A record that was never whole paid for nothing: it is kept in a file beside, and the ledger goes on."""
        aside = self.path.with_name(f"{self.path.name}.torn")
        try:
            with aside.open("ab") as file:
                file.write(torn + b"\n")
            os.ftruncate(self._file.fileno(), size)
        except OSError as error:
            raise LedgerError(
                f"ledger {self.path} ends in a record that was never whole, and it cannot be set aside: "
                f"{error.strerror}. Make room, then try again"
            ) from error
        logging.getLogger("kinfolk").warning(
            "ledger %s ended in a record that was never whole (a crash, a full disk): it paid for nothing that was "
            "published and was set aside in %s",
            self.path,
            aside.name,
        )

    def had(self, count: int, head: str) -> bool:
        """Whether it begins with `count` records of which the last has the hash `head`."""
        return count <= len(self._hashes) and (not count or self._hashes[count - 1] == head)

    def charge(self, lines: Iterable[Line]) -> None:
        """Appends lines, all or none, and returns when they are on disk.

        `lines`: what is paid; those without uses are left out.
        """
        lines = [line for line in lines if line.uses]
        for line in lines:
            _refuse_mixed_noise(self.lines, line)
        self._append(lines)

    def note(self, what: str, about: Mapping[str, object]) -> None:
        """Appends a note, and returns when it is on disk.

        `what`: its kind. `about`: plain values.
        """
        self._append([Note(what, dict(about))])

    def _append(self, records: Sequence[Record]) -> None:
        with self.turn():
            self._write(records)

    def _write(self, records: Sequence[Record]) -> None:
        if self._torn:
            self._read()
        chained, hashes, text = to_text(records, self.head, self._opened)
        if not self._ends:
            text = b"\n" + text
        try:
            self._file.seek(0, os.SEEK_END)
            before = self._file.tell()
            try:
                left = memoryview(text)
                while left:
                    left = left[self._file.write(left) :]
                os.fsync(self._file.fileno())
            except OSError:
                self._undo(before)
                raise
        except OSError as error:
            raise LedgerError(
                f"ledger {self.path} could not be written: {error.strerror}. Nothing was published: make room, resume"
            ) from error
        self.lines += [record for record in chained if isinstance(record, Line)]
        self.notes += [record for record in chained if isinstance(record, Note)]
        self._size = self._file.seek(0, os.SEEK_END)
        if hashes:
            self._hashes += hashes
            self.head, self._ends = hashes[-1], True
        if self.on_append is not None:
            self.on_append(self)

    def _undo(self, size: int) -> None:
        """Takes a half-written charge back; where the disk does not allow it now, whoever writes next sets it aside."""
        try:
            os.ftruncate(self._file.fileno(), size)
        except OSError:
            self._torn = True

    def about(self, data: str, unit: str, relation: str) -> list[Line]:
        """The lines on a data set that protect the same unit under the same neighbour relation: these compose.

        `data`: the data set's name. `unit`: what is protected, in words (`levels.UNITS`). `relation`: which data sets
        are neighbours, `zero_out` or `replace_one`.
        """
        return [x for x in self.lines if (x.data, x.unit, x.cost.relation) == (data, unit, relation)]

    def epsilon(
        self,
        party: str,
        data: str,
        unit: str,
        delta: float,
        planned: Iterable[tuple[str, Cost, int]] = (),
        relation: str = "zero_out",
    ) -> float:
        """What a party has spent, and would have spent after `planned` charges.

        `party`: whose account. `data`: the data set's name. `unit`: what is protected, in words (`levels.UNITS`).
        `delta`: at which epsilon is computed. `relation`: which data sets are neighbours, `zero_out` or `replace_one`.
        """
        spent = [(x.run, x.cost, x.uses) for x in self.about(data, unit, relation) if x.party == party]
        charges = [*spent, *planned]
        several_runs = len({run for run, _, _ in charges}) > 1
        return composition.epsilon(composition.by_run(charges), delta, adaptive=several_runs)

    def require(
        self, data: str, unit: str, planned: Mapping[str, list[tuple[str, Cost, int]]], budgets: Mapping[str, Allowance]
    ) -> None:
        """Refuses planned charges that would take a party beyond its budget, before anything is spent.

        `data`: the data set's name. `unit`: what is protected, in words (`levels.UNITS`). `planned`: for each party,
        charges as (run, cost, uses). `budgets`: what each party may spend; one that is not there has no limit.
        """
        for party, charges in planned.items():
            allowed = budgets.get(party)
            if allowed is None:
                continue
            relation = charges[0][1].relation if charges else "zero_out"
            total = self.epsilon(party, data, unit, allowed.delta, charges, relation)
            if total > allowed.epsilon * (1 + 1e-9):
                spent = self.epsilon(party, data, unit, allowed.delta, (), relation)
                raise LedgerError(
                    f"{party} has spent epsilon={spent:.4g} on data set {data!r} and would reach {total:.4g}, beyond "
                    f"its budget of {allowed.epsilon:.4g} at delta={allowed.delta:g}: plan fewer rounds or more noise, "
                    "or raise the budget if its owner agrees"
                )

    def uses(self, run: str) -> dict[tuple[str, str], int]:
        """Uses charged so far in a run, by party and kind.

        `run`: the run's name.
        """
        total: dict[tuple[str, str], int] = defaultdict(int)
        for line in self.lines:
            if line.run == run:
                total[line.party, line.kind] += line.uses
        return dict(total)


def extract(lines: Iterable[Line], *runs: str) -> bytes:
    """A run's own lines as a ledger for everybody: chained anew, and without what says whose rows they were.

    `lines`: of the ledger. `runs`: the run's name, and those of its evaluations.
    """
    own = [replace(line, members="") for line in lines if line.run in runs]
    return to_text(own, "", own[0].time if own else "")[2]


def read_lines(path: Path) -> list[Line]:
    """The lines of a ledger, checked, without opening it for writing.

    `path`: the ledger's file.
    """
    return list(read_ledger(path).lines)


def read_ledger(path: Path) -> Content:
    """All of a ledger, checked, without opening it for writing.

    `path`: the ledger's file.
    """
    try:
        return read(path.read_bytes(), path)
    except OSError as error:
        raise LedgerError(f"ledger {path} cannot be read: {error.strerror}") from error


def _refuse_mixed_noise(lines: list[Line], new: Line) -> None:
    if lines and lines[-1].noise != new.noise:
        raise LedgerError(
            f"the ledger holds charges with {lines[-1].noise} noise and cannot take one with {new.noise} noise: "
            "simulations keep their own ledger"
        )
