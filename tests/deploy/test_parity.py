"""A federation gives what simulation gives: every algorithm, every level, through serialised messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import trees
from kinfolk.accounting.ledger import RELEASED
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.engines import resident
from kinfolk.training.build import as_array, as_sweep
from kinfolk.training.experiment import Afterwards, Phase
from kinfolk.training.prepare import prepare
from tests.deploy.federations import CLIENTS, PAIRS, TRAINING, federation_of, model_of, play, study_of, workers_of


def simulated(study: object, federation: object) -> resident.State:
    """The same experiment in the resident engine, phase by phase."""
    job = prepare(study.experiment, [federation])  # type: ignore[attr-defined]
    keys = jax.random.key(jnp.uint32(study.experiment.seed))[None]  # type: ignore[attr-defined]
    state, begin = resident.start_all(job.plan, as_sweep(job.algorithms[0]), keys), 0
    for number, (phase, algorithm) in enumerate(zip(job.experiment.phases, job.algorithms, strict=True)):
        if number:
            state = resident.enter_phase(job.plan, as_sweep(algorithm), state)
        end = begin + phase.rounds
        state = resident.run_rounds(
            job.plan, as_sweep(algorithm), as_sweep(job.terms), job.clients, state, jnp.int32(begin), jnp.int32(end)
        )
        begin = end
    algorithm = as_sweep(job.algorithms[-1])
    if job.afterwards is not None:
        state = resident.personalise(
            job.plan, as_array(job.afterwards), algorithm, as_sweep(job.terms), job.clients, state
        )
    state = replace(state, models=resident.all_models(algorithm, state))
    return trees.row(state, (0, 0))


def assert_same(name: str, level: str, tmp_path: Path, cohort: float | None = None, **options: object) -> None:
    study = study_of(name, level, cohort=cohort, **options)  # type: ignore[arg-type]
    federation = federation_of()
    server_folder = tmp_path / "server"
    with (
        Coordinator(study, server_folder, test_keys=True) as server,
        workers_of(study, federation, tmp_path) as workers,
    ):
        personal = play(server, workers)
        expected = simulated(study, federation)
        pairs = [(server.shared, expected.shared)]
        pairs += [(own, trees.row(expected.personal, slot)) for slot, own in personal.items()]
        assert len(pairs) > 1
        pairs += [(model_of(workers[slot]), trees.row(expected.models, slot)) for slot in personal]
        for ours, theirs in pairs:
            for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
                np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


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
