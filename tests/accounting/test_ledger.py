"""The ledger: append-only, chained, durable, and strict about budgets."""

from __future__ import annotations

import json
import resource
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import RELEASED, SIMULATED, Allowance, Ledger, LedgerError, Line, read_lines
from kinfolk.privacy.mechanisms import Cost

COST = Cost("gaussian", 2.0, 0.1)


def line(party: str = "a", uses: int = 10, run: str = "r1", noise: str = RELEASED, **changes: object) -> Line:
    return replace(Line(party, "d", "example", "gradient", COST, uses, run, (0, 5), noise), **changes)  # type: ignore[arg-type]


def test_lines_survive_and_add_up(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.jsonl") as ledger:
        ledger.charge([line(), line("b", 3), line("c", 0)])
        ledger.charge([line()])
    with Ledger(tmp_path / "l.jsonl") as again:
        assert [(x.party, x.uses) for x in again.lines] == [("a", 10), ("b", 3), ("a", 10)]
        assert again.uses("r1") == {("a", "gradient"): 20, ("b", "gradient"): 3}
        assert again.epsilon("a", "d", "example", 1e-5) == composition.epsilon([(COST, 20)], 1e-5)
        assert again.epsilon("nobody", "d", "example", 1e-5) == 0
    assert read_lines(tmp_path / "l.jsonl") == again.lines


def test_units_and_data_sets_are_kept_apart(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.jsonl") as ledger:
        ledger.charge([line(), line(unit="client"), line(data="other")])
        assert ledger.epsilon("a", "d", "example", 1e-5) == composition.epsilon([(COST, 10)], 1e-5)


def test_a_second_run_is_composed_by_the_filter(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.jsonl") as ledger:
        ledger.charge([line(), line(run="r2")])
        assert ledger.epsilon("a", "d", "example", 1e-5) == composition.epsilon([(COST, 20)], 1e-5, adaptive=True)


@pytest.mark.parametrize("change", ["value", "removed", "reordered"])
def test_a_changed_ledger_is_noticed(change: str, tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    with Ledger(path) as ledger:
        for uses in (1, 2, 3):
            ledger.charge([line(uses=uses)])
    lines = path.read_text().splitlines()
    if change == "value":
        lines[1] = json.dumps(json.loads(lines[1]) | {"uses": 1}, sort_keys=True)
    elif change == "removed":
        del lines[1]
    else:
        lines[0], lines[1] = lines[1], lines[0]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match="was changed"):
        Ledger(path)


def test_a_torn_line_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    with Ledger(path) as ledger:
        ledger.charge([line(uses=1)])
        ledger.charge([line(uses=2)])
    path.write_bytes(path.read_bytes()[:-20])
    with Ledger(path) as ledger:
        assert [x.uses for x in ledger.lines] == [1]
        ledger.charge([line(uses=5)])
    with Ledger(path) as ledger:
        assert [x.uses for x in ledger.lines] == [1, 5]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.jsonl"), pytest.raises(LedgerError, match="in use by another process"):
        Ledger(tmp_path / "l.jsonl")


def test_a_process_that_was_just_stopped_may_take_a_moment_to_let_go(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "l.jsonl")
    first.charge([line()])
    timer = threading.Timer(0.3, first.__exit__, (None, None, None))
    timer.start()
    with Ledger(tmp_path / "l.jsonl", wait=30.0) as second:
        assert len(second.lines) == 1
    timer.join()


def test_simulated_and_real_noise_are_never_in_one_ledger(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.jsonl") as ledger:
        ledger.charge([line(noise=SIMULATED)])
        with pytest.raises(LedgerError, match="simulations keep their own ledger"):
            ledger.charge([line(noise=RELEASED)])


def test_a_budget_is_refused_before_it_is_spent(tmp_path: Path) -> None:
    spent = composition.epsilon([(COST, 20)], 1e-5)
    planned = {"a": [("r1", COST, 10)]}
    with Ledger(tmp_path / "l.jsonl") as ledger:
        ledger.charge([line()])
        ledger.require("d", "example", planned, {"a": Allowance(spent, 1e-5)})
        with pytest.raises(LedgerError, match="beyond its budget"):
            ledger.require("d", "example", planned, {"a": Allowance(spent * 0.99, 1e-5)})
        assert len(ledger.lines) == 1


def test_a_full_disk_is_a_clear_error_and_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    with Ledger(path) as ledger:
        ledger.charge([line()])
        before = path.read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, hard))  # the system refuses to write more
        try:
            with pytest.raises(LedgerError, match="Nothing was published: make room"):
                ledger.charge([line()])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before


def test_an_unreadable_line_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text("not json\n")
    with pytest.raises(LedgerError, match=r"l\.jsonl:1 is not a ledger line"):
        Ledger(tmp_path / "l.jsonl")
