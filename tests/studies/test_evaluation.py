"""The study of evaluations: its aims are met by what was measured, its page says that, and it still runs."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.studies.evaluation import run

PAGE = Path(__file__).parents[2] / "docs" / "results" / "evaluation.md"


def test_what_was_measured_meets_the_aims() -> None:
    found = json.loads(run.RESULTS.read_text())
    assert found["trials"] == 1000
    errors = {
        (row["rows"], row["epsilon"]): row["rmse"]
        for row in found["rows"]
        if (row["world"], row["metric"]) == (run.WORLDS[0].title, "AUC")
    }
    assert all(errors[place] <= aim for place, aim in run.AIMS.items())
    assert min(row["coverage"] for row in found["rows"]) >= 0.94
    assert {row["metric"] for row in found["rows"]} == {"AUC", "accuracy", "calibration slope", "MAE", run.C_INDEX}
    sets = json.loads((run.HERE / "results" / "coverage.json").read_text())
    assert all(row["coverage"] >= row["nominal"] - 2 * row["error"] for row in sets)
    assert {row["case"].split(",")[0] for row in sets} == {"School", "HAR"}


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    run.write_page(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()


def test_a_setting_runs() -> None:
    rows = run.setting((0, 300, 1.0, 4))
    assert [row["metric"] for row in rows] == ["AUC", "accuracy", "calibration slope"]
    assert all(0 < float(str(row["rmse"])) < 1 for row in rows)
