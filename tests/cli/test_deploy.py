"""`kinfolk deploy`: what it writes, shows and refuses. Running federations are in tests/deploy."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kinfolk.cli import main

pytestmark = pytest.mark.skipif(find_spec("flwr") is None, reason="pip install 'kinfolk[flower]'")


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["kinfolk", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    return int(stopped.value.code or 0)


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert run(monkeypatch, "deploy", "init", tmp_path / "f", "--demo") == 0
    return tmp_path / "f"


def test_a_new_federation_has_spent_nothing(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(monkeypatch, "deploy", "status", demo / "silos" / "north", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["silo"], found["epsilon"], found["releases"], found["budget"]) == ("north", 0.0, 0, 4.0)
    assert run(monkeypatch, "deploy", "status", demo / "server") == 0
    assert "rounds of study" in capsys.readouterr().out


def test_commands_are_explained_with_tls_keys_and_no_sent_code(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    run(monkeypatch, "deploy", "silo", demo / "silos" / "north", "--explain")
    worker, line = capsys.readouterr().out.splitlines()
    assert "--worker-only" in worker
    assert "--network-only" in line
    run(monkeypatch, "deploy", "silo", demo / "silos" / "north", "--supernode", "--explain")
    secret, worker, node, carrier = capsys.readouterr().out.splitlines()
    assert "umask 077" in secret
    assert "--worker-only" in worker
    words = shlex.split(node)
    assert {"--root-certificates", "--auth-supernode-private-key", "--superexec-auth-secret-file"} <= set(words)
    assert words[words.index("--isolation") + 1] == "process"
    assert "--insecure" not in words
    assert "kinfolk.deploy.message_relay" in carrier
    run(monkeypatch, "deploy", "server", demo / "server", "--explain", "--port", 9555)
    connection, link, *registrations, start = capsys.readouterr().out.splitlines()
    words = shlex.split(link)
    assert {"--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile", "--enable-supernode-auth"} <= set(words)
    assert "--disable-runtime-dependency-installation" in words
    assert "FLWR_TELEMETRY_ENABLED=0" in words
    assert "kinfolk.deploy.superlink_guard" in words
    assert "--database" not in words  # raw messages are in memory only
    local = words[words.index("--port") + 1]
    assert f"127.0.0.1:{local}" in connection
    assert {"KINFOLK_PUBLIC=127.0.0.1:9555", "FORWARDED_ALLOW_IPS="} <= set(words)
    assert local != "9555"
    assert len(registrations) == 3
    assert " run " in start


def test_mistakes_are_one_message(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silo = demo / "silos" / "north"
    policy = silo / "policy.toml"
    text = policy.read_text()
    for old, new, said in (
        ('level = "example"', 'level = "client"', "Agree on one"),
        ("[18.0, 100.0]", "[18.0, 20.0]", "outside its bounds"),
        ("test_keys = false", "test_keys = true", "test_keys=True"),
        ('client = "north"', 'client = "east"', "not one of the study's"),
    ):
        policy.write_text(text.replace(old, new))
        capsys.readouterr()
        assert run(monkeypatch, "deploy", "silo", silo, "--worker-only") == 1
        assert said in " ".join(capsys.readouterr().err.split())
    policy.write_text(text)
    assert run(monkeypatch, "deploy", "silo", silo, "--worker-only", "--supernode") == 1
    assert run(monkeypatch, "deploy", "init", tmp_path / "other") == 1
    assert run(monkeypatch, "deploy", "init", demo, "--demo") == 1
    assert not (silo / "state").exists()


def test_a_study_of_ones_own(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = demo / "server"
    words = ("--study", server / "study.toml", "--experiment", server / "experiment.toml", "--host", "example.org")
    assert run(monkeypatch, "deploy", "init", tmp_path / "own", *words) == 0
    policy = (tmp_path / "own" / "silos" / "south" / "policy.toml").read_text()
    assert "age = []" in policy  # to be filled in
