"""What stands before Flower: who gets through on which port, who may answer for whom, and who keeps others waiting."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest

from kinfolk.deploy import flower_api, listening, silo_line
from kinfolk.deploy.listening import parsed
from kinfolk.deploy.silo_line import Line, LineError, serve, signs_of_life
from kinfolk.deploy.superlink_guard import NAME, VISIT
from tests.deploy.lines import Guarded, guarded, is_closed

pytestmark = pytest.mark.skipif(find_spec("flwr") is None, reason="pip install 'kinfolk[flower]'")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("guarded"), silence=1.0, most=50) as found:
        yield found


def called(server: Guarded, port: int, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> int:
    context = ssl.create_default_context(cafile=str(server.folder / "ca.crt"))
    line = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
    line.request("POST", path, body, headers or {})
    status = line.getresponse().status
    line.close()
    return status


def test_the_silos_port_serves_silos_only_whoever_calls(server: Guarded) -> None:
    """A caller from this machine, or one that says so, may be anybody behind a program that passes connections on."""
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/", "/docs", "/v1/fleet/../control/start-run"):
        assert called(server, server.port, path) == 403
        assert called(server, server.port, path, headers={"X-Forwarded-For": "127.0.0.1"}) == 403
        assert called(server, server.local, path) == 200
    assert called(server, server.port, "/v1/fleet/pull-messages") == 200


def test_a_node_cannot_reply_in_anothers_name(server: Guarded) -> None:
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node

    for source, status in ((1, 200), (2, 403)):
        message = Message(metadata=Metadata(src_node_id=source))
        body = PushMessagesRequest(node=Node(node_id=1), messages_list=[message]).SerializeToString()
        assert called(server, server.port, flower_api.PUSH, body) == status
        assert ((flower_api.PUSH, body) in server.reached) == (status == 200)


def test_what_is_too_long_is_not_read(server: Guarded) -> None:
    assert called(server, server.port, "/v1/fleet/push-object", b"x" * (2**20 + 200)) == 413


def test_a_silo_answers_its_own_question_only(server: Guarded) -> None:
    a, b = server.line("a"), server.line("b")
    server.ask(a="secret-name-a", b="secret-name-b")
    assert a.visit() == ("secret-name-a", b"question")
    assert a.visit() == ("secret-name-a", b"question"), "a silo that was stopped in between gets it again"
    assert b.visit("secret-name-a", b"forged") == ("secret-name-b", b"question")
    assert server.collect("secret-name-a", seconds=0.1) == {}
    server.ask(b="another")
    b.visit("secret-name-b", b"late")
    assert server.collect("secret-name-b", seconds=0.1) == {}, "that question was taken back"
    server.ask(a="next")
    with pytest.raises(LineError, match="of this length"):
        a.visit("next", b"answer" * 20)
    threading.Thread(target=a.visit, args=("next", b"answer")).start()
    assert server.collect("next") == {"next": b"answer"}
    assert server.key("a") in server.present()
    server.ask(a="end")


def test_a_stranger_is_not_let_in(server: Guarded) -> None:
    with pytest.raises(LineError, match="does not know this silo's key"):
        server.line("stranger").visit()
    assert called(server, server.port, VISIT, headers={NAME: "x"}) == 401


@pytest.mark.parametrize(("seconds", "said"), [(7.0, "7 s ahead of"), (-400.0, "400 s behind")])
def test_a_wrong_clock_is_named(server: Guarded, monkeypatch: pytest.MonkeyPatch, seconds: float, said: str) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(seconds=seconds)

    monkeypatch.setattr(flower_api, "datetime", Wrong)
    monkeypatch.setattr(silo_line, "datetime", Wrong)
    with pytest.raises(LineError, match=r"clock is \d+ s (ahead of|behind)") as found:
        server.line("a").visit()
    words = said.split(" ", 1)
    assert words[1] in str(found.value)
    assert abs(float(words[0]) - float(str(found.value).split("clock is ")[1].split()[0])) <= 2


def test_callers_who_say_nothing_keep_nobody_out(server: Guarded) -> None:
    context = ssl.create_default_context(cafile=str(server.folder / "ca.crt"))
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
    greeted = [context.wrap_socket(one, server_hostname="127.0.0.1") for one in silent[:55]]
    assert is_closed(greeted[0], 0.9), "there may be 50 of them; the oldest goes first"
    server.ask(b="again")
    began = time.monotonic()
    assert server.line("b").visit() is not None
    assert time.monotonic() - began < 5
    assert all(is_closed(one, 10) for one in greeted)
    for one in (*silent[55:], *greeted):
        one.close()


def test_a_connection_that_does_not_begin_is_closed_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a handshake is the only one here: a connection may be silent for a minute."""
    monkeypatch.setattr(listening, "HANDSHAKE", 0.5)
    with guarded(tmp_path, silence=60.0) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as silent:
            assert is_closed(silent, 5.0)
        with socket.create_connection(("127.0.0.1", server.port)) as slow:  # a hello's first bytes, and no more
            slow.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert is_closed(slow, 5.0)
        context = ssl.create_default_context(cafile=str(server.folder / "ca.crt"))
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as begun,
        ):
            assert not is_closed(begun, 1.0)


def test_a_line_that_was_cut_is_taken_up_again(server: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    troubles: list[str] = []
    visits = iter([LineError("cut"), LineError("cut"), None])
    line, real, answers = server.line("a"), Line.visit, []

    def visit(self: Line, *words: object) -> object:
        if len(answers) == 2:
            raise Ended
        trouble = next(visits, None)
        if trouble is not None:
            raise trouble
        return real(self, *words)  # type: ignore[arg-type]

    def answer(request: bytes) -> bytes:
        answers.append(request)
        server.ask(a=f"number-{len(answers)}")
        return b"answer"

    monkeypatch.setattr(Line, "visit", visit)
    server.ask(a="first")
    with pytest.raises(Ended):
        serve(line, answer, troubles.append)
    assert answers == [b"question", b"question"]
    assert troubles == ["connected", "cut; trying again", "connected", "cut; trying again", "connected"]


def test_a_silo_is_heard_of_while_it_computes(server: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silo_line, "BEATS", 0.05)
    server.office._seen.clear()
    with signs_of_life(server.line("b")) as heard:
        heard(lambda request: bytes(time.sleep(0.5) or 0))(b"")
    assert server.key("b") in server.present()


def test_nobody_at_home_is_said(tmp_path: Path, server: Guarded) -> None:
    line = Line("127.0.0.1:1", server.folder / "ca.crt", server.folder / "a")
    with pytest.raises(LineError, match="no server at"):
        line.visit()
    with pytest.raises(ValueError, match="HOST:PORT"):
        parsed("nowhere")
