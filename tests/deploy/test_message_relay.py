"""The small parts of a federation: the local socket, the carrier of messages, keys."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinfolk.deploy import message_relay
from kinfolk.deploy.flower_processes import Command
from kinfolk.deploy.local_socket import open_door, serve_one, wait_for_next
from kinfolk.deploy.message_relay import REFUSAL, ask_worker, carried, receive, send
from kinfolk.deploy.policy import read_policy
from kinfolk.deploy.scaffold import write_demo
from kinfolk.deploy.silo_table import read_table
from kinfolk.deploy.study import read_study
from kinfolk.deploy.superlink_guard import allowed
from kinfolk.toml import ConfigError
from tests.deploy.federations import study_of

needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="pip install 'kinfolk[flower]'")


class Echo:
    """Stands for a worker."""

    longest_request = 100
    program = SimpleNamespace(policy=SimpleNamespace(answer_every=0.3))

    def answer(self, request: bytes) -> bytes:
        return request[::-1]


def through(request: bytes) -> tuple[bytes, float]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=serve_one, args=(Echo(), theirs))
        thread.start()
        began = time.monotonic()
        send(ours, request)
        answer = receive(ours, 1000)
        thread.join()
    return answer, time.monotonic() - began


@pytest.mark.fast
def test_answers_and_refusals_leave_at_the_same_time() -> None:
    for request, expected in ((b"abc", b"cba"), (b"x" * 101, REFUSAL)):
        answer, seconds = through(request)
        assert answer == expected
        assert 0.25 < seconds < 3  # a beat is 0.3; a busy machine may miss a beat or two


def test_a_slow_answer_waits_for_the_next_beat() -> None:
    began = time.monotonic()
    wait_for_next(began - 0.25, 0.2)
    assert 0.1 < time.monotonic() - began < 2


def test_a_caller_that_hangs_up_does_no_harm() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(b"\0\0")
        ours.close()
        serve_one(Echo(), theirs)  # type: ignore[arg-type]


def test_the_door_is_for_its_owner_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "door"
        with open_door(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with open_door(path):  # what a dead worker left behind is no hindrance
            pass
    with pytest.raises(ConfigError, match="shorter folder"):
        open_door(Path("/" + "x" * 120))


@pytest.mark.fast
def test_without_a_worker_the_answer_is_the_refusal(tmp_path: Path) -> None:
    assert ask_worker(str(tmp_path / "nobody"), b"request") == REFUSAL


@pytest.mark.fast
def test_only_the_silos_interface_is_open_to_other_machines() -> None:
    assert allowed("/v1/fleet/pull-messages", "10.0.0.1")
    assert allowed("/v1/control/start-run", "127.0.0.1")
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/", "/docs", "/v1/fleet/../control/start-run"):
        assert not allowed(path, "10.0.0.1")
    assert not allowed("/v1/control/start-run", "")


def test_commands_are_shown_for_a_shell() -> None:
    assert Command(("a", "b c"), {"X": "1 2"}).shown() == "env X='1 2' a 'b c'"


def can_watch() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


@pytest.mark.skipif(not can_watch(), reason="this system does not let processes be watched")
@pytest.mark.parametrize("already", [False, True])
def test_the_servers_app_ends_when_the_server_was_killed(already: bool) -> None:
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    first = "from kinfolk.deploy.flower_processes import end_with; import time; "
    words = f"{first}end_with({server.pid}); print(1, flush=True)"
    if already:
        server.kill()
        server.wait()
    app = subprocess.Popen([sys.executable, "-c", f"{words}; time.sleep(600)"], stdout=subprocess.PIPE)
    assert app.stdout is not None
    assert app.stdout.readline() == (b"" if already else b"1\n")
    server.kill()  # and not waited for: a zombie is dead, too
    assert app.wait(60) == 1
    app.communicate()
    server.communicate()


@needs_flower
def test_a_message_that_never_comes_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    served, rest, tokens = threading.Event(), threading.Event(), iter(["lost", "next"])

    class Node:
        def AcquireTask(self, request: object) -> SimpleNamespace:
            token = next(tokens, None)
            if token is None:
                raise SystemExit
            return SimpleNamespace(HasField=lambda name: True, token=token)

    def serve_task(address: str, token: str, door: str) -> None:
        (served.set if token == "next" else rest.wait)()

    monkeypatch.setattr(message_relay, "_runtime", lambda *words: Node())
    monkeypatch.setattr(message_relay, "_serve_task", serve_task)
    monkeypatch.setattr(message_relay, "POLL", 0.01)
    with pytest.raises(SystemExit):
        message_relay.serve_node("a", b"s" * 32, "door")
    assert served.wait(60)
    rest.set()


@pytest.fixture
def flower_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages know which task they belong to."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@needs_flower
@pytest.mark.usefixtures("flower_task")
def test_whatever_a_message_holds_the_reply_is_an_answer_or_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.app import ConfigRecord, Message, RecordDict

    def asked(content: RecordDict) -> bytes:
        message = Message(content, 1, "train", group_id="0")
        message.metadata.__dict__.update(_src_node_id=1, _message_id="m")
        reply = carried(message, "door")
        assert list(reply.content) == [message_relay.RECORD]
        assert list(reply.content[message_relay.RECORD]) == [message_relay.ANSWER]
        return reply.content[message_relay.RECORD][message_relay.ANSWER]

    monkeypatch.setattr(message_relay, "ask_worker", lambda door, request: request + b"!")
    assert asked(RecordDict({"kinfolk": ConfigRecord({"request": b"r"})})) == b"r!"
    assert asked(RecordDict({})) == REFUSAL
    assert asked(RecordDict({"kinfolk": ConfigRecord({"request": "text"})})) == REFUSAL

    def broken(*_: Any) -> bytes:
        raise RuntimeError("rows 3 and 7")

    monkeypatch.setattr(message_relay, "ask_worker", broken)
    assert asked(RecordDict({"kinfolk": ConfigRecord({"request": b"r"})})) == REFUSAL


class FakeGrid:
    """A line on which answers come twice, wrong, late or never."""

    def __init__(self, replies: dict[int, list[Any]]) -> None:
        self.replies, self.nodes = replies, []

    def push_messages(self, messages: list[Any]) -> list[str]:
        self.nodes = [message.metadata.dst_node_id for message in messages]
        return [f"message to {node}" for node in self.nodes]

    def pull_messages(self, names: list[str]) -> list[Any]:
        if "message to 6" in names:
            time.sleep(60)  # announced, and not sent
        asked = [node for node in self.nodes if f"message to {node}" in names]
        found = [(f"message to {node}", reply) for node in asked for reply in self.replies.get(node, [])]
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name), **reply) for name, reply in found]


@needs_flower
@pytest.mark.usefixtures("flower_task")
def test_the_first_answer_counts_and_bad_ones_do_not() -> None:
    from kinfolk.deploy.flower_server import exchange

    def fine(answer: Any) -> dict[str, Any]:
        return {"has_error": lambda: False, "content": {"kinfolk": {"answer": answer}}}

    replies = {
        1: [fine(b"one"), fine(b"another")],
        2: [{"has_error": lambda: True}],
        3: [{"has_error": lambda: False, "content": {}}],
        4: [fine("text")],
    }
    nodes = {slot: slot + 1 for slot in range(7)}
    began = time.monotonic()
    replies[7] = [fine(b"seven")]
    assert exchange(FakeGrid(replies), nodes, b"r", "0", 2.0) == {0: b"one", 6: b"seven"}  # type: ignore[arg-type]
    assert time.monotonic() - began < 10  # node 5 never answers, node 6 would keep us for a minute
    assert exchange(FakeGrid({}), {}, b"r", "0", 1.0) == {}  # type: ignore[arg-type]


@needs_flower
def test_a_round_is_not_taken_when_flower_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answers because nobody could be asked: not a round of zeros, and nothing is charged."""
    from kinfolk.deploy import flower_server

    class Gone:
        calls = 0

        def get_nodes(self) -> list[Any]:
            self.calls += 1
            if self.calls > 2:  # it was there for the roll call, and when the round began
                raise ConnectionError("Flower is gone")
            return []

    study = study_of(level="client")
    monkeypatch.setattr(flower_server, "read_study", lambda folder: study)
    monkeypatch.setattr(flower_server, "node_keys", lambda study, folder: {})
    with pytest.raises(ConnectionError):
        flower_server.conduct(Gone(), tmp_path, round_seconds=1.0, wait_seconds=1.0, test_keys=True)  # type: ignore[arg-type]
    assert (tmp_path / "runs" / "ledger.jsonl").read_bytes() == b""
    assert not list(tmp_path.glob("runs/*/private/checkpoint.npz"))


@needs_flower
def test_a_test_federation_is_complete_and_its_secrets_are_its_owners(tmp_path: Path) -> None:
    from kinfolk.deploy.flower_server import node_keys

    write_demo(tmp_path / "f", ["localhost", "127.0.0.1"], 9092)
    server, silos = tmp_path / "f" / "server", tmp_path / "f" / "silos"
    study = read_study(server)
    assert len(node_keys(study, server / "keys")) == 3
    for name in study.roster.clients:
        policy = read_policy(silos / name / "policy.toml")
        assert read_study(silos / name).digest == study.digest
        assert len(read_table(silos / name, policy.data, study.roster)[0].y) >= 200
        assert stat.S_IMODE((silos / name / "node").stat().st_mode) == 0o600
        assert not (server / "keys" / name).exists()
    assert stat.S_IMODE((server / "server.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(server.stat().st_mode) == 0o700
    with pytest.raises(ConfigError, match="not empty"):
        write_demo(tmp_path / "f", ["localhost"], 9092)
