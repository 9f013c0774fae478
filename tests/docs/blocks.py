"""Runs what a page shows: commands, Python and settings, in order, and compares what comes out."""

from __future__ import annotations

import contextlib
import glob
import io
import math
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinfolk.cli import main
from kinfolk.data import registry
from kinfolk.toml import from_toml
from kinfolk.training import prepare
from kinfolk.training.experiment import Experiment

FENCE = re.compile(r"^(?:<!-- file: (\S+) -->\n\n)?```(\w+)\n(.*?)^```$", re.M | re.S)
"""A block, and the file it is written to or compared with, named in a comment above it."""
NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w-])")
TOLERANCE = 0.02
"""Numbers that depend on the machine's arithmetic may differ by this much, relatively."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    file: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    found = [Block(m[2], m[1] or "", m[3], text[: m.start()].count("\n") + 1) for m in FENCE.finditer(text)]
    assert 2 * len(found) == len(re.findall(r"^```", text, re.M)), "a fence without a language, or not closed"
    return found


def matches(wanted: str, found: str) -> bool:
    """Whether a text is as the page shows it: `...` is anything, white space is all one, numbers within TOLERANCE.

    >>> matches("epsilon 3.01 ... done", "epsilon 3  (simulated)\\ndone"), matches("epsilon 3", "epsilon 4")
    (True, False)
    """
    numbers: list[float] = []

    def pattern(piece: str) -> str:
        out, at = "", 0
        for number in NUMBER.finditer(piece):
            numbers.append(float(number[0]))
            out += re.escape(piece[at : number.start()]) + r"(\d+(?:\.\d+)?(?:e-?\d+)?)"
            at = number.end()
        return out + re.escape(piece[at:])

    words = [[pattern(word) for word in piece.split()] for piece in wanted.split("...")]
    regex = r".*?".join(r"\s*" + r"\s+".join(piece) + r"\s*" for piece in words)
    match = re.fullmatch(regex, found, re.S)
    if match is None:
        return False
    return all(math.isclose(a, float(b), rel_tol=TOLERANCE) for a, b in zip(numbers, match.groups(), strict=True))


def run_page(page: Path, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Runs all blocks of a page in a folder of its own, and returns how many there were."""
    patch.chdir(folder)
    patch.setattr(registry, "_REGISTERED", {})
    names: dict[str, Any] = {"__name__": "__docs__"}
    printed = ""
    found = blocks(page.read_text())
    for block in found:
        where = f"{page.name}:{block.line}"
        if block.kind == "console":
            _console(block, where, patch)
        elif block.kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block.text, where, "exec", dont_inherit=True), names)
            printed = out.getvalue()
        elif block.kind == "toml":
            experiment = from_toml(block.text, Experiment)
            for phase in experiment.phases:
                prepare.build_algorithm(phase, experiment.privacy.level)
            if block.file:
                Path(block.file).write_text(block.text)
        elif block.kind == "text":
            shown = printed if not block.file else Path(*glob.glob(block.file)).read_text()
            assert matches(block.text, shown), f"{where} shows\n{block.text}\nand this came:\n{shown}"
        else:
            pytest.fail(f"{where}: nobody runs a block of kind {block.kind!r}")
    return len(found)


def _console(block: Block, where: str, patch: pytest.MonkeyPatch) -> None:
    """Lines that begin with `$` are commands; what follows is what they print, or the error they end with."""
    parts = re.split(r"^\$ ", block.text, flags=re.M)
    assert not parts[0].strip(), f"{where}: a console block begins with a command"
    for part in parts[1:]:
        command, _, wanted = part.partition("\n")
        words = [name for word in shlex.split(command) for name in (sorted(glob.glob(word)) or [word])]
        assert words[0] == "kinfolk", f"{where}: {command}"
        patch.setattr(sys, "argv", words)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
            main.main()
        failed = wanted.startswith("Error:")
        shown = err.getvalue()[max(0, err.getvalue().find("Error:")) :] if failed else out.getvalue()
        assert bool(stop.value.code) == failed, f"{where}: {command}\n{err.getvalue()}"
        assert matches(wanted, shown), f"{where}: {command} shows\n{wanted}\nand this came:\n{shown}"
