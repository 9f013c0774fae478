"""Files that are there whole or not at all, and survive a loss of power."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Makes new names in a directory survive a loss of power, where a system lets directories be synced.

    `path`: the directory.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no directories
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, readable by its owner alone, and returns when it is on disk.

    `path`: the file. `content`: all of it.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)
