"""Who remembers a ledger: run directories and silos keep its length and its head, so that a lost one is noticed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kinfolk.accounting.records import LedgerError
from kinfolk.files import write_whole

FILE = "ledger.json"


@dataclass(frozen=True)
class Witness:
    """A ledger as somebody last saw it."""

    id: str
    """Of the ledger: that of its key."""
    ledger: str
    """Where it was."""
    records: int
    """How long it was."""
    head: str
    """The hash of its last record."""

    def write(self, folder: Path) -> None:
        """Keeps it in a folder; on disk when this returns."""
        write_whole(folder / FILE, (json.dumps(asdict(self), indent=2) + "\n").encode())


def witnesses(folders: Iterable[Path]) -> Iterator[tuple[Path, Witness]]:
    """What these folders remember, where they remember something."""
    for path in (folder / FILE for folder in folders):
        if path.exists():
            try:
                yield path, Witness(**json.loads(path.read_text()))
            except (OSError, TypeError, ValueError) as error:
                raise LedgerError(
                    f"{path} says how long the ledger was, and cannot be read ({error}): delete it if `kinfolk ledger "
                    "verify` finds the ledger whole"
                ) from None
