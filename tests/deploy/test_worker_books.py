"""A silo whose disk is full or whose ledger was lost: nothing is paid that cannot be kept, nothing served unpaid."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kinfolk.accounting.ledger import LedgerError
from kinfolk.accounting.views import aggregators
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.silo_program import Program, prepare_silo
from kinfolk.deploy.worker import Worker
from tests.deploy.asking import STUDY, charges, request
from tests.deploy.federations import federation_of, log_of, policy_of, rows_of, study_of, worker_of


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """As a quota does it: the system refuses what goes beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 512 kB; only root may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here: only root can")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Leaves no byte of a disk free."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"0" * 4096):
            pass
    assert shutil.disk_usage(disk).free == 0
    return filler


def test_a_quota_is_a_refusal_that_costs_nothing_and_passes(silo: Worker) -> None:
    with no_file_longer_than(4096):
        assert silo.answer(request()) == REFUSAL
        assert charges(silo) == 0
        assert "File too large" in log_of(silo)
    assert silo.answer(request()) != REFUSAL  # no restart
    assert charges(silo) == silo.program.steps
    assert [path.name for path in silo.folder.glob("runs/*/*")] == ["000000.npz"]
    assert [path.name for path in silo.folder.glob("runs/*/.*")] == []


@pytest.mark.fast
def test_a_full_disk_is_a_refusal_that_costs_nothing_and_passes(program: Program, small_disk: Path) -> None:
    with Worker(program, small_disk / "c") as silo:
        first = silo.answer(request())
        assert first != REFUSAL
        filler, paid = fill(small_disk), charges(silo)
        for _ in range(3):
            assert silo.answer(request(number=1)) == REFUSAL
        assert silo.answer(request()) in (first, REFUSAL)  # a line of the log may have found no room
        assert charges(silo) == paid == program.steps
        filler.unlink()
        second = silo.answer(request(number=1))  # no restart
        assert second not in (first, REFUSAL)
        assert charges(silo) == 2 * paid
        assert silo.answer(request()) == first
        assert [json.loads(line)["what"] for line in log_of(silo).splitlines()]  # no line is torn
        assert sorted(path.name for path in silo.folder.glob("runs/*/*")) == ["000000.npz", "000001.npz"]
        assert [path.name for path in silo.folder.glob("runs/*/.*")] == []
    with Worker(program, small_disk / "c") as silo:  # and what is there is read again
        assert silo.answer(request(number=1)) == second


@pytest.mark.parametrize("left", [4096, 16384, 32768, 49152])
def test_whatever_fits_on_a_nearly_full_disk_nothing_is_paid_and_lost(
    program: Program, small_disk: Path, left: int
) -> None:
    """Room for the ledger's line and not for the round, for the round and not for the log, and so on."""
    with Worker(program, small_disk / "c") as silo:
        filler = fill(small_disk)
        os.truncate(filler, filler.stat().st_size - left)
        answers = [silo.answer(request()) for _ in range(2)]
        stored = len(list(silo.folder.glob("runs/*/[0-9]*.npz")))
        assert charges(silo) == stored * program.steps
        filler.unlink()
        again = silo.answer(request())
        assert again != REFUSAL
        assert set(answers) <= {REFUSAL, again}
        assert charges(silo) == program.steps


def test_a_round_is_written_into_the_space_that_was_reserved(silo: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may be full by then; and what a killed process had reserved is given back."""
    asked: list[int] = []
    real = os.posix_fallocate
    monkeypatch.setattr(
        os, "posix_fallocate", lambda handle, begin, size: (asked.append(size), real(handle, begin, size))
    )
    (silo.folder / "runs" / "run-1").mkdir()
    (silo.folder / "runs" / "run-1" / ".000000.npz.killed").write_bytes(b"0" * 100)
    assert silo.answer(request()) != REFUSAL
    (stored,) = silo.folder.glob("runs/*/*.npz")
    assert stored.stat().st_size <= asked[0]
    assert list(silo.folder.glob("runs/*/.*")) == []


def test_a_lost_ledger_is_noticed_in_another_run_too(tmp_path: Path) -> None:
    """The stored rounds of any run say that something was spent."""
    with worker_of(STUDY, federation_of(), 2, tmp_path, runs=2) as worker:
        assert worker.answer(request()) != REFUSAL
        worker.ledger.lines.clear()
        assert worker.answer(request(run="run-2")) == REFUSAL
        assert "does not hold round 0 of run run-1" in log_of(worker)


def test_a_silo_whose_ledger_lost_a_line_serves_no_more(program: Any, tmp_path: Path) -> None:
    with Worker(program, tmp_path / "c") as worker:
        assert worker.answer(request(number=0)) != REFUSAL
        assert worker.answer(request(number=1)) != REFUSAL
    ledger = tmp_path / "c" / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="cut, or is an old copy"):
        Worker(program, tmp_path / "c")
    for key in (tmp_path / "keys").iterdir():  # as if nothing else knew how long it was
        key.write_text(json.dumps({**json.loads(key.read_text()), "records": 0, "head": ""}))
    (tmp_path / "c" / "ledger.json").unlink()
    with Worker(program, tmp_path / "c") as worker:
        assert worker.answer(request(number=2)) == REFUSAL
        assert "does not hold" in log_of(worker)


def test_a_trusted_aggregator_is_in_the_silos_own_ledger(tmp_path: Path) -> None:
    """At client level it sees messages without noise: noted first, and not for rows that were promised more."""
    trusting = study_of("fedavg", "client", seed=None, epsilon=8.0, noise_multiplier=None, rounds=1, cohort=3)
    rows = rows_of(federation_of(), 2)
    ledger = tmp_path / "ledger.jsonl"
    silent = prepare_silo(trusting, policy_of(trusting, "c"), rows)
    willing = prepare_silo(trusting, policy_of(trusting, "c", trust_because="it is our registry"), rows)
    with Worker(prepare_silo(STUDY, policy_of(STUDY, "c"), rows), tmp_path / "first", ledger) as worker:
        worker.answer(request())
    with Worker(silent, tmp_path / "second", ledger) as worker:
        assert worker.answer(request(trusting)) == REFUSAL
        assert "trust_because" in log_of(worker)
    with Worker(willing, tmp_path / "second", ledger) as worker:
        assert worker.answer(request(trusting)) != REFUSAL, log_of(worker)
        assert aggregators(worker.ledger) == (("tiny", "it is our registry"),)
