"""Files that are there whole or not at all, and survive a loss of power."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike


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


class Room:
    """Disk space for one file, taken before there is anything to write. Use it as a context manager.

    `path`: the file. `size`: bytes that it will have at most.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._handle, self._temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._handle, 0, max(1, size))
            else:  # macOS
                os.write(self._handle, bytes(max(1, size)))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)

    def write(self, content: bytes) -> None:
        """Writes the file whole or not at all, and returns when it is on disk.

        `content`: all of it.
        """
        begin = 0
        while begin < len(content):
            begin += os.pwrite(self._handle, memoryview(content)[begin:], begin)
        os.ftruncate(self._handle, len(content))
        os.fsync(self._handle)
        os.replace(self._temporary, self.path)
        sync_directory(self.path.parent)


def write_whole(path: Path, content: bytes, *, for_all: bool = False) -> None:
    """Writes a file whole or not at all, readable by its owner alone, and returns when it is on disk.

    `path`: the file. `content`: all of it. `for_all`: everybody on this machine may read it.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        if for_all:
            os.chmod(temporary, 0o644)
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


def npz(arrays: Mapping[str, ArrayLike], *, compressed: bool = True) -> bytes:
    """Arrays as the content of an npz file.

    `arrays`: by name. `compressed`: smaller, and slower to write.
    """
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
