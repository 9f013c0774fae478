"""A server and four hospitals as separate processes on loopback, over TLS, with everything going wrong at once."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import RELEASED, Line, read_lines
from kinfolk.deploy.flower_processes import running, supernode, write_node_secret
from kinfolk.deploy.keys import write_node_key
from kinfolk.deploy.local_socket import door_of
from kinfolk.deploy.policy import Columns
from kinfolk.deploy.scaffold import TARGET, policy_for, write_federation
from kinfolk.deploy.silo import read_silo
from kinfolk.deploy.status import server_status, silo_status
from kinfolk.deploy.study import Roster, Study
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.privacy.mechanisms import Cost
from kinfolk.report import write_report
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from tests.deploy.processes import (
    BOUNDS,
    MARKS,
    BadLine,
    free_port,
    heart_tables,
    kinfolk,
    processes,
    require_success,
    wait_until,
    write_table,
)

pytestmark = MARKS
ROOT = Path(__file__).parents[2]
ROUNDS, PAID_ROUNDS, ROUND_SECONDS = 20, 6, 25.0
LEVEL = PrivacyLevel(Level.EXAMPLE, epsilon=4.0, delta=1e-4)


@pytest.fixture
def hospitals() -> dict[str, np.ndarray]:
    source = Path(os.environ.get("KINFOLK_DATA", "")) / "heart_disease.npz"
    if not os.environ.get("KINFOLK_DATA") or not source.exists():
        pytest.skip("heart disease data is not here: set KINFOLK_DATA to a directory with heart_disease.npz")
    return heart_tables(source)


def heart_study(hospitals: dict[str, np.ndarray]) -> Study:
    experiment = Experiment(
        name="heart",
        model=ModelChoice("logistic"),
        training=Training(batch_size=32),
        privacy=LEVEL,
        phases=(Phase("mean_regularized", ROUNDS, {"strength": 0.5, "step_size": 0.3}),),
    )
    return Study(Roster("heart", tuple(hospitals), tuple(BOUNDS)), experiment)


def lines_of(silo: Path) -> list[Line]:
    path = silo / "ledger.jsonl"
    return read_lines(path) if path.exists() else []


def stored(silo: Path) -> list[int]:
    return sorted(int(path.stem) for path in silo.glob("state/runs/*/[0-9]*.npz"))


def test_a_federation_survives_what_hospitals_and_networks_do(
    hospitals: dict[str, np.ndarray], short_folder: Path
) -> None:
    study, home, port = heart_study(hospitals), short_folder / "f", free_port()
    killed, bad_line, poor, broken = study.roster.clients
    steps = {name: max(1, len(rows) // 32) for name, rows in hospitals.items()}
    cost = Cost("gaussian", 3.0, float(np.float32(32 / len(hospitals[poor]))))
    enough = composition.epsilon([(cost, PAID_ROUNDS * steps[poor])], 1e-4) * 1.002
    policies = []
    for name in study.roster.clients:
        columns = Columns("data.csv", f"{name}'s patients", TARGET, dict(BOUNDS))
        policy = policy_for(study, name, data=columns, answer_every=0.25, ledger="ledger.jsonl")
        if name == poor:
            policy = replace(policy, privacy=replace(LEVEL, epsilon=enough, noise_multiplier=3.0), rounds=PAID_ROUNDS)
        policies.append(policy)
    write_federation(home, study, policies, ["localhost", "127.0.0.1"])
    silos = {name: home / "silos" / name for name in study.roster.clients}
    for name, rows in hospitals.items():
        write_table(silos[name] / "data.csv", (*BOUNDS, TARGET), rows)
    sent_code = home / "server" / "app" / "federation_app" / "silo.py"
    marker = short_folder / "code-that-was-sent-ran"
    sent_code.write_text(sent_code.read_text() + f"open({str(marker)!r}, 'w').close()\n")

    with processes() as all_of_them, ExitStack() as stack:
        line = BadLine(port, often=0.15)
        stack.callback(line.close)
        began = time.monotonic()

        def start(name: str, address: int) -> subprocess.Popen[bytes]:
            words = ("deploy", "silo", silos[name], "--superlink", f"127.0.0.1:{address}")
            process = kinfolk(*words, log=short_folder / f"{name}.log")
            all_of_them.append(process)
            return process

        first = start(killed, port)
        start(bad_line, line.port)
        start(poor, port)
        start_broken(all_of_them, silos[broken], port, short_folder)
        words = ("--port", port, "--round-seconds", ROUND_SECONDS, "--wait-seconds", 300)
        server = kinfolk("deploy", "server", home / "server", *words, log=short_folder / "server.log")
        all_of_them.append(server)
        wait_until(lambda: len(stored(silos[killed])) >= 3, 600, "three rounds")
        first.kill()  # no chance to tidy up
        stranger = start_stranger(stack, short_folder, home, port)
        check_guard(home, port)
        time.sleep(3)
        start(killed, port)
        require_success(server, 900, *short_folder.glob("*.log"), *(home / "server").glob("*.log"))
        print(f"{ROUNDS} rounds in {time.monotonic() - began:.0f} s, start and harm included; {line.harm}")
        assert min(line.harm.values()) > 0

    found = server_status(home / "server")
    assert found["ended"]
    assert found["rounds"] == ROUNDS
    public = home / "server" / "runs" / found["run"] / "public"
    assert "every silo has its own budget" in (public / "statement.txt").read_text()
    page = write_report([public.parent], short_folder / "report.html").read_text()
    assert "mean_regularized" in page
    assert f"{broken} in {ROUNDS} rounds" in page
    assert f"{broken} in {ROUNDS} of {ROUNDS} rounds" in (public / "statement.txt").read_text()
    assert found["absent"][broken] == ROUNDS
    assert all(np.isfinite(value).all() for value in np.load(public / "shared.npz").values())
    rounds = [json.loads(x) for x in (public.parent / "private" / "rounds.jsonl").read_text().splitlines()]
    assert [entry["round"] for entry in rounds] == list(range(ROUNDS))
    assert all(broken in entry["absent"] for entry in rounds)  # NaN is a zero message
    assert any(killed not in entry["absent"] for entry in rounds[5:])  # it came back
    assert any(bad_line not in entry["absent"] for entry in rounds[10:])  # it is heard again and again
    assert all(poor in entry["absent"] for entry in rounds[-3:])  # it had spent its budget
    assert not marker.exists()
    check_ledgers(silos, killed, bad_line, poor, steps)
    check_stranger(stranger, short_folder)


def start_broken(found: list[Any], silo: Path, port: int, logs: Path) -> None:
    """The silo that sends NaN: its worker and its line are started one by one, as --explain shows them."""
    silo = silo.absolute()
    (silo / "state").mkdir()
    door = door_of(silo / "state")
    found.append(subprocess.Popen([sys.executable, "-m", "tests.deploy.nan_silo", str(silo), str(door)], cwd=ROOT))
    words = ("--network-only", "--door", door, "--superlink", f"127.0.0.1:{port}")
    found.append(kinfolk("deploy", "silo", silo, *words, log=logs / "broken.log"))


def start_stranger(stack: ExitStack, folder: Path, home: Path, port: int) -> subprocess.Popen[bytes]:
    """A node with a key that nobody has registered."""
    silo = folder / "stranger"
    silo.mkdir()
    write_node_key(silo, "node")
    (silo / "ca.crt").write_bytes((home / "server" / "ca.crt").read_bytes())
    write_node_secret(silo)
    return stack.enter_context(running(supernode(silo, f"127.0.0.1:{port}", free_port()), folder / "stranger.log"))


def check_stranger(stranger: subprocess.Popen[bytes], folder: Path) -> None:
    log = (folder / "stranger.log").read_text()
    assert "SuperNode ID" not in log  # it was never let in
    assert "Receiving" not in log
    link = (folder / "f" / "server" / "superlink.log").read_text()
    assert "No SuperNode found with the given public key" in link


def check_guard(home: Path, port: int) -> None:
    """On the silos' port nobody can start a run or take the server's task, from this machine neither."""
    import httpx

    context = ssl.create_default_context(cafile=str(home / "server" / "ca.crt"))
    with httpx.Client(verify=context) as client:
        for path in ("/v1/control/start-run", "/v1/runtime/acquire-task"):
            assert client.post(f"https://127.0.0.1:{port}{path}", content=b"").status_code == 403, path
        assert client.post(f"https://127.0.0.1:{port}/v1/fleet/kinfolk-visit", content=b"").status_code == 401


def check_ledgers(silos: dict[str, Path], killed: str, bad_line: str, poor: str, steps: dict[str, int]) -> None:
    """Every release is in the ledger once; only a round that a kill interrupted may be there twice."""
    for name in (killed, bad_line, poor):
        lines, rounds = lines_of(silos[name]), stored(silos[name])
        assert {(x.party, x.unit, x.kind, x.noise) for x in lines} == {(name, "example", "gradient", RELEASED)}
        assert all(x.uses == steps[name] for x in lines)
        charged = [x.rounds[0] for x in lines]
        if name == killed:
            assert set(rounds) <= set(charged)
            assert len(charged) <= len(rounds) + 1
        else:
            assert charged == rounds
        program = read_silo(silos[name])
        allowed = program.account.budgets()[name]
        found = silo_status(silos[name])
        assert found["epsilon"] <= allowed.epsilon * (1 + 1e-9)
        assert found["epsilon"] == composition.epsilon([(x.cost, x.uses) for x in lines], allowed.delta)
        assert found["releases"] == len(lines) * steps[name]
    assert len(stored(silos[poor])) == PAID_ROUNDS
    assert silo_status(silos[poor])["refused"] > 0
