"""A lock on an open file, that ends with the process that holds it, on every system."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from kinfolk.privacy.release import PrivacyError

fcntl: Any = None
msvcrt: Any = None
try:
    import fcntl
except ImportError:  # not a Unix
    import msvcrt


def lock(file: IO[bytes], path: Path, wait: float) -> None:
    """Locks it for this process until it is closed; BlockingIOError if another has it for longer than `wait` seconds.

    `path`: of the file, for the error.
    """
    until = time.monotonic() + wait
    while not _tried(file):
        if time.monotonic() >= until:
            raise BlockingIOError(f"{path} is locked")
        time.sleep(0.1)


def unlock(file: IO[bytes]) -> None:
    """Gives it to others."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        _at_far_byte(file, msvcrt.LK_UNLCK)


@contextmanager
def alone(path: Path, what: str) -> Iterator[None]:
    """Keeps others out who ask for the same file: of two processes that would go on with one thing, one is refused.

    `path`: a file that is made for this. `what`: the thing, for the error.
    """
    with path.open("ab") as file:
        try:
            lock(file, path, 0.0)
        except BlockingIOError:
            raise PrivacyError(f"{what} is in use by another process: wait for it to end") from None
        yield


def _tried(file: IO[bytes]) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            _at_far_byte(file, msvcrt.LK_NBLCK)
    except OSError:
        return False
    return True


def _at_far_byte(file: IO[bytes], how: int) -> None:
    """Windows locks bytes, and nobody could read those of the content: one that no ledger reaches is taken."""
    place = file.tell()
    file.seek(2**40)
    try:
        msvcrt.locking(file.fileno(), how, 1)
    finally:
        file.seek(place)
