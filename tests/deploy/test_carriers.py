"""How questions reach silos: by post or by Flower's messages, and what one silo can do to the others' round."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinfolk.deploy import carriers, post_office, post_socket
from kinfolk.deploy.carriers import ByGrid, ByPost, exchange
from kinfolk.deploy.post_office import Office
from kinfolk.deploy.post_socket import Post

KEYS = {b"a": 0, b"b": 1, b"c": 2}
needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="pip install 'kinfolk[flower]'")


@contextmanager
def open_office(folder: Path) -> Iterator[tuple[Office, asyncio.AbstractEventLoop, Post]]:
    """A post office with its socket, in a thread of its own."""
    loop, office, ready = asyncio.new_event_loop(), Office(), threading.Event()
    ended = asyncio.Event()

    async def run() -> None:
        async with post_socket.opened(office, folder / "post"):
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(20)
    try:
        yield office, loop, Post(folder / "post")
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def silo(office: Office, loop: asyncio.AbstractEventLoop, key: bytes, answers: Sequence[bytes | None]) -> None:
    """A silo that answers its questions one after the other; None: it takes the question and stops."""

    async def live() -> None:
        for answer in answers:
            question = await office.next_question(key, 20)
            if answer is None or question is None:
                return
            office.hand_in(key, question.name, question.body + answer)

    asyncio.run_coroutine_threadsafe(live(), loop)


def until(found: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.fast
def test_answers_come_by_post_and_nobody_holds_up_the_others(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "ROLL_CALL", 0.1)
    with open_office(short_folder) as (office, loop, post):
        way = ByPost(post, KEYS)
        for key, answers in ((b"a", [b"!", b"!"]), (b"b", [None]), (b"stranger", [b"?"])):
            silo(office, loop, key, answers)
        until(lambda: way.present() == {0, 1})
        began = time.monotonic()
        assert exchange([way], [0, 1, 2], b"one", 100, 1.0) == {0: b"one!"}
        assert time.monotonic() - began < 5
        assert (short_folder / "post").stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(post_office, "AWAY", 0.3)
        began = time.monotonic()
        assert exchange([way], [0, 1, 2], b"two", 100, 60.0) == {0: b"two!"}
        assert time.monotonic() - began < 20, "who has gone away is not waited for"


@pytest.mark.fast
def test_a_silo_that_comes_back_is_asked_again_in_the_same_round(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "ROLL_CALL", 0.05)
    with open_office(short_folder) as (office, loop, post):
        way = ByPost(post, KEYS)
        silo(office, loop, b"a", [None])  # killed with the question in its hands
        until(lambda: way.present() == {0})
        threading.Timer(0.4, silo, (office, loop, b"a", [b"!"])).start()
        began = time.monotonic()
        assert exchange([way], [0], b"one", 100, 60.0) == {0: b"one!"}
        assert time.monotonic() - began < 10


def test_an_answer_that_is_too_long_is_none(short_folder: Path) -> None:
    with open_office(short_folder) as (office, loop, post):
        way = ByPost(post, KEYS)
        silo(office, loop, b"a", [b"!" * 200])
        until(lambda: way.present() == {0})
        assert exchange([way], [0], b"one", 100, 0.5) == {}


class Slow:
    """A way on which everybody is there and nobody answers."""

    def __init__(self, places: set[int]) -> None:
        self.places, self.asked = places, []

    def present(self) -> set[int]:
        return self.places

    def ask(self, places: Collection[int], request: bytes, longest: int, seconds: float) -> None:
        self.asked.append(set(places))

    def collect(self, seconds: float) -> dict[int, bytes | None]:
        time.sleep(max(0.0, min(seconds, 0.05)))
        return {}

    def end(self) -> None:
        pass


def test_a_silo_is_asked_on_the_first_way_on_which_it_is_there() -> None:
    first, second = Slow({0}), Slow({0, 1})
    assert exchange([first, second], [0, 1, 2], b"one", 100, 0.3) == {}
    assert (first.asked, second.asked) == ([{0}], [{1}])


class FakeGrid:
    """A line on which answers come twice, wrong, late or never."""

    def __init__(self, replies: dict[int, list[Any]]) -> None:
        self.replies, self.nodes, self.groups = replies, {}, []

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(public_key=b"%d" % place, node_id=place + 1) for place in range(7)]

    def push_messages(self, messages: list[Any]) -> list[str]:
        names = [f"{message.metadata.group_id} to {message.metadata.dst_node_id}" for message in messages]
        self.groups += [message.metadata.group_id for message in messages]
        self.nodes |= {name: message.metadata.dst_node_id for name, message in zip(names, messages, strict=True)}
        return names

    def pull_messages(self, names: list[str]) -> list[Any]:
        (node,) = (self.nodes[name] for name in names)
        if node == 6:
            time.sleep(60)  # announced, and not sent
        return [SimpleNamespace(**reply) for reply in self.replies.get(node, [])]


@pytest.fixture
def flower_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages know which task they belong to."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def fine(answer: Any) -> dict[str, Any]:
    return {"has_error": lambda: False, "content": {"kinfolk": {"answer": answer}}}


@needs_flower
@pytest.mark.usefixtures("flower_task")
def test_the_first_answer_of_a_supernode_counts_and_bad_ones_do_not() -> None:
    replies = {
        1: [fine(b"one"), fine(b"another")],
        2: [{"has_error": lambda: True}],
        3: [{"has_error": lambda: False, "content": {}}],
        4: [fine("text")],
        7: [fine(b"seven")],
    }
    grid, keys = FakeGrid(replies), {b"%d" % place: place for place in range(7)}
    began = time.monotonic()
    assert exchange([ByGrid(grid, keys)], range(7), b"r", 100, 2.0) == {0: b"one", 6: b"seven"}  # type: ignore[arg-type]
    assert time.monotonic() - began < 10  # node 5 never answers, node 6 would keep us for a minute
    assert exchange([ByGrid(grid, keys)], [], b"r", 100, 1.0) == {}  # type: ignore[arg-type]


@needs_flower
@pytest.mark.usefixtures("flower_task")
def test_messages_to_supernodes_have_names_that_nobody_guesses_and_are_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carriers, "ROLL_CALL", 0.05)
    monkeypatch.setattr(carriers, "AGAIN", 0.2)
    grid = FakeGrid({})
    exchange([ByGrid(grid, {b"0": 0})], [0], b"r", 100, 1.0)  # type: ignore[arg-type]
    assert len(grid.groups) >= 2
    assert len(set(grid.groups)) == len(grid.groups)
    assert all(len(group) == 32 for group in grid.groups)
