"""One command at a time, in a process of its own; what it prints is kept for the page."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "110", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
"""The environment of commands: text without colours, line by line."""
MOST = 200_000
"""Characters of output that are kept."""


class BusyError(RuntimeError):
    """Another command is running."""


class Job:
    """A command that was started. `words`: its words, without the program. `folder`: where it runs."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self.words = list(words)
        here = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kinfolk", *self.words],  # -P: nothing in the folder is taken for a module
            cwd=folder,
            env={**os.environ, **PLAIN, "PYTHONPATH": here},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.output = (self.output + line)[-MOST:]
        self._process.wait()

    @property
    def shown(self) -> str:
        """As a line for a shell."""
        return shlex.join(["kinfolk", *self.words])

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._reader.is_alive()

    @property
    def code(self) -> int | None:
        """What it ended with; None while it runs."""
        return None if self.running else self._process.returncode

    def wait(self, seconds: float | None = None) -> None:
        """Waits for its end."""
        self._reader.join(seconds)

    def stop(self) -> None:
        """Asks it to end, as a key would; a second time, makes it end."""
        if self.running:
            gentle = signal.SIGINT if sys.platform != "win32" else signal.SIGTERM
            self._process.send_signal(gentle)


class Jobs:
    """The command that runs, or ran last. `folder`: where commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last: Job | None = None
        self._starting = threading.Lock()

    def start(self, words: Sequence[str]) -> Job:
        """Starts a command, if none is running."""
        with self._starting:
            if self.last is not None and self.last.running:
                raise BusyError("a command is running: wait for its end, or stop it")
            self.last = Job(words, self.folder)
            return self.last

    def close(self) -> None:
        """Stops what is running."""
        if self.last is not None:
            self.last.stop()
            self.last.wait(10)
