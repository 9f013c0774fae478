"""An aggregator that is sent messages without noise is outside every account of those rows; the statement says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.accounting.owner import open_owned
from kinfolk.accounting.views import aggregators, trust
from tests.accounting.wards import Table, account, release

TABLE = Table(known_by="row")


def test_rows_that_were_promised_protection_need_their_owners_reason(ledger: Ledger) -> None:
    release(ledger, "rows", account(TABLE.source(), "example", epsilon=1.0))
    with pytest.raises(LedgerError, match=r"promised epsilon=1 against everybody.*by run rows.*trust_because"):
        trust(ledger, TABLE.source(), "lungs", None)
    assert aggregators(ledger) == ()
    trust(ledger, TABLE.source(), "lungs", "the registry holds these records anyway")
    trust(ledger, TABLE.source(), "lungs", None)  # asked for once
    assert aggregators(ledger) == (("lungs", "the registry holds these records anyway"),)


def test_secure_sums_hold_against_some_and_are_noted_apart(ledger: Ledger) -> None:
    first = account(TABLE.source(), "example", epsilon=1.0)
    release(ledger, "rows", first)
    with pytest.raises(LedgerError, match=r"'lungs' together with more than 3 silos would see"):
        trust(ledger, TABLE.source(), "lungs", None, colluding=3)
    trust(ledger, TABLE.source(), "lungs", "we know them all", colluding=3)
    trust(ledger, TABLE.source(), "lungs", None, colluding=3)
    assert aggregators(ledger) == ()
    said = first.statement(ledger, "rows", program=["p"])["not_covered"]
    assert said.count("the aggregator of study lungs together with more than 3 of its silos (we know them all)") == 1


def test_other_rows_and_client_level_promises_need_none(ledger: Ledger) -> None:
    release(ledger, "rows", account(replace(TABLE, rows=tuple(range(10))).source(), "example", epsilon=1.0))
    trust(ledger, replace(TABLE, rows=tuple(range(20, 40))).source(), "lungs", None)
    assert aggregators(ledger) == (("lungs", ""),)


@pytest.mark.parametrize(("rows", "said"), [(range(5, 20), True), (range(20, 40), False)])
def test_statements_name_the_aggregators_that_saw_the_same_rows(tmp_path: Path, rows: range, said: bool) -> None:
    with open_owned(tmp_path / "ledger.jsonl") as ledger:
        trust(ledger, replace(TABLE, rows=tuple(range(10))).source(), "lungs", None)
        later = account(replace(TABLE, rows=tuple(rows)).source(), "example", epsilon=1.0)
        release(ledger, "later", later)
        found = later.statement(ledger, "later", program=["p"])["not_covered"]
        assert any("the aggregator of study lungs" in text for text in found) is said
