"""Secure sums over Flower: a server and four silos as processes, TLS and node keys; one is killed, and comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from kinfolk.accounting.ledger import read_lines
from kinfolk.deploy.status import server_status, silo_status
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.noise_shares import LAW
from tests.deploy.processes import MARKS, free_port, kinfolk, processes, require_success, wait_until
from tests.deploy.secure_federations import NAMES, secure_study, tables
from tests.deploy.test_parity_processes import start_server, write_all

pytestmark = MARKS
ROUNDS, EPSILON = 4, 2.0


def test_silos_that_trust_nobody_over_flower(short_folder: Path) -> None:
    study = secure_study(rounds=ROUNDS, epsilon=30.0, clip_quantile=0.5)
    roster = replace(study.roster, keys=(), tests=(2, 2, 2, 2), target_range=(-1.0, 1.0))  # `deploy init` makes keys
    study = replace(study, roster=roster, experiment=replace(study.experiment, evaluate=EPSILON))
    port, home = free_port(), short_folder / "f"
    write_all(home, study, tables())

    def start(name: str) -> None:
        words = ("deploy", "silo", home / "silos" / name, "--superlink", f"127.0.0.1:{port}")
        all_of_them.append(kinfolk(*words, log=short_folder / f"{name}.log"))

    with processes() as all_of_them:
        for name in NAMES:
            start(name)
        server = start_server(home, port, short_folder)
        all_of_them.append(server)
        wait_until(lambda: server_status(home / "server")["rounds"] >= 1, 240, "the first round")
        all_of_them[0].kill()
        all_of_them[0].wait()
        start(NAMES[0])
        require_success(server, 300, *short_folder.glob("*.log"), *(home / "server").glob("*.log"))
        found = server_status(home / "server")
        mine = {name: silo_status(home / "silos" / name) for name in NAMES}
    assert (found["rounds"], found["ended"], found["aggregator"]) == (ROUNDS, True, "secure")
    assert (found["survivors"], found["colluding"]) == (3, 1)
    own = {name: read_lines(home / "silos" / name / "ledger.jsonl") for name in NAMES}
    paid = {name: [x.rounds[0] for x in lines if x.kind != EVALUATION] for name, lines in own.items()}
    given_up = found["attempts_given_up"]
    for name in NAMES[1:]:
        assert set(paid[name]) == set(range(ROUNDS))
        assert ROUNDS <= len(paid[name]) <= ROUNDS + given_up
        assert mine[name]["epsilon"] > 0
    assert len(paid[NAMES[0]]) + found["absent"].get(NAMES[0], 0) >= ROUNDS
    run = home / "server" / "runs" / found["run"]
    lines = read_lines(home / "server" / "runs" / "ledger.jsonl")
    assert {line.cost.mechanism for line in lines} == {LAW}
    said = json.loads((run / "public" / "statement.json").read_text())
    assert said["epsilon"] > said["shared_noise"]["epsilon_of_observers"] > 0
    (shown,) = said["may_be_shown"]
    assert (shown["counted"] + len(shown["without"]), shown["noise"]) == (len(NAMES), "normal")
    evaluated = [name for name, lines in own.items() if any(line.kind == EVALUATION for line in lines)]
    assert {*NAMES} - {*shown["without"]} <= {*evaluated}
    assert not list(run.glob("**/*vector*")), "masked vectors are nowhere on the server's disk"
