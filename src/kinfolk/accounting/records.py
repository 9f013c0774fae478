"""A ledger's records as text: one JSON object per line, each with the hash of the line before it.

Whoever reads a ledger reads it here, so a number that is none, a record that was moved and a file of other bytes are
refused everywhere alike.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from kinfolk.privacy.mechanisms import RELATIONS
from kinfolk.privacy.release import Cost, PrivacyError

VERSION = 1
SIMULATED, RELEASED = "simulated", "operating system"
"""Sources of noise: reproducible, or not."""
MECHANISMS = ("gaussian", "discrete_gaussian", "laplace", "choice")
MOST = 2**53
"""Above this a whole number may have become another on its way through JSON."""


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
    members: str = ""
    """A digest of who was in it (`members.py`); empty: known by name only."""


@dataclass(frozen=True)
class Note:
    """What is no charge: a promise, a declaration, the opening of the ledger."""

    note: str
    """Its kind."""
    about: dict[str, Any] = field(default_factory=dict)
    """Plain values."""
    time: str = ""
    """When the process opened the ledger."""
    previous: str = ""
    """Hash of the line before."""
    version: int = VERSION
    """The version of this format."""


Record = Line | Note


@dataclass(frozen=True)
class Content:
    """A whole ledger."""

    lines: tuple[Line, ...]
    notes: tuple[Note, ...]
    hashes: tuple[str, ...]
    """Of every record."""
    size: int
    """Bytes of what is whole."""
    torn: bytes
    """What follows, if its end is missing."""
    ended: bool
    """Whether the last record has its newline."""

    @property
    def head(self) -> str:
        """Hash of the last record."""
        return self.hashes[-1] if self.hashes else ""


def to_text(records: Sequence[Record], head: str, time: str) -> tuple[list[Record], list[str], bytes]:
    """Records chained to `head`, the hash of each, and their text."""
    chained, hashes, text = [], [], b""
    for record in records:
        chained.append(replace(record, time=time, previous=head))
        raw = json.dumps(asdict(chained[-1]), sort_keys=True, allow_nan=False).encode()
        head = hashlib.sha256(raw).hexdigest()
        hashes.append(head)
        text += raw + b"\n"
    return chained, hashes, text


def read(text: bytes, path: Path, head: str = "", first: int = 1) -> Content:
    """All records of a ledger's text, each checked; or of its rest, after the record with the hash `head`.

    `path`: for errors. `first`: the number of the first line, likewise.
    """
    whole = text.rfind(b"\n") + 1
    raws, rest = text[:whole].splitlines(), text[whole:]
    records, hashes = [], []
    for record, digest in _chained(raws, head, path, first):
        records.append(record)
        hashes.append(digest)
    kept = bool(rest)
    if rest:
        try:
            ((record, digest),) = _chained([rest], hashes[-1] if hashes else head, path, first + len(raws))
            records.append(record)
            hashes.append(digest)
        except LedgerError:
            kept = False
    return Content(
        tuple(record for record in records if isinstance(record, Line)),
        tuple(record for record in records if isinstance(record, Note)),
        tuple(hashes),
        len(text) if kept else whole,
        b"" if kept else rest,
        ended=not kept,
    )


def _chained(raws: Sequence[bytes], head: str, path: Path, first: int) -> Iterator[tuple[Record, str]]:
    for number, raw in enumerate(raws, first):
        record = parse(raw, f"{path}:{number}")
        if record.previous != head:
            raise LedgerError(f"{path}:{number} does not follow the line before it: the ledger was changed")
        head = hashlib.sha256(raw).hexdigest()
        yield record, head


def parse(raw: bytes, where: str) -> Record:
    """One record, with every number checked.

    `raw`: the line as it stands in the file. `where`: file and line number, for the error.
    """

    def refuse(text: str) -> NoReturn:
        raise ValueError(f"{text} is no number")

    try:
        fields = json.loads(raw, parse_constant=refuse)
        if fields["version"] != VERSION:
            raise LedgerError(f"{where} has version {fields['version']}; this kinfolk reads {VERSION}: update it")
        if "note" in fields:
            return _checked_note(Note(**fields))
        line = Line(**{**fields, "cost": Cost(**fields["cost"]), "rounds": tuple(fields["rounds"])})
        _check(line)
        return line
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LedgerError(f"{where} is not a ledger line ({error}): restore the file from a copy") from error


def _checked_note(note: Note) -> Note:
    if not isinstance(note.note, str) or not isinstance(note.about, dict):
        raise ValueError("a note needs its kind and what it is about")
    return note


def _check(line: Line) -> None:
    """Refuses numbers that no run of ours can have written."""
    cost = line.cost
    for name in ("party", "data", "unit", "kind", "run", "noise", "time", "previous", "members"):
        if not isinstance(getattr(line, name), str):
            raise TypeError(f"{name} is no text")
    if cost.mechanism not in MECHANISMS or cost.relation not in RELATIONS:
        raise ValueError(f"mechanism={cost.mechanism!r}, relation={cost.relation!r}: unknown")
    _inside("noise_multiplier", cost.noise_multiplier, cost.noise_multiplier > 0)
    _inside("rate", cost.rate, 0 < cost.rate <= 1)
    _inside("delta", cost.delta, 0 <= cost.delta < 1)
    whole = {
        "uses": (line.uses, 1),
        "covers": (cost.covers, 1),
        "group": (cost.group, 0),
        "parts": (cost.parts, 0),
        "units": (cost.group + cost.parts, 1),
    }
    whole |= {f"rounds[{place}]": (number, 0) for place, number in enumerate(line.rounds)}
    for name, (value, least) in whole.items():
        if type(value) is not int or not least <= value < MOST:
            raise ValueError(f"{name}={value!r} must be a whole number from {least} on")
    if len(line.rounds) != 2 or line.rounds[0] > line.rounds[1]:
        raise ValueError(f"rounds={line.rounds}")


def _inside(name: str, value: object, inside: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not inside:
        raise ValueError(f"{name}={value!r} is out of range")
