"""What a run planned, what its rows have lost so far, and ledgers from before accounts followed rows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.accounting.members import ALONE, Source
from kinfolk.accounting.owner import default_ledger, ledger_folder, open_owned
from kinfolk.accounting.standing import lost
from tests.accounting.wards import DELTA, USES, WARDS, Table, account, exact, noise_of, release, worst


def test_nothing_is_charged_that_was_not_planned(ledger: Ledger) -> None:
    """All promises were checked with the plan: whoever charges more than that has checked nothing."""
    own = account(Table().source(), "example", epsilon=1.0)
    own.require(ledger, "run", [range(2)])
    own.charge(ledger, "run", range(2))
    with pytest.raises(LedgerError, match="beyond what it planned"):
        own.charge(ledger, "run", range(2, 3))
    with pytest.raises(LedgerError, match="beyond what it planned"):
        own.charge(ledger, "run", range(1))
    with pytest.raises(LedgerError, match="beyond what it planned"):
        own.charge(ledger, "another run", range(1))
    assert sum(line.uses for line in ledger.lines) == 2 * len(WARDS)


def test_what_a_silos_rows_have_lost_is_the_sum_over_studies(ledger: Ledger) -> None:
    table = Source("patients", ALONE, (ALONE,), (40,))
    wide = {"epsilon": 20.0, "noise": 8.0}
    one, two = (replace(account(table, "example", **wide), parties=(name,)) for name in ("hospital-c", "c"))  # type: ignore[arg-type]
    release(ledger, "study one", one)
    alone = lost(ledger, "Patients", DELTA)
    two.require(ledger, "study two", [range(USES)])
    assert lost(ledger, "patients", DELTA) == alone, "what is only planned is not lost yet"
    two.charge(ledger, "study two", range(USES))
    both = lost(ledger, "patients", DELTA)
    assert exact((1, noise_of(one)), (1, noise_of(two))) <= both.epsilon
    assert both.releases == ("study one", "study two")
    assert lost(ledger, "others", DELTA).epsilon == 0.0


def test_a_ledger_from_before_accounts_followed_rows(tmp_path: Path) -> None:
    """As a release of then wrote it, epsilon 1 at delta 1e-3: it counts for every row of its data name."""
    folder = ledger_folder()
    folder.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "ledger_of_0_1.jsonl", folder / "patients.jsonl")
    with open_owned(default_ledger()) as ledger:
        before = [(x.run, x.cost, x.uses) for x in ledger.lines if x.party == "graz"]
        assert {x.members for x in ledger.lines} == {""}
        assert 0.9 < composition.epsilon(composition.by_run(before), 1e-3) <= 1.0
        with pytest.raises(LedgerError, match="would reach"):
            release(ledger, "again", account(Table().source(), "example", epsilon=1.0))
        later = account(Table().source(), "example", epsilon=20.0, noise=4.0)
        release(ledger, "later", later)
        truth = exact((1, noise_of(later)))
        old = composition.epsilon(composition.by_run(before), DELTA)
        assert worst(ledger, "later", later) > max(truth, old)
        with pytest.raises(LedgerError, match="is new in this ledger, which also holds 'patients'"):
            release(ledger, "others", account(Table(name="pupils").source(), "example"))
