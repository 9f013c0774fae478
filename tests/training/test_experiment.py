"""Dataclasses and their text form."""

from __future__ import annotations

import math
from pathlib import Path

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
