"""FEMNIST at client level, small: 60 writers, at most 20 images each, 20 rounds, two budgets and none."""

from pathlib import Path

import pytest

from benchmarks.studies.femnist import run as study
from tests.papers.loading import need

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:delta")]  # a cell of it is in test_reproduce


def test_noise_ruins_one_model_for_all_and_fine_tuning_makes_it_useful(tmp_path: Path) -> None:
    need("femnist.npz")
    rows = study.quick(tmp_path, select=False)["rows"]
    trained = {(r["method"], r["epsilon"]): r["by_seed"][0]["mean"] for r in rows if r["part"] == "figure"}
    tuned = {(r["start"], r["objective"], r["epsilon"]): r["mean"] for r in rows if r["part"] == "tune"}
    assert trained["global", "none"] > trained["global", "8"] > trained["global", "2"]  # measured: .386, .277, .100
    assert trained["small shared part", "2"] > trained["global", "2"]  # measured: .163
    for objective in ("vanilla", "symmetric_kl", "ewc"):
        assert tuned["global", objective, "2"] > trained["global", "2"] + 0.1  # measured: .306 to .314
