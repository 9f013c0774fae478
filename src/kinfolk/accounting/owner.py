"""One ledger per owner of data: a person's computer, a silo. Its key, its length and its memberships.

The key is kept in another folder than the ledger (KINFOLK_KEYS), because together they are a dictionary of who was in
which release. Beside the key, and with every run and silo that was charged, stands how long the ledger was when it was
last written, so that one that was cut, lost or restored from an old copy is noticed. Where anything shows that there
was an account before, nothing is released until its owner says so: `kinfolk ledger open --new --because "..."`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kinfolk.accounting import locks
from kinfolk.accounting.ledger import Ledger, LedgerError, read_ledger
from kinfolk.accounting.member_store import MemberStore
from kinfolk.accounting.records import Content
from kinfolk.accounting.witness import Witness, witnesses
from kinfolk.files import write_whole

OPENED, IMPORTED = "opened", "imported"
"""Kinds of notes."""
FILE = "ledger.jsonl"
ASIDE = re.compile(r"ledger-until-\d{8}-\d{6}\.jsonl")
"""What `open_new` calls the ledger of before."""
REMEDY = 'restore it from a copy; or, if it is lost, say so: kinfolk ledger open --new --because "..."'


@dataclass(frozen=True)
class Key:
    """What is kept apart from the ledger."""

    id: str
    ledger: str
    """Where the ledger was."""
    key: str
    """Of all tokens and digests, in hexadecimal."""
    records: int = 0
    """How long the ledger was when it was last written."""
    head: str = ""
    """The hash of its last record then."""
    given_up: bool = False
    """Whether its owner said that it is lost."""


def ledger_folder() -> Path:
    """Where owners' ledgers are, unless told."""
    named = os.environ.get("KINFOLK_LEDGERS")
    return Path(named) if named else Path.home() / ".local" / "share" / "kinfolk" / "ledgers"


def default_ledger() -> Path:
    """The ledger of whoever uses this computer."""
    return ledger_folder() / FILE


def key_folder() -> Path:
    """Where keys are: in another place than ledgers, so that one copy does not hold both."""
    named = os.environ.get("KINFOLK_KEYS")
    return Path(named) if named else Path.home() / ".config" / "kinfolk" / "keys"


def open_owned(path: Path, wait: float = 10.0, *, remembers: Path | None = None, others: Iterable[Path] = ()) -> Ledger:
    """Opens an owner's ledger, the very first time by making it; refuses one that is not as it was left.

    `path`: the ledger's file. `wait`: as for `Ledger`. `remembers`: the folder of the run or silo that is to be
    charged, which keeps the ledger's length from now on. `others`: folders of other runs, which may know better.
    """
    ledger = Ledger(path.resolve(), wait, hold=False)
    try:
        with ledger.turn():
            _require_as_remembered(ledger, [*others, *([remembers] if remembers else [])])
            _make_owned(ledger, list(_keys()), remembers)
    except BaseException:
        ledger.__exit__(None, None, None)
        raise
    return ledger


def _require_as_remembered(ledger: Ledger, folders: Iterable[Path]) -> None:
    """Refuses a ledger that is not the one, or not all of it, that runs or a silo were charged to."""
    opened = _ids(ledger)
    for path, seen in witnesses(folders):
        if seen.id in opened:
            if not ledger.had(seen.records, seen.head):
                raise LedgerError(
                    f"ledger {ledger.path} had {seen.records} records when {path} was written, and these are not all "
                    f"there or not the same: it was cut, or is an old copy; {REMEDY}"
                )
        elif seen.ledger == str(ledger.path) and not reasons(ledger):
            raise LedgerError(f"{path} was charged to another ledger at {ledger.path}: {REMEDY}")
        elif not len(ledger) and not _holds(seen.ledger):
            raise LedgerError(f"{path} was charged to ledger {seen.ledger}, which is gone: {REMEDY}")


def _make_owned(ledger: Ledger, keys: list[Key], remembers: Path | None) -> None:
    """Finds or makes the ledger's key, compares its length, and sees that both are kept from now on."""
    before = max((k.records for k in keys if k.ledger == str(ledger.path) and not k.given_up), default=0)
    if before and not len(ledger):
        raise LedgerError(f"ledger {ledger.path} is gone, and its key says that it had {before} records: {REMEDY}")
    lost = [key for key in keys if key.records and not key.given_up and not _holds(key.ledger)]
    if lost and not len(ledger):
        raise LedgerError(f"ledger {lost[0].ledger} is gone, and its key is here, so there was an account: {REMEDY}")
    store = ledger.path.with_suffix(".members")
    if not len(ledger) and store.is_dir() and any(store.iterdir()):
        raise LedgerError(f"ledger {ledger.path} is gone, and {store} says who was in its releases: {REMEDY}")
    found = _key_of(ledger, keys) or _begin(ledger)
    if not ledger.had(found.records, found.head):
        raise LedgerError(
            f"ledger {ledger.path} had {found.records} records when it was last written, and these are not all there "
            f"or not the same: it was cut, or is an old copy; {REMEDY}"
        )

    def keep(written: Ledger) -> None:
        _write(replace(found, ledger=str(ledger.path), records=len(written), head=written.head))
        if remembers is not None:
            Witness(found.id, str(ledger.path), len(written), written.head).write(remembers)

    ledger.on_append = keep
    _import_old(ledger)
    ledger.store = MemberStore(store, bytes.fromhex(found.key))


def open_new(path: Path, because: str) -> Path | None:
    """Begins an account anew, for a reason that every later statement quotes. Returns where the old ledger went.

    `path`: the ledger's file. `because`: what happened to the old one.
    """
    if not because.strip():
        raise LedgerError("because='': say why the account begins anew; every later statement quotes it")
    path, aside = path.resolve(), None
    for key in list(_keys()):
        if key.ledger == str(path) or not _holds(key.ledger):
            _write(replace(key, given_up=True))
    if path.exists():
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        aside = path.with_name(f"{path.stem}-until-{stamp}{path.suffix}")
        with path.open("ab") as file:
            try:
                locks.lock(file, path, 10.0)
            except BlockingIOError:
                raise LedgerError(f"ledger {path} is in use by another process: wait for it to end") from None
            path.rename(aside)
    with Ledger(path) as ledger:
        _begin(ledger, because=because.strip())
    return aside


def reasons(ledger: Ledger | Content) -> tuple[str, ...]:
    """Why the account was begun anew, each time."""
    return tuple(note.about["because"] for note in ledger.notes if note.note == OPENED and note.about.get("because"))


def _holds(ledger: str) -> bool:
    """Whether a ledger is where it was: an empty file is what a refusal leaves."""
    return Path(ledger).exists() and Path(ledger).stat().st_size > 0


def _ids(ledger: Ledger) -> list[str]:
    """Of the keys that the ledger has had; the last is in use."""
    return [note.about["id"] for note in ledger.notes if note.note == OPENED]


def _key_of(ledger: Ledger, keys: list[Key]) -> Key | None:
    """The key of a ledger; None if it has none yet."""
    opened = _ids(ledger)
    if not opened:
        return None
    for key in keys:
        if key.id == opened[-1]:
            return key
    raise LedgerError(
        f"ledger {ledger.path} has key {opened[-1]}, which is not in {key_folder()}: without it nobody can tell which "
        f"rows were in its releases. Bring the key back (KINFOLK_KEYS names its folder), or {REMEDY.split('; ')[1]}"
    )


def _begin(ledger: Ledger, **because: str) -> Key:
    """A key for a new ledger, or for one from before ledgers had keys, whose lines stay known by name."""
    key = Key(secrets.token_hex(8), str(ledger.path), secrets.token_hex(32))
    _write(key)
    ledger.note(OPENED, {"id": key.id, **because})
    key = replace(key, records=len(ledger), head=ledger.head)
    _write(key)
    return key


def _import_old(ledger: Ledger) -> None:
    """Lines of the ledgers that data sets had of their own, before owners had one; they stay known by name."""
    if ledger.path != default_ledger().absolute():
        return
    for path in sorted(ledger.path.parent.glob("*.jsonl")):
        if path != ledger.path and not ASIDE.fullmatch(path.name) and not read_ledger(path).notes:
            import_lines(ledger, path)  # one with notes is another owner's


def import_lines(ledger: Ledger, path: Path) -> None:
    """Takes the lines of an older ledger over, once; they stay known by name, and its file is kept.

    `ledger`: an owner's. `path`: the older one's file.
    """
    with ledger.turn():
        content = read_ledger(path)
        if content.notes:
            raise LedgerError(f"{path} is an owner's ledger itself: give it with --ledger, or move it elsewhere")
        if content.lines and content.head not in {n.about["head"] for n in ledger.notes if n.note == IMPORTED}:
            ledger.charge(content.lines)
            ledger.note(IMPORTED, {"ledger": path.name, "lines": len(content.lines), "head": content.head})
    path.rename(path.with_name(f"{path.name}.{content.head[:8]}.imported"))


def _keys() -> Iterator[Key]:
    for path in sorted(key_folder().glob("*.json")):
        try:
            yield Key(**json.loads(path.read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise LedgerError(f"key {path} cannot be read ({error}): restore it from a copy") from None


def _write(key: Key) -> None:
    folder = key_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(folder / f"{key.id}.json", (json.dumps(asdict(key), indent=2) + "\n").encode())
    except OSError as error:
        raise LedgerError(f"key folder {folder} cannot be written: {error.strerror}. Nothing was published") from error
