"""Compiled programs, kept in the user's cache folder, so that a command compiles once and not at every start.

A program is its method, its settings and the shapes of its arrays: rows, noise and keys are what it is given when it
runs, and none of them is a constant in it (a test trains on other rows of the same shapes, and every program is found
again). Shapes are how many rows clients have, so the folder is for its owner alone; and because whoever writes there
decides what is run, a folder that others may write to is not used.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST = 512 * 2**20
"""Bytes that are kept; beyond it the oldest programs go, until half of it is left."""
NAMED = "KINFOLK_CACHE"
"""Names another folder; empty: nothing is kept."""


def folder() -> Path | None:
    """Where programs are kept, unless JAX was told another place; None: nowhere."""
    named = os.environ.get(NAMED)
    if named is None:
        return Path.home() / ".cache" / "kinfolk" / "programs"
    return Path(named) / "programs" if named else None


def keep_programs() -> Path | None:
    """Has JAX keep what this process compiles, and find what others have; returns where, or None.

    Where JAX_COMPILATION_CACHE_DIR names a place, that stays as it is. Silos of a federation do not call this.
    """
    import jax

    where = folder()
    if where is None or jax.config.values.get("jax_compilation_cache_dir") is not None:
        return None
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _ours_alone(where):
            return None
        _forget_old(where)
    except OSError:  # no home, or a disk that takes nothing: everything is compiled again, as if this were not there
        return None
    jax.config.update("jax_compilation_cache_dir", str(where))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return where


def _ours_alone(where: Path) -> bool:
    """Whether nobody else can put a program there; a folder of ours is closed to others."""
    if not hasattr(os, "getuid"):  # Windows: a home folder is its owner's
        return True
    found = where.stat()
    if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o077:
        where.chmod(0o700)
    return found.st_uid == os.getuid()


def _forget_old(where: Path) -> None:
    """Removes what was cut short by a kill, and the oldest programs where there are too many."""
    found = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in where.iterdir() if path.is_file())
    left = sum(size for _, size, _ in found)
    crowded = left > MOST
    for _, size, path in found:
        if size == 0 or (crowded and left > MOST / 2):
            path.unlink(missing_ok=True)
            left -= size
