"""The model that a federation left at a silo, as `kinfolk predict` and `kinfolk export` take it: for its owner."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp

from kinfolk.accounting.ledger import SIMULATED
from kinfolk.accounting.statement import Statement, statement
from kinfolk.data.federation import DataError
from kinfolk.deploy.policy import Policy, read_policy
from kinfolk.deploy.scaffold import POLICY_FILE
from kinfolk.deploy.silo_state import MODEL
from kinfolk.deploy.silo_table import schema_of
from kinfolk.deploy.study import Study, read_study
from kinfolk.privacy.levels import FEDERATION
from kinfolk.serving.trained import Fitted, dense_layers
from kinfolk.training import run_directory, run_files
from kinfolk.training.build import shared_model


def from_silo(folder: Path) -> Fitted:
    """The silo's own model of the last run that has ended, and the shared one, with what was promised about them.

    Rows are read by what the policy declares, as in training; the table itself is not opened.
    """
    study, policy = read_study(folder), read_policy(folder / POLICY_FILE)
    ended = sorted((folder / policy.state).glob(f"runs/*/{MODEL}"), key=lambda path: path.stat().st_mtime)
    if not ended:
        raise DataError(f"{folder} has no model yet: a silo gets it when a run has ended (`kinfolk deploy status`)")
    phase = study.phase(int(run_files.read_arrays(ended[-1])["round"]))
    form = {"model": study.model_shape, "shared": study.shapes[phase]}
    found = jax.tree.map(jnp.asarray, run_directory.read_tree(ended[-1], form)[0])
    common = shared_model(study.experiment.phases[phase].method, study.model, found["shared"])
    return Fitted(
        schema_of(folder, policy.data, study.roster),
        (policy.client,),
        dense_layers(study.model, jax.tree.map(lambda leaf: leaf[None], found["model"])),
        None if common is None else dense_layers(study.model, common),
        _privacy(ended[-1].parent, study, policy),
    )


def _privacy(run: Path, study: Study, policy: Policy) -> Statement:
    """The silo's own statement; where a trusted aggregator keeps the account, one without numbers, which says so."""
    path = run / "statement.json"
    if path.exists():
        return run_files.read_json(path, Statement, ("run", "rounds"))
    facts = statement(
        study.experiment.privacy,
        [],
        {FEDERATION: 1.0},
        data=policy.data.name,
        noise=SIMULATED if policy.test_keys else "the aggregator",
        program=[],
        scaling="declared bounds",
        scaling_is_private=True,
    )
    words = {"epsilon": None, "delta": None, "accounts": "the aggregator keeps the account"}
    return cast(Statement, {**facts, **words})
