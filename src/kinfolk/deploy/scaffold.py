"""Writes a test federation: folders for the server and each silo, with certificates, node keys and policies."""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from kinfolk.deploy.keys import write_certificates, write_node_key, write_signing_key
from kinfolk.deploy.policy import Columns, Policy
from kinfolk.deploy.study import EXPERIMENT_FILE, STUDY_FILE, Roster, Study
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.toml import ConfigError, to_toml
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training

POLICY_FILE = "policy.toml"
TARGET, EVENT = "target", "event"

APP = """# The Flower app of this federation. The silos do not run it: each has kinfolk's own, installed by its owner.
[project]
name = "kinfolk-federation"
version = "1.0.0"
description = "A federation of kinfolk"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "kinfolk"

[tool.flwr.app.components]
serverapp = "federation_app.server:app"
clientapp = "federation_app.silo:app"

[tool.flwr.app.config]
folder = "{folder}"
round-seconds = 600.0
wait-seconds = 600.0
ends-with = 0
insecure-test-keys = {test_keys}
"""


def write_federation(folder: Path, study: Study, policies: Sequence[Policy], hosts: Sequence[str]) -> None:
    """The whole test federation. For a real one, every party makes its own key and gets only its own folder."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose a new folder")
    server = folder.absolute() / "server"
    server.mkdir(parents=True, mode=0o700)
    (server / "keys").mkdir()
    write_certificates(server, hosts)
    homes = {policy.client: folder.absolute() / "silos" / policy.client for policy in policies}
    for silo in homes.values():
        silo.mkdir(parents=True, mode=0o700)
    if study.sums_are_secure:
        study, policies = _with_keys(study, policies, homes)
    _write_study(server, study)
    for policy in policies:
        silo = homes[policy.client]
        _write_study(silo, study)
        shutil.copy(server / "ca.crt", silo / "ca.crt")
        write_node_key(silo, "node")
        shutil.copy(silo / "node.pub", server / "keys" / f"{policy.client}.pub")
        (silo / POLICY_FILE).write_text(to_toml(policy))
    _write_app(server, study)
    (server / "flower").mkdir(mode=0o700)


def _with_keys(study: Study, policies: Sequence[Policy], homes: Mapping[str, Path]) -> tuple[Study, Sequence[Policy]]:
    """A key for each silo, in its own folder, unless the study has them; the public ones in every policy's own list."""
    known = dict(zip(study.roster.clients, study.roster.keys, strict=False))
    known = known or {client: write_signing_key(home, "signing") for client, home in homes.items()}
    keys = tuple(known[client] for client in study.roster.clients)
    return (
        replace(study, roster=replace(study.roster, keys=keys)),
        [replace(policy, silos=known) for policy in policies],
    )


def _write_study(folder: Path, study: Study) -> None:
    (folder / STUDY_FILE).write_text(to_toml(study.roster))
    (folder / EXPERIMENT_FILE).write_text(to_toml(study.experiment))


def _write_app(server: Path, study: Study) -> None:
    package = server / "app" / "federation_app"
    package.mkdir(parents=True)
    test_keys = str(study.experiment.seed is not None).lower()
    (server / "app" / "pyproject.toml").write_text(APP.format(folder=server, test_keys=test_keys))
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text("from kinfolk.deploy.flower_server import server_app\n\napp = server_app()\n")
    (package / "silo.py").write_text("from kinfolk.deploy.message_relay import client_app\n\napp = client_app()\n")


def policy_for(study: Study, client: str, **changes: object) -> Policy:
    """A first policy for a silo: the study's own numbers. Where the data is and its bounds are left to fill in."""
    experiment, roster = study.experiment, study.roster
    columns = (*roster.features, TARGET) if roster.outcome == "number" else roster.features
    event = EVENT if roster.outcome == "survival" else None
    policy = Policy(
        client,
        Columns("data.csv", f"{client}'s rows", TARGET, dict.fromkeys(columns, ()), event),
        replace(experiment.privacy, cohort=None, budgets={}),
        experiment.training,
        tuple(dict.fromkeys(phase.method for phase in experiment.phases)),
        experiment.rounds,
        evaluate=experiment.evaluate,
        test_keys=experiment.seed is not None,
    )
    return replace(policy, **changes)  # type: ignore[arg-type]


def demo_study(rounds: int = 20) -> Study:
    """Three made-up hospitals and a private logistic regression, a model each."""
    experiment = Experiment(
        name="demo",
        model=ModelChoice("logistic"),
        training=Training(batch_size=32),
        privacy=PrivacyLevel(Level.EXAMPLE, epsilon=4.0, delta=1e-4),
        phases=(Phase("mean_regularized", rounds, {"strength": 0.5, "step_size": 0.3}),),
        evaluate=1.0,
    )
    hospitals = ("north", "south", "west")
    return Study(Roster("demo", hospitals, ("age", "pressure", "sugar"), tests=(60, 75, 90)), experiment)


def write_demo(folder: Path, hosts: Sequence[str], rounds: int = 20) -> None:
    """A test federation with made-up data, ready to run."""
    study = demo_study(rounds)
    bounds = {"age": (18.0, 100.0), "pressure": (80.0, 220.0), "sugar": (0.0, 1.0)}
    policies = [
        policy_for(
            study,
            client,
            data=Columns("data.csv", f"{client}'s patients", TARGET, dict(bounds)),
            ledger="ledger.jsonl",  # three owners on one computer
        )
        for client in study.roster.clients
    ]
    write_federation(folder, study, policies, hosts)
    generator = np.random.default_rng(0)
    for slot, client in enumerate(study.roster.clients):
        rows = 200 + 50 * slot
        unit = generator.uniform(-1, 1, (rows, 3))
        slope = np.array([1.5, 1.0, 0.5 * slot])
        labels = generator.random(rows) < 1 / (1 + np.exp(-2 * unit @ slope))
        with (folder / "silos" / client / "data.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*bounds, TARGET])
            for row, label in zip(unit, labels, strict=True):
                values = [low + (high - low) * (u + 1) / 2 for u, (low, high) in zip(row, bounds.values(), strict=True)]
                writer.writerow([*(f"{value:.6g}" for value in values), int(label)])


def require_flower() -> None:
    """An error that names the extra, where Flower is not installed."""
    if find_spec("flwr") is None:  # not imported: a worker does without it
        raise ConfigError(f"Flower is not installed for {sys.executable}: pip install 'kinfolk[flower]'")
