"""Run as a program: trains, reports and predicts in a Python from which all that only Unix has was taken.

`python -m tests.portable FOLDER`, with tables `a.csv` and `b.csv` there. What other packages need is imported before.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

OTHERS = (
    "jax",
    "numpy",
    "scipy.optimize",
    "scipy.special",
    "dp_accounting",
    "polars",
    "typer",
    "rich.console",
    "tempfile",
)
MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog", "readline")
FUNCTIONS = (
    "fork",
    "forkpty",
    "fchmod",
    "fchown",
    "chown",
    "getuid",
    "geteuid",
    "getgid",
    "killpg",
    "getpgid",
    "setsid",
)
MORE = ("posix_fallocate", "pwrite", "pread", "mkfifo", "sysconf", "getloadavg", "pidfd_open", "sched_getaffinity")


class Hidden:
    """Finds nothing where only Unix has something."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name in MODULES:
            raise ImportError(f"no module named {name}: this is not a Unix", name=name)


def take_away() -> None:
    """Takes away what only Unix has; what locks files on Windows stands there instead."""
    for name in OTHERS:
        import_module(name)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Hidden())  # type: ignore[arg-type]
    for name in (*FUNCTIONS, *MORE):
        with suppress(AttributeError):
            delattr(os, name)
    windows = types.ModuleType("msvcrt")
    windows.__dict__.update(LK_NBLCK=1, LK_UNLCK=2, LK_LOCK=3, locking=lambda handle, mode, size: None)
    sys.modules["msvcrt"] = windows


def command(*words: str) -> None:
    from kinfolk.cli.main import main

    sys.argv = ["kinfolk", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{words} ended with {end.code}") from None


def run(folder: Path) -> None:
    os.chdir(folder)
    tables = ("a.csv", "b.csv")
    command("schema", *tables, "--target", "ill")
    command("train", *tables, "--target", "ill", "--epsilon", "4", "--seed", "0", "--rounds", "2", "--method", "fedavg")
    text = Path("schema.toml").read_text().replace("confirmed = false", "confirmed = true")
    Path("schema.toml").write_text(text)
    release = ("--schema", "schema.toml", "--name", "people", "--disjoint-because", "nobody is in other tables")
    command("train", *tables, *release, "--epsilon", "4", "--rounds", "2", "--method", "fedavg")
    (last,) = {path.resolve().name for path in Path("runs").glob("latest*") if path.is_dir()} or {newest()}
    command("report", f"runs/{last}", "--output", "report.html")
    command("predict", f"runs/{last}", "a.csv", "--client", "a", "--output", "risks.csv")
    print("portable")


def newest() -> str:
    return max(Path("runs").glob("*/public"), key=lambda path: path.stat().st_mtime).parent.name


if __name__ == "__main__":
    take_away()
    run(Path(sys.argv[1]))
