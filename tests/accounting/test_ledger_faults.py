"""A ledger under faults: whatever fails while it is written, nothing that was said to be charged is lost."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinfolk.accounting import locks, owner
from kinfolk.accounting.ledger import Ledger, LedgerError, read_ledger, read_lines
from kinfolk.accounting.owner import open_new, open_owned
from kinfolk.accounting.records import RELEASED, Line
from kinfolk.privacy.release import Cost

FAULTS = [1000, pytest.param(10_000, marks=pytest.mark.slow)]


def line(uses: int = 1, run: str = "r", **changes: Any) -> Line:
    cost = Cost("gaussian", changes.pop("noise_multiplier", 2.0))
    return Line("a", "d", "example", "gradient", cost, uses, run, (0, 1), RELEASED, **changes)


def raw(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Ledger(tmp_path / "l.jsonl") as ledger:
        ledger.charge([line(1), line(2), line(3)])
    return tmp_path / "l.jsonl"


def test_a_whole_last_line_without_its_newline_is_kept(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    assert [x.uses for x in read_lines(path)] == [1, 2, 3]
    with Ledger(path) as ledger:
        assert [x.uses for x in ledger.lines] == [1, 2, 3]
        ledger.charge([line(4)])
    assert [x.uses for x in read_lines(path)] == [1, 2, 3, 4]


def test_a_torn_line_is_set_aside_and_said(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with caplog.at_level(logging.WARNING), Ledger(path) as ledger:
        assert [x.uses for x in ledger.lines] == [1, 2]
        ledger.charge([line(4)])
    assert "never whole" in caplog.text
    assert path.with_name("l.jsonl.torn").read_bytes().strip() == raw_of(whole)[-1][:-20].strip()
    assert [x.uses for x in read_lines(path)] == [1, 2, 4]


def raw_of(text: bytes) -> list[bytes]:
    return text.splitlines(keepends=True)


def changed(number: int, **fields: Any) -> Any:
    def change(lines: list[bytes]) -> list[bytes]:
        about = json.loads(lines[number])
        for name, value in fields.items():
            (about if name in about else about["cost"])[name] = value
        return [*lines[:number], json.dumps(about, sort_keys=True).encode() + b"\n", *lines[number + 1 :]]

    return change


CHANGES = {
    "not a number": changed(2, noise_multiplier=float("nan")),
    "infinite": changed(2, noise_multiplier=float("inf")),
    "negative": changed(2, uses=-1),
    "rate above 1": changed(2, rate=1.5),
    "no uses": changed(2, uses=0),
    "a truth value": changed(2, uses=True),
    "a fraction": changed(2, uses=1.5),
    "text": changed(2, noise_multiplier="2"),
    "another mechanism": changed(2, mechanism="magic"),
    "bytes": lambda lines: [*lines, os.urandom(200).replace(b"\n", b"") + b"\n"],
    "swapped": lambda lines: [lines[0], lines[2], lines[1]],
    "removed": lambda lines: [lines[0], lines[2]],
    "renamed": lambda lines: [lines[0], lines[1].replace(b'"party": "a"', b'"party": "b"'), lines[2]],
    "deep": lambda lines: [*lines, b"[" * 100_000 + b"\n"],
}


@pytest.mark.parametrize("name", CHANGES)
def test_everybody_who_reads_it_refuses_what_was_changed(path: Path, name: str, kinfolk: Any) -> None:
    path.write_bytes(b"".join(CHANGES[name](raw(path))))
    for reading in (read_lines, read_ledger, Ledger):
        with pytest.raises(LedgerError, match=r"l\.jsonl:\d"):
            reading(path)
    for words in (("show", path), ("verify", path), ("export", path, "--output", path.with_suffix(".csv"))):
        code, out, _ = kinfolk("ledger", *words, "--json")
        assert code == 1
        assert "l.jsonl:" in json.loads(out)["error"]["message"]


@pytest.fixture
def kinfolk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    from kinfolk.cli.main import main

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kinfolk", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


class Disk:
    """Faults at writing, syncing, cutting and renaming, as `chance` has it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.on, self.count = chance, False, 0
        self.real = {name: getattr(os, name) for name in ("fsync", "ftruncate", "replace")}

    def fails(self, share: float) -> bool:
        wrong = self.on and self.chance.random() < share
        self.count += wrong
        return wrong

    def call(self, name: str) -> Any:
        def wrapped(*args: Any) -> Any:
            if self.fails(0.15 if name == "fsync" else 0.3):
                raise OSError(errno.ENOSPC, "No space left on device")
            return None if name == "fsync" else self.real[name](*args)  # what a disk really does is not tested here

        return wrapped


class Torn:
    """A file that may write a part of what it is given, and then fail."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self.file, self.disk = file, disk

    def write(self, content: Any) -> int:
        if self.disk.fails(0.3):
            self.file.write(bytes(content)[: self.disk.chance.randrange(len(content))])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def tearing(ledger: Any, disk: Disk) -> None:
    ledger._file = Torn(ledger._file, disk)


@pytest.mark.parametrize("faults", FAULTS)
def test_faults_of_a_disk_lose_no_charge(faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again the ledger is read again by somebody else: what was acknowledged is there, in order, once."""
    disk = Disk(random.Random(7))
    for name in disk.real:
        monkeypatch.setattr(os, name, disk.call(name))
    path, acknowledged, number, before = tmp_path / "l.jsonl", [], 0, -1
    ledger = open_owned(path)
    tearing(ledger, disk)
    while disk.count < faults:
        number += 1
        disk.on = True
        try:
            ledger.charge([line(number % 97 + 1, run=f"run {number}")])
        except LedgerError:
            pass
        else:
            acknowledged.append(f"run {number}")
        disk.on = False
        if disk.count // 500 != before:
            before = disk.count // 500
            if disk.chance.random() < 0.5:
                ledger.__exit__(None, None, None)
            content = [x.run for x in read_ledger(path).lines]
            assert [run for run in content if run in set(acknowledged)] == acknowledged
            if ledger._file.closed:
                ledger = open_owned(path)
                tearing(ledger, disk)
            if len(content) > 2000:  # begin with a short one again: reading it takes time
                ledger.__exit__(None, None, None)
                open_new(path, "a test")
                ledger = open_owned(path)
                tearing(ledger, disk)
                acknowledged = []
    ledger.__exit__(None, None, None)
    runs = [x.run for x in read_ledger(path).lines]
    assert [run for run in runs if run in set(acknowledged)] == acknowledged


KILLING = """
import os, random, signal, sys, time
from pathlib import Path
from tests.accounting.test_ledger_faults import line
from kinfolk.accounting.owner import open_owned

path, pairs, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(3)

def charge(number):
    while True:
        with open_owned(path) as ledger:
            for _ in range(5):
                number += 1
                ledger.charge([line(run=f"run {number}")])
                os.write(1, f"{number}\\n".encode())

for turn in range(pairs):
    children = []
    for place in (1, 2):
        child = os.fork()
        if not child:
            charge(1_000_000 * (2 * turn + place))
        children.append(child)
    time.sleep(0.02 + chance.random() * 0.2)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""
KILLS = 200


@pytest.mark.slow
def test_killed_processes_lose_no_charge(tmp_path: Path) -> None:
    """Two at once, each killed at some moment; what they said was charged is there, and hardly anything else."""
    path = tmp_path / "l.jsonl"
    command = [sys.executable, "-c", KILLING, str(path), str(KILLS // 2)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), check=True).stdout.split()
    assert len(said) > KILLS / 2, "most were killed before they had done anything"
    with open_owned(path) as ledger:
        found = {x.run for x in ledger.lines}
        assert {f"run {number}" for number in said} <= found
        assert len(found) <= len(said) + KILLS


def test_a_lost_or_cut_ledger_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    with open_owned(path) as ledger:
        ledger.charge([line(1)])
        ledger.charge([line(2)])
    whole = path.read_bytes()
    path.write_bytes(b"".join(raw(path)[:-1]))
    with pytest.raises(LedgerError, match=r"had 3 records .* cut"):
        open_owned(path)
    path.unlink()
    with pytest.raises(LedgerError, match=r"is gone.*3 records.*--because"):
        open_owned(path)
    path.write_bytes(whole)
    with open_owned(path) as ledger:
        assert len(ledger) == 3
    aside = open_new(path, "the computer was stolen")
    assert aside is not None
    with open_owned(path) as ledger:
        assert owner.reasons(ledger) == ("the computer was stolen",)
        assert not ledger.lines


def test_a_ledger_without_its_key_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_owned(tmp_path / "l.jsonl") as ledger:
        ledger.charge([line(1)])
    monkeypatch.setenv("KINFOLK_KEYS", str(tmp_path / "elsewhere"))
    with pytest.raises(LedgerError, match="KINFOLK_KEYS"):
        open_owned(tmp_path / "l.jsonl")


def test_keys_lie_elsewhere_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    with open_owned(tmp_path / "mine" / "l.jsonl") as ledger:
        ledger.charge([line(1)])
    (key,) = owner.key_folder().iterdir()
    assert key.stat().st_mode & 0o077 == 0
    secret = json.loads(key.read_text())["key"]
    assert not any(secret in file.read_text() for file in (tmp_path / "mine").rglob("*") if file.is_file())


def test_old_ledgers_are_taken_over_once(tmp_path: Path) -> None:
    folder = owner.ledger_folder()
    with Ledger(folder / "patients.jsonl") as old:
        old.charge([line(5)])
    for _ in range(2):
        with open_owned(owner.default_ledger()) as ledger:
            assert [(x.uses, x.members) for x in ledger.lines] == [(5, "")]
    assert len(list(folder.glob("patients.jsonl.*.imported"))) == 1
    with Ledger(folder / "visits-until-2020.jsonl") as old:
        old.charge([line(6)])
    with open_owned(folder / "others.jsonl") as another:
        another.charge([line(7)])
    with open_owned(owner.default_ledger()) as ledger:
        assert [x.uses for x in ledger.lines] == [5, 6], "another owner's ledger in the same folder stays theirs"


def test_a_ledger_that_is_cut_or_replaced_while_it_is_open_takes_no_charge(path: Path) -> None:
    with Ledger(path, hold=False) as ledger:
        whole = path.read_bytes()
        path.write_bytes(b"".join(raw(path)[:1]))
        with pytest.raises(LedgerError, match="cut or replaced"):
            ledger.charge([line(4)])
        path.unlink()
        path.write_bytes(whole)
        with pytest.raises(LedgerError, match="cut or replaced"):
            ledger.charge([line(4)])


def test_a_key_without_its_ledger_stops_a_new_account_elsewhere(tmp_path: Path) -> None:
    with open_owned(tmp_path / "l.jsonl") as ledger:
        ledger.charge([line(1)])
    (tmp_path / "l.jsonl").unlink()
    with pytest.raises(LedgerError, match=r"is gone, and its key is here.*--because"):
        open_owned(tmp_path / "other.jsonl")
    open_new(tmp_path / "other.jsonl", "lost in the move")
    with open_owned(tmp_path / "other.jsonl") as ledger:
        assert owner.reasons(ledger) == ("lost in the move",)


def test_a_system_without_fcntl_locks_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[int] = set()

    class Windows:
        LK_NBLCK, LK_UNLCK = 2, 0

        @staticmethod
        def locking(handle: int, how: int, count: int) -> None:
            inode = os.fstat(handle).st_ino
            if how == 0:
                taken.discard(inode)
            elif inode in taken:
                raise OSError("in use")
            else:
                taken.add(inode)

    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "msvcrt", Windows)
    with Ledger(path, hold=False) as ledger:
        ledger.charge([line(4)])
        with Ledger(path) as other:
            other.charge([line(5)])
            with pytest.raises(LedgerError, match="in use"):
                ledger.charge([line(6)])
    assert [x.uses for x in read_lines(path)] == [1, 2, 3, 4, 5]


def test_writing_goes_on_when_there_is_room_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(path) as ledger:
        full = pytest.MonkeyPatch()
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(LedgerError, match="Nothing was published"):
            ledger.charge([line(4)])
        full.undo()
        ledger.charge([line(5)])
    assert [x.uses for x in read_lines(path)] == [1, 2, 3, 5]
