"""What a silo has in the end: its model and the shared one, to predict with and to hand out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kinfolk.data.federation import DataError
from kinfolk.deploy.scaffold import policy_for, write_federation
from kinfolk.deploy.silo_models import from_silo
from kinfolk.deploy.silo_state import MODEL
from kinfolk.deploy.study import Roster, Study
from kinfolk.training import run_directory
from kinfolk.training.experiment import Experiment, ModelChoice, Phase
from tests.deploy.federations import level_of

EDGES = (1.0, 2.0, 4.0)


def silo(folder: Path, level: str = "client") -> tuple[Study, Path]:
    """A silo of a study on times until an event, before any run."""
    experiment = Experiment(
        seed=7,
        model=ModelChoice("hazard"),
        privacy=level_of(level),
        phases=(Phase("fedavg", 2), Phase("mean_regularized", 2)),
    )
    study = Study(Roster("s", ("a", "b"), ("u", "v"), "survival", edges=EDGES), experiment)
    policies = [policy_for(study, client) for client in ("a", "b")]
    bounds = dict.fromkeys(("u", "v"), (-1.0, 1.0))
    policies = [replace(policy, data=replace(policy.data, bounds=bounds)) for policy in policies]
    write_federation(folder / "all", study, policies, ["localhost"])
    return study, folder / "all" / "silos" / "a"


def ended(study: Study, home: Path, name: str, value: float, number: int = 3) -> None:
    """A run that left weights of this value."""
    place = home / "state" / "runs" / name
    place.mkdir(parents=True)
    shared = study.shapes[study.phase(number)]
    tree = jax.tree.map(
        lambda leaf: np.full(leaf.shape, value, np.float32), {"model": study.model_shape, "shared": shared}
    )
    run_directory.write_tree(place / MODEL, tree, round=number, protected=False)


@pytest.mark.fast
def test_a_silo_predicts_with_what_its_last_run_left(tmp_path: Path, command: Any) -> None:
    study, home = silo(tmp_path)
    with pytest.raises(DataError, match="no model yet"):
        from_silo(home)
    ended(study, home, "first", 0.5, number=0)
    assert (from_silo(home).layers[0][0] == 0.5).all()
    ended(study, home, "second", 0.0)
    (tmp_path / "new.csv").write_text("u,v\n0.5,-0.5\n1,1\n")
    code, out, err = command(
        "predict", home, tmp_path / "new.csv", "--output", tmp_path / "risks.csv", "--horizon", 2, "--horizon", 4
    )
    assert code == 0, err
    assert "for its client only" in out + err
    risks = np.loadtxt(tmp_path / "risks.csv", delimiter=",", skiprows=1)[:, 2:]
    np.testing.assert_allclose(risks, [[0.875, 0.75, 0.875]] * 2, atol=1e-6)  # even chances in every interval


@pytest.mark.fast
def test_what_a_trusted_aggregator_accounts_for_is_the_silos_own_to_hand_out(tmp_path: Path, command: Any) -> None:
    study, home = silo(tmp_path)
    ended(study, home, "run", 0.25)
    said = from_silo(home).privacy
    assert (said["level"], said["epsilon"], said["simulated"]) == ("client", None, True)
    code, _, err = command("export", home, "--output", tmp_path / "model")
    assert code != 0
    assert "simulation" in err
    code, _, err = command("export", home, "--output", tmp_path / "model", "--for-study")
    assert code != 0
    assert "its own client only" in err
    assert command("export", home, "--output", tmp_path / "model", "--client", "a", "--for-study")[0] == 0
    assert (tmp_path / "model" / "model.safetensors").exists()
