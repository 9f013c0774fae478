"""Separate processes, TLS and node keys, with test keys: the same results as in the engine."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl

from kinfolk import trees
from kinfolk.accounting.ledger import read_lines
from kinfolk.data.federation import Federation
from kinfolk.deploy.policy import Columns
from kinfolk.deploy.scaffold import TARGET, policy_for, write_federation
from kinfolk.deploy.status import server_status
from kinfolk.deploy.study import Study
from kinfolk.training import run_directory
from kinfolk.training.experiment import Afterwards
from tests.deploy.federations import TRAINING, federation_of, rows_of, simulated, study_of
from tests.deploy.processes import MARKS, free_port, kinfolk, processes, require_success, wait_until

pytestmark = MARKS


def write_all(home: Path, study: Study, federation: Federation) -> None:
    """A federation in folders, its tables as Parquet."""
    bounds = dict.fromkeys((*study.roster.features, TARGET), (-1.0, 1.0))
    policies = [
        policy_for(
            study,
            name,
            data=Columns("data.parquet", name, TARGET, dict(bounds)),
            answer_every=0.0,
            ledger="ledger.jsonl",
        )
        for name in study.roster.clients
    ]
    write_federation(home, study, policies, ["127.0.0.1"])
    for slot, name in enumerate(study.roster.clients):
        rows = rows_of(federation, slot)
        frame = pl.DataFrame(np.column_stack([rows.x, rows.y]), schema=[*study.roster.features, TARGET])
        frame.write_parquet(home / "silos" / name / "data.parquet")


def start_silos(home: Path, study: Study, port: int, logs: Path) -> list[subprocess.Popen[bytes]]:
    """One in one process, one as a worker and a line that may belong to two users, one with Flower's SuperNode."""
    address = ("--superlink", f"127.0.0.1:{port}")
    door = ("--door", logs / "door")
    one, two, three = study.roster.clients
    ways = (
        (one, address),
        (two, ("--worker-only", *door)),
        (two, ("--network-only", *door, *address)),
        (three, ("--supernode", "--port", free_port(), *address)),
    )
    return [kinfolk("deploy", "silo", home / "silos" / n, *way, log=logs / f"{n}.log") for n, way in ways]


def start_server(home: Path, port: int, logs: Path) -> subprocess.Popen[bytes]:
    words = ("--port", port, "--round-seconds", 150, "--wait-seconds", 200)
    return kinfolk("deploy", "server", home / "server", *words, log=logs / "server.log")


def assert_close(ours: list[Any], theirs: Any) -> None:
    for a, b in zip(ours, jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-5, atol=1e-5)


def published(home: Path) -> list[np.ndarray]:
    with np.load(home / "server" / "runs" / server_status(home / "server")["run"] / "public" / "shared.npz") as file:
        return [file[name] for name in file.files]


def test_client_level_with_the_server_killed_and_started_again(short_folder: Path) -> None:
    """Schedules, adaptive clipping, tail averages and work after training, too: all as in simulation."""
    study = study_of(
        level="client",
        training=replace(TRAINING, tail=0.5),
        afterwards=Afterwards(),
        noise_power=0.5,
        clip_quantile=0.5,
    )
    federation, port, home = federation_of(), free_port(), short_folder / "f"
    write_all(home, study, federation)
    with processes() as all_of_them:
        all_of_them += start_silos(home, study, port, short_folder)
        server = start_server(home, port, short_folder)
        all_of_them.append(server)
        wait_until(lambda: server_status(home / "server")["rounds"] >= 1, 200, "the first round")
        server.kill()
        server.wait()
        again = start_server(home, port, short_folder)
        all_of_them.append(again)
        require_success(again, 300, *short_folder.glob("*.log"), *(home / "server").glob("*.log"))
    found, expected = server_status(home / "server"), simulated(study, federation)
    assert (found["rounds"], found["ended"]) == (3, True)
    assert len(list((home / "server" / "runs").glob("*/public"))) == 1  # the run that was begun went on
    lines = read_lines(home / "server" / "runs" / "ledger.jsonl")
    charged = [line.rounds[0] for line in lines]
    assert set(charged) == set(range(3))
    assert len(charged) <= 4  # only the round that the kill interrupted may be there twice
    assert len({line.cost.noise_multiplier for line in lines}) == 3
    assert_close(published(home), expected.shared)
    for slot, name in enumerate(study.roster.clients):
        state = home / "silos" / name / "state"
        assert (state / "ledger.jsonl").read_bytes() == b""  # the account is the aggregator's
        (kept,) = state.glob("runs/*/model.npz")
        model = run_directory.read_tree(kept, {"model": study.model_shape})[0]["model"]
        assert_close(jax.tree.leaves(model), trees.row(expected.models, slot))
