"""An owner's ledger for the tests of accounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.accounting.ledger import Ledger
from kinfolk.accounting.owner import open_owned


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_owned(tmp_path / "ledger.jsonl") as opened:
        yield opened
