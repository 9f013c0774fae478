"""The ledger: an append-only record of every release, and the only source of every reported epsilon.

A line is on disk before anything it pays for is published. Lines are chained by hashes, so that a change is noticed
unless it is to the very end; a run that goes on checks that its own lines are all there. A line torn by a crash paid
for nothing that was published and is dropped. One process at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from kinfolk.accounting import composition
from kinfolk.privacy.mechanisms import Cost
from kinfolk.privacy.release import PrivacyError

VERSION = 1
SIMULATED, RELEASED = "simulated", "operating system"
"""Sources of noise: reproducible, or not."""


class LedgerError(PrivacyError):
    """A ledger that cannot be written, or was tampered with, or a charge it refuses."""


@dataclass(frozen=True)
class Line:
    """One charge: a party paid `cost` `uses` times, in these rounds of a run."""

    party: str
    """Who pays: a client's id, or the aggregator."""
    data: str
    """The data set's name, given by its owner."""
    unit: str
    """What is protected, in words (`levels.UNITS`)."""
    kind: str
    """The kind of release, such as `gradient`."""
    cost: Cost
    uses: int
    run: str
    """The run's name."""
    rounds: tuple[int, int]
    """First and last round that this pays for."""
    noise: str
    """Where the noise comes from: SIMULATED or RELEASED."""
    time: str = ""
    """When the process opened the ledger."""
    previous: str = ""
    """Hash of the line before."""
    version: int = VERSION
    """The version of this format."""


@dataclass(frozen=True)
class Allowance:
    """What one party may spend: the budget, and the charges a run has planned against it."""

    epsilon: float
    """The most it may reach."""
    delta: float
    """The delta at which that is computed."""


class Ledger:
    """A ledger file, opened for one process. Use it as a context manager.

    `path`: the file; made if it is not there. `wait`: for how many seconds another process may still have it open, such
    as one that was just stopped.
    """

    def __init__(self, path: Path, wait: float = 0.0) -> None:
        self.path = path
        self._opened = datetime.now(UTC).isoformat(timespec="seconds")  # of the process: a round's time says too much
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - open as long as the ledger is
            if is_new:
                sync_directory(path.parent)
        except OSError as error:
            raise LedgerError(f"ledger {path} cannot be opened for writing: {error.strerror}") from error
        try:
            self._lock(wait)
            self.lines, self._last = self._read()
        except BlockingIOError:
            self._file.close()
            raise LedgerError(f"ledger {path} is in use by another process: wait for it, or give another one") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def _lock(self, wait: float) -> None:
        until = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.1)

    def _read(self) -> tuple[list[Line], str]:
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            self._file.truncate(len(whole))
        lines, last = [], ""
        for number, raw in enumerate(whole.splitlines(), 1):
            line = parse(raw, f"{self.path}:{number}")
            if line.previous != last:
                raise LedgerError(f"{self.path}:{number} does not follow the line before it: the ledger was changed")
            lines.append(line)
            last = hashlib.sha256(raw).hexdigest()
        return lines, last

    def charge(self, lines: Iterable[Line]) -> None:
        """Appends lines, all or none, and returns when they are on disk.

        `lines`: what is paid; those without uses are left out.
        """
        chained, last, text = [], self._last, b""
        for line in lines:
            if not line.uses:
                continue
            _refuse_mixed_noise(self.lines, line)
            chained.append(replace(line, time=self._opened, previous=last))
            raw = json.dumps(asdict(chained[-1]), sort_keys=True).encode()
            text += raw + b"\n"
            last = hashlib.sha256(raw).hexdigest()
        self._file.seek(0, os.SEEK_END)
        before = self._file.tell()
        try:
            left = memoryview(text)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._undo(before)
            raise LedgerError(
                f"ledger {self.path} could not be written: {error.strerror}. Nothing was published: make room, resume"
            ) from error
        self.lines += chained
        self._last = last

    def _undo(self, size: int) -> None:
        """Takes a half-written charge back, as far as the disk allows; a torn rest is dropped at the next opening."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file.fileno(), size)
        with contextlib.suppress(OSError):
            self._file.close()

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


def sync_directory(path: Path) -> None:
    """Makes new names in a directory survive a loss of power.

    `path`: the directory.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def parse(raw: bytes, where: str) -> Line:
    """A line of a ledger file.

    `raw`: the line as it stands in the file. `where`: file and line number, for the error.
    """
    try:
        fields = json.loads(raw)
        if fields["version"] != VERSION:
            raise LedgerError(f"{where} has version {fields['version']}; this kinfolk reads {VERSION}: update it")
        return Line(**{**fields, "cost": Cost(**fields["cost"]), "rounds": tuple(fields["rounds"])})
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{where} is not a ledger line ({error}): restore the file from a copy") from error


def read_lines(path: Path) -> list[Line]:
    """The lines of a ledger, without opening it for writing.

    `path`: the ledger's file.
    """
    whole = path.read_bytes()
    return [parse(raw, f"{path}:{n}") for n, raw in enumerate(whole[: whole.rfind(b"\n") + 1].splitlines(), 1)]


def _refuse_mixed_noise(lines: list[Line], new: Line) -> None:
    if lines and lines[-1].noise != new.noise:
        raise LedgerError(
            f"the ledger holds charges with {lines[-1].noise} noise and cannot take one with {new.noise} noise: "
            "simulations keep their own ledger"
        )
