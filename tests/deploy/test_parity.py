"""A federation gives what simulation gives: every algorithm, every level, through serialised messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kinfolk.accounting.ledger import RELEASED
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.training.experiment import Afterwards, Phase
from tests.deploy.federations import (
    CLIENTS,
    PAIRS,
    TRAINING,
    federation_of,
    play,
    require_parity,
    study_of,
    workers_of,
)


def assert_same(name: str, level: str, tmp_path: Path, cohort: float | None = None, **options: object) -> None:
    study = study_of(name, level, cohort=cohort, **options)  # type: ignore[arg-type]
    federation = federation_of(outcome=study.roster.outcome)
    with workers_of(study, federation, tmp_path) as workers:
        require_parity(study, federation, workers, tmp_path)


FAST = ("mean_regularized", "client")
MARKED = [pytest.param(*pair, marks=pytest.mark.fast if pair == FAST else ()) for pair in PAIRS]


@pytest.mark.parametrize(("name", "level"), MARKED)
def test_federation_equals_simulation(name: str, level: str, tmp_path: Path) -> None:
    assert_same(name, level, tmp_path)


@pytest.mark.slow
def test_cohorts_are_those_of_simulation(tmp_path: Path) -> None:
    assert_same("mean_regularized", "client", tmp_path, cohort=len(CLIENTS) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["example", "client"])
def test_phases_are_those_of_simulation(level: str, tmp_path: Path) -> None:
    assert_same("fedavg", level, tmp_path, phases=(Phase("fedavg", 1), Phase("mean_regularized", 2, {"strength": 0.5})))


@pytest.mark.slow
@pytest.mark.parametrize("level", ["example", "client"])
def test_schedules_are_those_of_simulation(level: str, tmp_path: Path) -> None:
    assert_same("mean_regularized", level, tmp_path, noise_power=0.5, noise_factor=0.9, clip_factor=0.8)


@pytest.mark.slow
def test_adaptive_clipping_is_that_of_simulation(tmp_path: Path) -> None:
    assert_same("mean_regularized", "client", tmp_path, clip_quantile=0.5, clip=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["example", "client"])
def test_tail_averages_are_those_of_simulation(level: str, tmp_path: Path) -> None:
    assert_same("mean_regularized", level, tmp_path, training=replace(TRAINING, tail=0.6))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fine_tune", "self_select"])
def test_work_after_training_is_that_of_simulation(method: str, tmp_path: Path) -> None:
    training = replace(TRAINING, tail=0.6)
    assert_same("mean_regularized", "client", tmp_path, training=training, afterwards=Afterwards(method))


@pytest.mark.slow
def test_laplace_noise_is_that_of_simulation(tmp_path: Path) -> None:
    phases = (Phase("covariance_regularized", 2, {"pattern": "group_sparse"}),)
    assert_same("covariance_regularized", "client", tmp_path, phases=phases, noise="laplace")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["choice", "squares"])
def test_choices_and_laplace_noise_are_for_real_too(what: str, tmp_path: Path) -> None:
    real: dict[str, Any] = {"seed": None, "noise_multiplier": None}
    if what == "choice":
        study = study_of("ifca", "example", epsilon=8.0, choice_epsilon=0.5, **real)
    else:
        phases = (Phase("covariance_regularized", 2, {"pattern": "group_sparse"}),)
        study = study_of(level="client", phases=phases, noise="laplace", epsilon=1.0, **real)
    with workers_of(study, federation_of(), tmp_path) as workers, Coordinator(study, tmp_path / "server") as server:
        kept = play(server, workers)
        lines = workers[0].ledger.lines if what == "choice" else server.ledger.lines
    assert {line.noise for line in lines} == {RELEASED}
    assert what in {line.kind for line in lines}
    assert all(np.isfinite(leaf).all() for state in kept.values() for leaf in jax.tree.leaves(state))
