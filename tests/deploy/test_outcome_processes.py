"""Outcomes of medicine over separate processes, TLS and node keys: the same results as in the engine."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from kinfolk import trees
from kinfolk.accounting.ledger import read_lines
from kinfolk.deploy.scaffold import write_federation
from kinfolk.deploy.silo_models import from_silo
from kinfolk.deploy.status import server_status
from kinfolk.training import run_directory
from tests.deploy.federations import simulated
from tests.deploy.processes import MARKS, free_port, kinfolk, processes, require_success
from tests.deploy.test_outcomes import ROWS, SILOS, federation_of, policy_of, study_of, tables
from tests.deploy.test_parity_processes import assert_close, published, start_server

pytestmark = MARKS


@pytest.mark.parametrize(
    ("outcome", "person"),
    [
        ("survival", "patient"),
        pytest.param("count", None, marks=pytest.mark.long),
        pytest.param("ordinal", "patient", marks=pytest.mark.long),
        pytest.param("labels", None, marks=pytest.mark.long),
    ],
)
def test_an_outcome_over_processes_is_trained_as_in_simulation(
    outcome: str, person: str | None, short_folder: Path
) -> None:
    study, port, home = study_of(outcome), free_port(), short_folder / "f"
    write_federation(home, study, [policy_of(study, client, person) for client in SILOS], ["127.0.0.1"])
    for client, table in zip(SILOS, tables(), strict=True):
        table.written(home / "silos" / client / "data.csv", outcome)
    with processes() as all_of_them:
        for client in SILOS:
            words = ("deploy", "silo", home / "silos" / client, "--superlink", f"127.0.0.1:{port}")
            all_of_them.append(kinfolk(*words, log=short_folder / f"{client}.log"))
        server = start_server(home, port, short_folder)
        all_of_them.append(server)
        require_success(server, 300, *short_folder.glob("*.log"), *(home / "server").glob("*.log"))
    found, expected = server_status(home / "server"), simulated(study, federation_of(outcome, person))
    assert (found["rounds"], found["ended"]) == (study.experiment.rounds, True)
    assert_close(published(home), expected.shared)
    for slot, client in enumerate(SILOS):
        state = home / "silos" / client / "state"
        (kept,) = state.glob("runs/*/model.npz")
        model = run_directory.read_tree(kept, {"model": study.model_shape})[0]["model"]
        assert_close(jax.tree.leaves(model), trees.row(expected.models, slot))
        assert {line.unit for line in read_lines(state / "ledger.jsonl")} == {"person" if person else "example"}
        (said,) = state.glob("runs/*/statement.json")
        assert json.loads(said.read_text())["unit"].startswith("one person" if person else "one example")
        assert from_silo(home / "silos" / client).predict(tables()[slot].x, [client] * ROWS)[0].shape[0] == ROWS
