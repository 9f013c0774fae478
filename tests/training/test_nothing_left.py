"""A release is refused before anything is calibrated only where the whole way would refuse it too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.accounting import account
from kinfolk.accounting.ledger import LedgerError
from kinfolk.data.federation import Federation, from_rows
from kinfolk.privacy.levels import PrivacyLevel, example_level
from kinfolk.privacy.release import PrivacyError
from kinfolk.training import loop
from tests.training.test_published import experiment

EVALUATED: list[dict[str, Any]] = [{}, {"evaluate": 1.0}]


def hospital(name: str, *wards: str) -> Federation:
    generator = np.random.default_rng(len(name))
    x = generator.uniform(-1, 1, (60 * len(wards), 2)).astype(np.float32)
    y = (x[:, 0] > generator.normal(size=len(x))).astype(np.int32)
    made = np.repeat(list(wards), 60)
    return from_rows(x, y, made, name=name, outcome="binary", test_fraction=0.4, grouping="ward")


def release(folder: Path, data: Federation, level: PrivacyLevel, because: str | None = None, **others: Any) -> float:
    run = loop.run(
        experiment(level, seed=None, **others),
        folder / "runs",
        data=data,
        ledger=folder / "ledger.jsonl",
        disjoint_because=because,
    )
    return run.statement()["epsilon"]


@pytest.mark.parametrize("others", EVALUATED, ids=["trained", "evaluated"])
def test_data_that_are_said_to_be_others_people_are_not_refused_for_what_those_spent(
    others: dict[str, Any], tmp_path: Path
) -> None:
    level = example_level(epsilon=2.0, delta=1e-4)
    release(tmp_path, hospital("north", "a", "b"), level, **others)
    with pytest.raises(LedgerError, match="is new in this ledger"):  # and not: promise more
        release(tmp_path, hospital("south", "x", "y"), level, **others)
    assert release(tmp_path, hospital("south", "x", "y"), level, "another hospital", **others) >= 1.9
    with pytest.raises(LedgerError, match="has spent"):
        release(tmp_path, hospital("south", "x", "y"), level, **others)


@pytest.mark.parametrize("others", EVALUATED, ids=["trained", "evaluated"])
def test_only_noise_that_is_calibrated_is_known_to_take_its_whole_budget(
    others: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated, data = example_level(epsilon=10.0, delta=1e-4), hospital("north", "a", "b")
    given = replace(calibrated, noise_multiplier=6.0)
    release(tmp_path, data, given)
    monkeypatch.setattr(account, "require_left", lambda *_: pytest.fail("asked"))
    release(tmp_path, data, given, **others)
    with pytest.raises(pytest.fail.Exception, match="asked"):
        release(tmp_path, data, calibrated, **others)


def test_an_evaluation_with_too_much_noise_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="does not fit into exact noise"):
        release(tmp_path, hospital("north", "a", "b"), example_level(epsilon=2.0, delta=1e-4), evaluate=1e-3)
    assert not list(tmp_path.glob("runs/*"))
