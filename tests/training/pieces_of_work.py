"""Pieces of work for tests of `pieces`: plain functions, which processes of Ray import too."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from kinfolk.training.pieces import Result


def scaled(common: np.ndarray, piece: float) -> Result:
    """Numbers and an array; a negative piece is refused."""
    if piece < 0:
        raise ValueError(f"piece={piece:g} must be at least 0")
    return Result({"sum": float(piece * common.sum()), "process": os.getpid()}, {"all": piece * common})


def killed_once(folder: Path, piece: int) -> Result:
    """Ends its own process, as a kill does, the first time that piece 1 is done; says how often it was begun."""
    begun = folder / f"begun {piece}"
    begun.write_text(begun.read_text() + "x" if begun.exists() else "x")
    if piece == 1 and begun.read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    return Result({"piece": piece, "begun": len(begun.read_text())})


def always_killed(common: None, piece: int) -> Result:
    """Never ends well."""
    os.kill(os.getpid(), signal.SIGKILL)
    return Result(None)
