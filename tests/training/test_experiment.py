"""Dataclasses and their text form."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from kinfolk.data.choice import DataChoice
from kinfolk.privacy.levels import Budget, client_level, example_level, none
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training.experiment import Experiment, Phase, Training, load

EXPERIMENTS = [
    Experiment(),
    Experiment(seed=3, seeds=5, privacy=none(), training=Training(batch_size=None)),
    Experiment(
        name='quotes " and \\ and ä',
        seed=0,
        data=DataChoice("school", "as_published", 0.3),
        privacy=client_level(noise_multiplier=2.0, cohort=10.0, allow_large_delta=True),
        phases=(
            Phase("fedavg", 3, {"step_size": 0.5}),
            Phase("mean_regularized", 2, {"strength": math.inf, "rule": "increment"}),
        ),
    ),
    Experiment(privacy=example_level(1.0, 1e-7, budgets={"St. Mary's": Budget(0.5), "b": Budget(2.0, 1e-5)})),
]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_there_and_back(experiment: Experiment) -> None:
    assert from_toml(to_toml(experiment), Experiment) == experiment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sede = 3", "unknown key 'sede'; did you mean 'seed'"),
        ("[privacy]\nlevel='example'\nepsilonn=3", "did you mean 'privacy.epsilon'"),
        ("[privacy]\nlevel='exampel'\nepsilon=3.0", "level='exampel' is not one of"),
        ("[privacy]\nlevel='example'", "needs epsilon, or noise_multiplier"),
        ("[privacy]\nlevel='example'\nepsilon=0", "epsilon=0.0 must be above 0"),
        ("[privacy]\nlevel='none'\nepsilon=3", "has no budget"),
        ("seed = 'three'", "seed='three' should be a int"),
        ("seeds = 3", "needs a seed"),
        ("[[phases]]\nrounds=0", "rounds=0 must be at least 1"),
        ("training = 3", "training should be a table"),
        ("seed = ", "not valid TOML"),
        ("phases = []", "at least one phase"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_toml(text, Experiment)


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    with pytest.raises(ConfigError, match=r"e\.toml cannot be read"):
        load(path)
    path.write_text("sede = 1")
    with pytest.raises(ConfigError, match=r"e\.toml: unknown key"):
        load(path)


def test_whole_numbers_are_numbers() -> None:
    assert from_toml("[privacy]\nlevel='example'\nepsilon=3", Experiment).privacy.epsilon == 3.0


def test_full_batches_survive_toml() -> None:
    """None is not the default here, so leaving it out would mean 32: a resumed run would take other batches."""
    whole = Experiment(training=Training(batch_size=None))
    assert "batch_size = 0" in to_toml(whole)
    assert from_toml(to_toml(whole), Experiment) == whole
    assert from_toml("[training]\nbatch_size = 0", Experiment).training.batch_size is None
    assert from_toml("[training]\nepochs = 2", Experiment).training.batch_size == 32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"phases": Phase("fedavg")}, r"phases=Phase.* must be a tuple of phases"),
        ({"phases": ("fedavg",)}, r"phases\[0\]='fedavg' is no Phase: write Phase\('fedavg', rounds=60\)"),
        ({"phases": (3,)}, r"phases\[0\]=3 is no Phase: write Phase\(\"mean_regularized\""),
        ({"privacy": "example"}, "privacy='example' is no privacy level: give example_level"),
        ({"training": 32}, "training=32 is no Training"),
    ],
)
def test_words_in_place_of_records_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Experiment(**given)


def test_full_batches_are_none_in_python_and_0_in_toml() -> None:
    with pytest.raises(ConfigError, match="batch_size=0 must be at least 1: for full batches give None, in TOML"):
        Training(batch_size=0)
    assert from_toml("[training]\nbatch_size = 0", Experiment).training == Training(None)


def test_a_budget_of_ones_own_is_a_record() -> None:
    with pytest.raises(ValueError, match=r"budgets\['n'\]=0.5 is no Budget: give Budget\(epsilon=0.5\)"):
        example_level(epsilon=1, budgets={"n": 0.5})
