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

import jax
import numpy as np
import pytest

from kinfolk.accounting.ledger import read_lines
from kinfolk.deploy import flower_api, message_relay
from kinfolk.deploy.flower_processes import Command
from kinfolk.deploy.local_socket import open_door, serve_one, wait_for_next
from kinfolk.deploy.message_relay import REFUSAL, ask_worker, carried, receive, send
from kinfolk.deploy.policy import read_policy
from kinfolk.deploy.scaffold import write_demo
from kinfolk.deploy.silo_table import read_table
from kinfolk.deploy.study import read_study
from kinfolk.deploy.wire import pack, read_header
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
    assert ask_worker(str(tmp_path / "nobody"), b"request", starting=0.0) == REFUSAL


@pytest.mark.fast
def test_a_worker_that_is_not_there_yet_is_waited_for(short_folder: Path) -> None:
    """Or a silo that still compiles would be a zero message in the first rounds."""
    door, found = short_folder / "door", []
    asking = threading.Thread(target=lambda: found.append(ask_worker(str(door), b"abc", starting=30.0)))
    asking.start()
    time.sleep(0.3)
    with open_door(door) as listener:
        for cut in (True, False):  # the first worker is stopped with the request in its hands
            connection, _ = listener.accept()
            with connection:
                if not cut:
                    serve_one(Echo(), connection)  # type: ignore[arg-type]
    asking.join()
    assert found == [b"cba"]


def test_a_worker_that_dies_of_a_request_is_not_asked_for_ever(short_folder: Path) -> None:
    door, found = short_folder / "door", []
    with open_door(door) as listener:
        asking = threading.Thread(target=lambda: found.append(ask_worker(str(door), b"abc", starting=30.0)))
        asking.start()
        for _ in range(2):
            listener.accept()[0].close()
        asking.join()
    assert found == [REFUSAL]


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

    def next_task() -> str:
        token = next(tokens, None)
        if token is None:
            raise SystemExit
        return token

    def do_task(address: str, token: str, reply: object) -> None:
        (served.set if token == "next" else rest.wait)()

    monkeypatch.setattr(flower_api, "task_source", lambda *words: next_task)
    monkeypatch.setattr(flower_api, "do_task", do_task)
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
        assert list(reply.content) == [flower_api.RECORD]
        assert list(reply.content[flower_api.RECORD]) == [flower_api.ANSWER]
        return reply.content[flower_api.RECORD][flower_api.ANSWER]

    monkeypatch.setattr(message_relay, "ask_worker", lambda door, request: request + b"!")
    assert asked(RecordDict({"kinfolk": ConfigRecord({"request": b"r"})})) == b"r!"
    assert asked(RecordDict({})) == REFUSAL
    assert asked(RecordDict({"kinfolk": ConfigRecord({"request": "text"})})) == REFUSAL

    def broken(*_: Any) -> bytes:
        raise RuntimeError("rows 3 and 7")

    monkeypatch.setattr(message_relay, "ask_worker", broken)
    assert asked(RecordDict({"kinfolk": ConfigRecord({"request": b"r"})})) == REFUSAL


@needs_flower
def test_a_round_is_not_taken_when_flower_is_gone(tmp_path: Path) -> None:
    """No answers because nobody could be asked: not a round of zeros, and nothing is charged."""
    from kinfolk.deploy.flower_server import conduct

    class Gone:
        calls = 0

        def present(self) -> set[int]:
            self.calls += 1
            if self.calls > 2:  # it was there for the roll call, and when the round began
                raise ConnectionError("the SuperLink is gone")
            return {0, 1, 2}

        def ask(self, places: Any, request: bytes, longest: int, seconds: float) -> None:
            pass

        def collect(self, seconds: float) -> dict[int, bytes | None]:
            return dict.fromkeys(range(3))

        def end(self) -> None:
            pass

    with pytest.raises(ConnectionError):
        conduct([Gone()], tmp_path, study_of(level="client"), round_seconds=1.0, wait_seconds=1.0, test_keys=True)
    assert (tmp_path / "runs" / "ledger.jsonl").read_bytes() == b""
    assert not list(tmp_path.glob("runs/*/private/checkpoint.npz"))


class Away:
    """A way on which nobody is there after the first round."""

    def __init__(self, study: Any, rounds: int) -> None:
        self.study, self.left, self.request = study, rounds, b""

    def present(self) -> set[int]:
        return {0, 1, 2} if self.left else set()

    def ask(self, places: Any, request: bytes, longest: int, seconds: float) -> None:
        self.request = request

    def collect(self, seconds: float) -> dict[int, bytes | None]:
        header = {key: value for key, value in read_header(self.request)[0].items() if key != "kind"}
        form = self.study.message_shapes[0]
        answer = pack(header, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form))
        return dict.fromkeys(range(3), answer)

    def end(self) -> None:
        self.left -= bool(self.left)


@pytest.mark.parametrize("level", ["example", "client"])
def test_a_server_without_its_silos_waits_and_stops(tmp_path: Path, level: str) -> None:
    """It used to run the rest of its rounds with nobody, and to pay for them at client level."""
    from kinfolk.deploy.flower_server import STOPPED, TooFewError, conduct

    study = study_of("fedavg", level, rounds=3)
    done = 1 if level == "example" else 0  # at client level a round counts when they are still there after it
    with pytest.raises(TooFewError, match=rf"round {done}: 0 of 3 silos were heard of after .* quorum=1"):
        conduct([Away(study, 1)], tmp_path, study, round_seconds=5.0, wait_seconds=0.2, test_keys=True)
    (told,) = tmp_path.glob(f"runs/*/private/{STOPPED}")
    assert "quorum=1" in told.read_text()
    assert not list(tmp_path.glob("runs/*/public/statement.json"))
    assert read_lines(tmp_path / "runs" / "ledger.jsonl") == []


@needs_flower
def test_a_test_federation_is_complete_and_its_secrets_are_its_owners(tmp_path: Path) -> None:
    from kinfolk.deploy.flower_server import node_keys

    write_demo(tmp_path / "f", ["localhost", "127.0.0.1"])
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
        write_demo(tmp_path / "f", ["localhost"])
