"""What a report shows of an evaluation that was paid for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kinfolk.metrics.survival import left_after
from kinfolk.report import may_be_shown
from kinfolk.report.content import Chart, Table
from kinfolk.report.reading import Record

TIMES, SHARES = [1.0, 2.5], [0.9, 0.6]


def metric(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "unit": "", "value": value, "low": value - 0.1, "high": value + 0.1}


def shown(**more: Any) -> dict[str, Any]:
    facts = {"groups": [], "epsilon": 0.5, "simulated": False, "parties": 1, "counted": 80, "unit": "people"}
    return {**facts, "metrics": [metric("C-index", 0.7)], **more}


@pytest.mark.fast
def test_released_shares_without_the_event_are_drawn_with_their_intervals() -> None:
    curve = [metric(left_after(time, "years"), share) for time, share in zip(TIMES, SHARES, strict=True)]
    found = shown(metrics=[metric("C-index", 0.7), *curve], times=TIMES)
    record = cast(Record, SimpleNamespace(statement={"may_be_shown": [found]}))
    parts = may_be_shown.section([record])
    (chart,) = (part for part in parts if isinstance(part, Chart))
    assert chart.series[0].points == ((0.0, 1.0), (1.0, 0.9), (2.5, 0.6))
    assert [round(line.points[-1][1], 6) for line in chart.series] == [0.6, 0.5, 0.7]
    assert len([part for part in parts if isinstance(part, Table)]) == 1


@pytest.mark.fast
def test_an_outcome_without_times_has_no_such_curve() -> None:
    record = cast(Record, SimpleNamespace(statement={"may_be_shown": [shown()]}))
    assert not any(isinstance(part, Chart) for part in may_be_shown.section([record]))
