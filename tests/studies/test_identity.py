"""One account whatever things are called: no case states less than a referee finds who knows the rows."""

from __future__ import annotations

import pytest

from benchmarks.studies.identity.run import CASES, measured


@pytest.mark.parametrize("case", CASES)
def test_the_ledger_is_never_below_the_referee(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFOLK_KEYS", "set by the study")
    found = measured(CASES[case])
    assert found["before"] < found["referee"] <= found["now"] <= 1.6 * found["referee"]
    assert found["refused"], "what each promised alone does not cover both"
