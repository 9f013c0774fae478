"""Commands that are many independent simulations: where these are computed, a bar, and how to go on with what is left.

While a command works, what is finished lies in `unfinished/` beside the runs, and is removed at its end; `--resume`
goes on with what a command of the same settings, versions and data has left there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinfolk.cli.kept_programs import keep_programs
from kinfolk.cli.output import count_bar
from kinfolk.toml import ConfigError

if TYPE_CHECKING:
    from kinfolk.training.pieces import Common, Piece, Result, Told, Work

On = Annotated[
    str | None,
    typer.Option(
        metavar="ray|HOST:PORT",
        help="Side by side on Ray: `ray` for this machine's cores, or the address of a cluster. Default: one by one.",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on after the same command was cut off: what is finished stays.")
]
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class InPieces:
    """Does a command's pieces of work, as it was told to."""

    command: str
    settings: object
    """All that results depend on, as JSON holds it."""
    on: str | None
    resume: bool
    silent: bool
    output: Path = Path("runs")
    shows_itself: bool = False
    """Whether a piece that is done here has a bar of its own."""

    @property
    def folder(self) -> Path:
        """What is finished, and what pieces leave there to go on with."""
        from kinfolk.training.run_directory import environment

        about = json.dumps([self.settings, environment()], sort_keys=True)
        digest = hashlib.sha256(about.encode()).hexdigest()[:12]
        return self.output.absolute() / UNFINISHED / f"{self.command}-{digest}"

    def __call__(
        self,
        work: Work[Common, Piece],
        common: Common,
        pieces: Mapping[str, Piece],
        *,
        told: Told | None = None,
    ) -> dict[str, Result]:
        """What `work` makes of each of the `pieces`, in their order; `told` hears of each when it is done."""
        from kinfolk.training.pieces import each

        folder = self.folder
        if self.resume and not folder.exists():
            raise ConfigError(
                f"--resume: {folder.parent} has nothing of this command with these settings, data and versions: "
                "leave --resume out to begin"
            )
        if not self.resume:
            shutil.rmtree(folder, ignore_errors=True)
        ours = [folder, folder.parent, *(() if self.output.exists() else (self.output,))]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with count_bar(self.silent or (self.shows_itself and self.on is None), self.command, len(pieces)) as bar:

            def both(name: str, outcome: Result | Exception) -> None:
                bar(outcome)
                if told is not None:
                    told(name, outcome)

            try:
                found = each(partial(with_programs, work), common, pieces, told=both, on=self.on, kept=folder)
            except BaseException as error:
                if any(folder.iterdir()):
                    error.add_note("The same command with --resume goes on with what is left.")
                else:
                    _remove_empty(ours)
                raise
        shutil.rmtree(folder)
        _remove_empty([folder.parent])
        return found


def _remove_empty(folders: Sequence[Path]) -> None:
    """As far as nothing else is in them."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def with_programs(work: Work[Any, Any], common: Any, piece: Any) -> Result:
    """A piece, in a process that keeps compiled programs for the next.

    `work`: what is done. `common`: its first argument. `piece`: its second.
    """
    keep_programs()
    return work(common, piece)
