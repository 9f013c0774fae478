"""The small parts of a federation: tables, policies, the local socket, the carrier of messages, keys."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from federations import policy_of, study_of

from kinfolk.data.federation import DataError
from kinfolk.deploy import proxy
from kinfolk.deploy.commands import Command
from kinfolk.deploy.door import open_door, serve_one, wait_for_next
from kinfolk.deploy.gatekeeper import allowed
from kinfolk.deploy.policy import Columns, Policy, read_policy
from kinfolk.deploy.proxy import REFUSAL, ask_worker, carried, receive, send
from kinfolk.deploy.scaffold import policy_for, write_demo
from kinfolk.deploy.study import Roster, read_record, read_study
from kinfolk.deploy.table import read_table
from kinfolk.experiment import ConfigError, to_toml

needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="pip install 'kinfolk[flower]'")
ROSTER = Roster("r", ("a",), ("age", "dose"))
COLUMNS = Columns("d.csv", "d", "ill", {"age": (0.0, 100.0), "dose": (-1.0, 1.0)})


def table(tmp_path: Path, text: str) -> Path:
    (tmp_path / "d.csv").write_text(text)
    return tmp_path


def test_a_table_is_scaled_by_its_declared_bounds(tmp_path: Path) -> None:
    rows = read_table(table(tmp_path, "ill,name,dose,age\n1,x,0.5,25\n0,y,-1,100\n"), COLUMNS, ROSTER)
    np.testing.assert_allclose(rows.x, [[-0.5, 0.5], [1.0, -1.0]])
    assert rows.y.tolist() == [1, 0]
    assert rows.mask.all()


def test_a_number_to_predict_is_scaled_too(tmp_path: Path) -> None:
    columns = replace(COLUMNS, bounds={**COLUMNS.bounds, "ill": (0.0, 10.0)})
    rows = read_table(table(tmp_path, "ill,dose,age\n2.5,0,50\n"), columns, replace(ROSTER, outcome="number"))
    np.testing.assert_allclose(rows.y, [-0.5])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ill,dose\n1,0\n", "no column 'age'"),
        ("ill,dose,age\n", "no rows"),
        ("ill,dose,age\n1,0,\n", "line 2 of d.csv has no age"),
        ("ill,dose,age\n1,0,nan\n", "has no age"),
        ("ill,dose,age\n1,0\n", "has no age"),
        ("ill,dose,age\n1,0,old\n", "'old' in line 2 of d.csv is none"),
        ("ill,dose,age\n1,0,20\n1,0,101\n", "line 3 of d.csv has age=101, outside its bounds 0..100"),
        ("ill,dose,age\n2,0,20\n", "is yes or no"),
        ("ill,dose,age\n,0,20\n", "is empty in 1 row(s)"),
    ],
)
def test_a_bad_table_is_an_error_before_anything_is_sent(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError) as error:
        read_table(table(tmp_path, text), COLUMNS, ROSTER)
    assert said in str(error.value)


SCHEMA = """
[target]
name = "ill"
kind = "category"
values = ["healthy", "ill"]

[[columns]]
name = "age"
low = 0
high = 100
missing = "fill"

[[columns]]
name = "ward"
kind = "category"
values = ["a", "b"]
"""
WARDS = Roster("r", ("a",), ("age", "ward=a", "ward=b"), labels=("healthy", "ill"))


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow"])
def test_tables_are_read_as_train_reads_them(tmp_path: Path, ending: str) -> None:
    """Every format, with categories and gaps, and the same arrays as `kinfolk train` makes of the same schema."""
    import polars as pl

    from kinfolk.data.tables import encoded, understand
    from kinfolk.experiment import DataChoice

    frame = pl.DataFrame({"ward": ["b", "a"], "ill": ["ill", "healthy"], "age": [75.0, None]})
    path = tmp_path / f"d.{ending}"
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "arrow": frame.write_ipc}[ending](path)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    rows = read_table(tmp_path, Columns(path.name, "d", schema="schema.toml"), WARDS)
    np.testing.assert_allclose(rows.x, [[0.5, 0, 1], [0, 1, 0]])
    assert rows.y.tolist() == [1, 0]
    theirs = encoded(understand(DataChoice(files=(str(path),), schema=str(tmp_path / "schema.toml"))))
    np.testing.assert_array_equal(rows.x, theirs.x)
    np.testing.assert_array_equal(rows.y, theirs.y)


@pytest.mark.parametrize(
    ("change", "text", "roster", "said"),
    [
        (("", ""), "ward,ill,age\nc,ill,5\n", WARDS, "not in the vocabulary"),
        (("", ""), "ward,ill,age\na,ill,101\n", WARDS, "outside its bounds"),
        (("", ""), "ill,age\nill,5\n", WARDS, "no column 'ward'"),
        (("", ""), "ward,ill,age\na,ill,5\n", replace(WARDS, labels=("ill", "healthy")), "in the same order"),
        (("", ""), "ward,ill,age\na,ill,5\n", replace(WARDS, features=("age", "ward=b")), "but the study has"),
        (("high = 100", "high = 100\nconfirmed = false"), "ward,ill,age\na,ill,5\n", WARDS, "was guessed"),
        (("[target]", 'client = "id"\n[target]'), "ward,ill,age\na,ill,5\n", WARDS, "one client's"),
        (
            ("", ""),
            "ward,ill,age\na,ill,5\n",
            replace(WARDS, outcome="number", labels=()),
            "not what the study predicts",
        ),
    ],
)
def test_a_table_that_does_not_fit_schema_or_study_is_refused(
    tmp_path: Path, change: tuple[str, str], text: str, roster: Roster, said: str
) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA.replace(*change))
    with pytest.raises(DataError) as error:
        read_table(table(tmp_path, text), Columns("d.csv", "d", schema="schema.toml"), roster)
    assert said in str(error.value)


def test_bounds_must_be_declared(tmp_path: Path) -> None:
    columns = replace(COLUMNS, bounds={"age": (0.0, 100.0)})
    with pytest.raises(ConfigError, match=r"bounds\.dose"):
        read_table(table(tmp_path, "ill,dose,age\n1,0,20\n"), columns, ROSTER)


def test_a_policy_is_its_file(tmp_path: Path) -> None:
    policy = replace(policy_of(study_of(), "b"), data=COLUMNS)
    path = tmp_path / "policy.toml"
    path.write_text(to_toml(policy))
    assert read_policy(path) == policy
    path.write_text(to_toml(policy).replace("rounds", "round"))
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        read_policy(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_record(Policy, tmp_path / "missing.toml")


def test_a_first_policy_asks_for_its_bounds(tmp_path: Path) -> None:
    study = study_of()
    policy = policy_for(study, "a")
    with pytest.raises(ConfigError, match="lowest and its highest"):
        policy.data.limits("u")


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


def test_without_a_worker_the_answer_is_the_refusal(tmp_path: Path) -> None:
    assert ask_worker(str(tmp_path / "nobody"), b"request") == REFUSAL


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
    words = f"from kinfolk.deploy.commands import end_with; import time; end_with({server.pid}); print(1, flush=True)"
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

    monkeypatch.setattr(proxy, "_runtime", lambda *words: Node())
    monkeypatch.setattr(proxy, "_serve_task", serve_task)
    monkeypatch.setattr(proxy, "POLL", 0.01)
    with pytest.raises(SystemExit):
        proxy.serve_node("a", b"s" * 32, "door")
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
        assert list(reply.content) == [proxy.RECORD]
        assert list(reply.content[proxy.RECORD]) == [proxy.ANSWER]
        return reply.content[proxy.RECORD][proxy.ANSWER]

    monkeypatch.setattr(proxy, "ask_worker", lambda door, request: request + b"!")
    assert asked(RecordDict({"kinfolk": ConfigRecord({"request": b"r"})})) == b"r!"
    assert asked(RecordDict({})) == REFUSAL
    assert asked(RecordDict({"kinfolk": ConfigRecord({"request": "text"})})) == REFUSAL

    def broken(*_: Any) -> bytes:
        raise RuntimeError("rows 3 and 7")

    monkeypatch.setattr(proxy, "ask_worker", broken)
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
    from kinfolk.deploy.flower import exchange

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
    from kinfolk.deploy import flower

    class Gone:
        calls = 0

        def get_nodes(self) -> list[Any]:
            self.calls += 1
            if self.calls > 2:  # it was there for the roll call, and when the round began
                raise ConnectionError("Flower is gone")
            return []

    study = study_of(level="client")
    monkeypatch.setattr(flower, "read_study", lambda folder: study)
    monkeypatch.setattr(flower, "node_keys", lambda study, folder: {})
    with pytest.raises(ConnectionError):
        flower.conduct(Gone(), tmp_path, round_seconds=1.0, wait_seconds=1.0, test_keys=True)  # type: ignore[arg-type]
    assert (tmp_path / "runs" / "ledger.jsonl").read_bytes() == b""
    assert not list(tmp_path.glob("runs/*/private/checkpoint.npz"))


@needs_flower
def test_a_test_federation_is_complete_and_its_secrets_are_its_owners(tmp_path: Path) -> None:
    from kinfolk.deploy.flower import node_keys

    write_demo(tmp_path / "f", ["localhost", "127.0.0.1"], 9092)
    server, silos = tmp_path / "f" / "server", tmp_path / "f" / "silos"
    study = read_study(server)
    assert len(node_keys(study, server / "keys")) == 3
    for name in study.roster.clients:
        policy = read_policy(silos / name / "policy.toml")
        assert read_study(silos / name).digest == study.digest
        assert len(read_table(silos / name, policy.data, study.roster).y) >= 200
        assert stat.S_IMODE((silos / name / "node").stat().st_mode) == 0o600
        assert not (server / "keys" / name).exists()
    assert stat.S_IMODE((server / "server.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(server.stat().st_mode) == 0o700
    with pytest.raises(ConfigError, match="not empty"):
        write_demo(tmp_path / "f", ["localhost"], 9092)
