"""A release whose weights are no numbers any more stops, publishes nothing of it, and has paid for its whole plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from kinfolk.accounting.ledger import Ledger, read_lines
from kinfolk.privacy.levels import client_level, example_level
from kinfolk.training import loop
from kinfolk.training.backends import Resident
from kinfolk.training.experiment import Experiment, Phase, Training
from kinfolk.training.run_directory import StoppedError, open_run

pytestmark = pytest.mark.usefixtures("small_schools")

PLANNED = 25


def release(**changes: object) -> Experiment:
    first = Experiment(
        training=Training(batch_size=8),
        privacy=example_level(epsilon=4.0, delta=1e-4),
        phases=(Phase("mean_regularized", PLANNED),),
    )
    return replace(first, **changes)  # type: ignore[arg-type]


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first chunk on, one client's own weights are NaN."""
    advance = Resident.advance

    def once(self: Resident, *words: object) -> object:
        state = advance(self, *words)  # type: ignore[arg-type]
        return replace(state, personal=jax.tree.map(lambda leaf: leaf.at[0, 0, 2].set(jnp.nan), state.personal))

    monkeypatch.setattr(Resident, "advance", once)


@pytest.mark.slow
def test_the_first_chunk_is_not_finite(spoilt: None, tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match=r"round=2: weights are NaN or infinite.* All 25 planned rounds are charged"):
        loop.run(release(), tmp_path / "runs", ledger=tmp_path / "l.jsonl")
    lines = read_lines(tmp_path / "l.jsonl")
    assert sorted({line.rounds for line in lines}) == [*((k, k + 2) for k in range(0, 24, 2)), (24, 25)]
    with Ledger(tmp_path / "l.jsonl") as ledger:
        for party in {line.party for line in lines}:
            epsilon = ledger.epsilon(party, "synthetic_schools", "example", 1e-4)
            assert epsilon == pytest.approx(4.0, rel=1e-3), "that of the plan, never as if the stop had been planned"
    (where,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in open_run(where).public.rglob("*")) == ["environment.json", "experiment.toml"]
    with pytest.raises(StoppedError, match="start a new run"):
        loop.resume(where)
    assert read_lines(tmp_path / "l.jsonl") == lines


@pytest.mark.slow
def test_weights_that_grow_beyond_float32(tmp_path: Path) -> None:
    """With clipped gradients it takes a step size that grows: whatever rounds were fine are published and paid for."""
    growing = {"step_size": {"start": 1.0, "factor": 1e6, "every": 1}}
    experiment = release(phases=(Phase("mean_regularized", PLANNED, growing),))
    with pytest.raises(StoppedError, match="round=8"):
        loop.run(experiment, tmp_path / "runs", ledger=tmp_path / "l.jsonl")
    assert max(line.rounds[1] for line in read_lines(tmp_path / "l.jsonl")) == PLANNED
    (where,) = (tmp_path / "runs").iterdir()
    assert not (open_run(where).public / "models.npz").exists()


@pytest.mark.slow
def test_at_client_level_nobody_learns_that_a_clients_own_model_is_not_finite(spoilt: None, tmp_path: Path) -> None:
    """Whether to stop would depend on one client's data, and no account covers that: its model is its own affair."""
    found = loop.run(release(privacy=client_level(epsilon=4.0, delta=1e-2)), tmp_path / "runs")
    assert found.done()
