"""A server's start: what it refuses, and what it leaves on its disk."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path

import pytest

from kinfolk.deploy import server
from kinfolk.deploy.flower_processes import Places
from kinfolk.deploy.scaffold import policy_for, write_federation
from kinfolk.training.run_directory import RunError
from tests.deploy.asking import STUDY

pytestmark = pytest.mark.skipif(find_spec("flwr") is None, reason="pip install 'kinfolk[flower]'")


def test_a_start_removes_raw_messages_that_older_versions_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything else is started: here the port is taken, so that nothing is."""
    write_federation(tmp_path, STUDY, [policy_for(STUDY, name) for name in STUDY.roster.clients], ["127.0.0.1"])
    home = tmp_path / "server"
    old = [home / f"superlink.db{end}" for end in ("", "-wal", "-shm")]
    for path in old:
        path.write_bytes(b"raw")
    (home / "superlink.log").write_text("kept")
    monkeypatch.setattr(server, "FREEING", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        with pytest.raises(RunError, match=f"port={port} is in use"):
            server.run_server(home, Places("127.0.0.1", port, server.free_port(), tmp_path / "post"), 1.0, 1.0)
    assert not [path for path in old if path.exists()]
    assert (home / "superlink.log").read_text() == "kept"
