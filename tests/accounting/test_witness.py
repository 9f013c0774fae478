"""A ledger that was lost, cut or exchanged is noticed wherever anything remains that knows better."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kinfolk.accounting.ledger import LedgerError
from kinfolk.accounting.owner import key_folder, open_new, open_owned
from kinfolk.accounting.witness import FILE
from tests.accounting.wards import Table, account, release


def charged(ledger: Path, run: Path, name: str = "first") -> None:
    run.mkdir(parents=True, exist_ok=True)
    with open_owned(ledger, remembers=run) as opened:
        release(opened, name, account(Table(known_by="row").source(), "example", epsilon=1.0, noise=40.0))


def forget(ledger: Path, *, members: bool = True) -> None:
    """The ledger, its key and, unless told, its memberships: all that the owner's folders had."""
    ledger.unlink()
    shutil.rmtree(key_folder())
    if members:
        shutil.rmtree(ledger.with_suffix(".members"))


def test_runs_remember_a_ledger_that_is_gone_with_its_key(tmp_path: Path) -> None:
    ledger, run = tmp_path / "ledger.jsonl", tmp_path / "run-1"
    charged(ledger, run)
    charged(ledger, run)  # as it was left: nothing to say
    forget(ledger)
    with pytest.raises(LedgerError, match=r"run-1/ledger\.json was charged to another ledger"):
        open_owned(ledger, others=[run])
    with pytest.raises(LedgerError, match="which is gone"):
        open_owned(tmp_path / "elsewhere.jsonl", others=[run])
    open_new(ledger, "the computer was stolen")
    with open_owned(ledger, others=[run]) as opened:
        assert len(opened) == 1


def test_memberships_remember_it_too(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    charged(ledger, tmp_path / "run-1")
    forget(ledger, members=False)
    with pytest.raises(LedgerError, match="says who was in its releases"):
        open_owned(ledger)


def test_an_old_copy_of_ledger_and_key_is_noticed_by_a_later_run(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    charged(ledger, tmp_path / "run-1")
    shutil.copytree(key_folder(), tmp_path / "keys of then")
    shutil.copy(ledger, tmp_path / "ledger of then")
    charged(ledger, tmp_path / "run-2", "second")
    shutil.copy(tmp_path / "ledger of then", ledger)
    shutil.copytree(tmp_path / "keys of then", key_folder(), dirs_exist_ok=True)
    with open_owned(ledger, others=[tmp_path / "run-1"]):
        pass  # nobody here knows better
    with pytest.raises(LedgerError, match="it was cut, or is an old copy"):
        open_owned(ledger, others=[tmp_path / "run-1", tmp_path / "run-2"])


def test_another_owners_runs_in_the_folder_do_not_matter(tmp_path: Path) -> None:
    charged(tmp_path / "a.jsonl", tmp_path / "run-1")
    with open_owned(tmp_path / "b.jsonl", others=[tmp_path / "run-1"]):
        pass


def test_a_torn_memory_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"id": ')
    with pytest.raises(LedgerError, match="cannot be read"):
        open_owned(tmp_path / "ledger.jsonl", others=[tmp_path])
