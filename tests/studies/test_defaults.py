"""The page on defaults lists every cell that misses an aim: results that are made up so that some do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.defaults import page
from benchmarks.studies.defaults.settings import CHOICE_SEEDS, CONFIRMATION, DESIGN, DESIGN_SEEDS, SCORE_SEEDS

FINE: dict[str, Any] = {"setting": "a", "level": "client", "half": "confirmation", "epsilon": 1.0, "tau": 0.2}
FINE |= {"what": "w", "hindsight_is": "h", "default": 1.0, "hindsight": 1.0, "constant": 2.0, "local": 1.5}
FINE |= {"fedavg": 1.2, "own": 1.0}


def test_halves_and_seeds_have_nothing_in_common() -> None:
    assert not {one.name for one in DESIGN} & {one.name for one in CONFIRMATION}
    assert len({*DESIGN_SEEDS, *CHOICE_SEEDS, *SCORE_SEEDS}) == 11


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hindsight": 0.7}, "1.43 of the best in hindsight"),
        ({"constant": 0.9}, "1.11 of a constant"),
        ({"fedavg": 0.9}, "1.11 of the better of local and FedAvg"),
        ({"own": 0.98}, "1.02 of models of clients' own"),
    ],
)
def test_a_cell_that_misses_an_aim_is_named(changed: dict[str, float], words: str) -> None:
    assert page.missed([FINE]) == "None."
    assert page.missed([FINE, {**FINE, **changed}]).endswith(f"client level, epsilon 1: {words}")
    assert page.summary([FINE, {**FINE, "hindsight": 0.5}]).startswith(
        "2 cells; default / best in hindsight: geometric mean 1.414, worst 2.00, above 1.3 in 1"
    )


def test_hindsight_is_chosen_on_some_seeds_and_scored_on_others(tmp_path: Path) -> None:
    """Lucky in the seeds of choice, bad in the others: that is what it gets."""
    plain = [f"strength {strength}, step x1, 20 rounds" for strength in ("0.001", "1e+06")]
    names = ["lucky", *plain, "default: d"]
    about = {"setting": "s", "made_up": False, "level": "client", "half": "confirmation", "taus": [0.0]}
    about |= {"seeds": [*CHOICE_SEEDS, *SCORE_SEEDS], "constants": {"1": [9.0] * 8}}
    about["pieces"] = [{"epsilons": [1.0] * 4, "names": names}, {"epsilons": [1.0], "names": ["a model of one's own"]}]
    losses = [[0.1] * 3 + [5.0] * 5, [2.0] * 8, [3.0] * 8, [1.0] * 8]
    (tmp_path / "s.json").write_text(json.dumps(about))
    (tmp_path / "s.losses.json").write_text(json.dumps([{"averaged": losses}, {"averaged": [[1.5] * 8]}]))
    (row,) = page.cells(tmp_path / "s.losses.json")
    assert (row["hindsight_is"], row["hindsight"], row["default"]) == ("lucky", 5.0, 1.0)
    assert (row["local"], row["fedavg"], row["own"], row["constant"]) == (2.0, 3.0, 1.5, 9.0)
