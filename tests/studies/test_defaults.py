"""The page on defaults lists every cell that misses an aim: results that are made up so that some do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.studies.defaults import page, plan
from benchmarks.studies.defaults.settings import (
    CHOICE_SEEDS,
    DESIGN_SEEDS,
    DIFFER,
    EVERYBODY,
    HALVES,
    MIXED,
    SCORE_SEEDS,
    budgets_of,
)
from kinfolk import recommend
from kinfolk.privacy.levels import Budget

FINE: dict[str, Any] = {"setting": "a", "level": "client", "half": "confirmation", "epsilon": 1.0, "tau": 0.2}
FINE |= {"what": "w", "hindsight_is": "h", "default": 1.0, "hindsight": 1.0, "constant": 2.0, "local": 1.5}
FINE |= {"fedavg": 1.2, "own": 1.0}


def test_halves_and_seeds_have_nothing_in_common() -> None:
    design, confirmation = ({one.name for part in HALVES[half] for one in part} for half in HALVES)
    assert len(design | confirmation) == len(design) + len(confirmation) == 26
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


def test_the_cells_are_those_of_the_recipe_as_it_is() -> None:
    """Made-up data, at every epsilon and with budgets that differ: what the page says was chosen is chosen today."""
    rows = json.loads(page.RESULTS.read_text())
    kept = {(row["setting"], row["level"], row["epsilon"]): row["what"] for row in rows}
    checked = 0
    for half, settings in HALVES.items():
        first = DESIGN_SEEDS[0] if half == "design" else CHOICE_SEEDS[0]
        for setting in (one for part in settings for one in part if one.made_up):
            data = setting.make(first, plan.TAUS[0])
            for (name, level, epsilon), what in kept.items():
                if name == setting.name:
                    assert plan._words(recommend(data, plan.level_of(level, epsilon, data.ids))) == what
                    checked += 1
    assert checked == 8 * 5 + 5


def test_budgets_that_differ_are_all_there_and_the_same_for_everything() -> None:
    ids = [f"{k:03d}" for k in range(42)]
    found = budgets_of(ids)
    every = [found[name].epsilon if name in found else EVERYBODY for name in ids]
    counts = [every.count(epsilon) for epsilon in MIXED]
    assert (sum(counts), min(counts), max(counts)) == (42, 10, 11)
    assert budgets_of(ids[::-1]) == found, "whatever the order of clients"
    (setting,) = (one for one in HALVES["design"][1] if one.name.startswith("mixed numbers"))
    data = setting.make(100, 0.2)
    level = plan.level_of("example", DIFFER, data.ids)
    pieces = plan.pieces_of(data, "example", (DIFFER,))
    noise = [plan.terms_of(piece, "example", data, 11).data.noise_multiplier[0] for piece in pieces[:3:2]]
    strict = [level.budget(name) == Budget(min(MIXED)) for name in data.ids]
    for each in noise:
        assert min(each[np.array(strict)]) > max(each[~np.array(strict)])
