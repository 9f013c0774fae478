"""The ways on which a server's questions reach its silos: the post office, and Flower's messages for SuperNodes.

Both know silos by the keys of their nodes, which Flower has checked, and name them by their places in the roster.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from kinfolk.deploy import flower_api
from kinfolk.deploy.post_socket import Post

if TYPE_CHECKING:
    from flwr.serverapp import Grid

POLL = 0.5
"""Seconds between two looks for a SuperNode's answer."""
MOST_LOOKS = 15
"""Looks in a second, at all SuperNodes' answers together."""
ROLL_CALL = 2.0
"""Seconds between two looks at who is there."""
AGAIN = 60.0
"""Seconds after which a SuperNode that has not answered is asked again: Flower delivers a message once."""


class Carrier(Protocol):
    """A way to silos, by their places."""

    def present(self) -> set[int]:
        """The silos that are there, on this way."""
        ...

    def ask(self, places: Collection[int], request: bytes, longest: int, seconds: float) -> None:
        """Asks silos. `longest`: bytes of an answer. `seconds`: how long one is waited for."""
        ...

    def collect(self, seconds: float) -> dict[int, bytes | None]:
        """What was answered since the last time, None for nonsense; waits for it for some seconds."""
        ...

    def end(self) -> None:
        """Takes back what was asked."""
        ...


class ByPost:
    """To silos with kinfolk's own line. `keys`: for the public key of every silo its place."""

    def __init__(self, post: Post, keys: Mapping[bytes, int]) -> None:
        self.post, self.keys = post, keys
        self._open: dict[str, int] = {}

    def present(self) -> set[int]:
        return {self.keys[key] for key in self.post.present() if key in self.keys}

    def ask(self, places: Collection[int], request: bytes, longest: int, seconds: float) -> None:
        wanted = [key for key, place in self.keys.items() if place in places]
        self._open |= {name: self.keys[key] for name, key in self.post.ask(wanted, request, longest).items()}

    def collect(self, seconds: float) -> dict[int, bytes | None]:
        found = self.post.collect(list(self._open), max(0.0, seconds))
        return {self._open.pop(name): answer for name, answer in found.items()}

    def end(self) -> None:
        self._open = {}
        self.post.clear()


class ByGrid:
    """To silos with a SuperNode. `keys`: for the public key of every silo its place.

    Every answer is fetched by a thread of its own: a node that announces an answer and does not send it keeps Flower
    waiting for minutes, and nobody else shall wait with it.
    """

    def __init__(self, grid: Grid, keys: Mapping[bytes, int]) -> None:
        self.grid, self.keys = grid, keys
        self._found: SimpleQueue[tuple[str, int, bytes | None]] = SimpleQueue()
        self._asking = ""

    def nodes(self) -> dict[int, int]:
        """The nodes that are there now, by place. A node with another key is nobody."""
        return {self.keys[key]: node for key, node in flower_api.nodes_of(self.grid).items() if key in self.keys}

    def present(self) -> set[int]:
        return set(self.nodes())

    def ask(self, places: Collection[int], request: bytes, longest: int, seconds: float) -> None:
        nodes = self.nodes()
        asked = [place for place in places if place in nodes]
        if not asked:
            return
        self._asking = self._asking or secrets.token_hex(16)
        secret = secrets.token_hex(16)  # without it a message's name can be guessed, and answered by another silo
        names = flower_api.push(self.grid, [nodes[place] for place in asked], request, secret, seconds)
        until, pause = time.monotonic() + seconds, max(POLL, len(asked) / MOST_LOOKS)
        for place, name in zip(asked, names, strict=True):
            if name:
                words = (self._asking, place, name, until, pause)
                threading.Thread(target=self._fetch, args=words, daemon=True).start()

    def _fetch(self, asking: str, place: int, name: str, until: float, pause: float) -> None:
        with suppress(Exception):  # whatever is wrong with one answer is wrong with that answer only
            while time.monotonic() < until and asking == self._asking:
                for answer in flower_api.pull(self.grid, name):
                    self._found.put((asking, place, answer))
                    return
                time.sleep(pause)

    def collect(self, seconds: float) -> dict[int, bytes | None]:
        found: dict[int, bytes | None] = {}
        with suppress(Empty):
            while True:
                asking, place, answer = self._found.get(timeout=0.0 if found else max(seconds, 0.001))
                if asking == self._asking:
                    found.setdefault(place, answer)
        return found

    def end(self) -> None:
        self._asking = ""


def exchange(
    carriers: Sequence[Carrier],
    places: Collection[int],
    request: bytes | Mapping[int, bytes],
    longest: int,
    seconds: float,
) -> dict[int, bytes]:
    """Asks silos, by place, and collects what they answer in time. The first answer of a silo counts.

    Who goes away is not waited for; who comes back is asked again. A silo is asked on the first way on which it is
    there. `carriers`: the ways. `request`: the question, or one for each. `longest`: bytes of an answer. `seconds`: for
    all of it.
    """
    answers: dict[int, bytes] = {}
    waiting, here, asked = set(places), dict[int, Carrier](), dict[int, tuple[Carrier, float]]()
    until, look = time.monotonic() + seconds, 0.0
    try:
        while waiting and (now := time.monotonic()) < until:
            if now >= look:
                look = now + ROLL_CALL
                here = roll_call(carriers, waiting)
                for way in carriers:
                    new = [p for p in waiting if here.get(p) is way and _is_due(asked.get(p), way, now)]
                    for same, question in _questions(request, new).items():
                        way.ask(same, question, longest, until - now)
                    asked |= dict.fromkeys(new, (way, now))
                if not here:
                    break
            used = [way for way in carriers if any(here.get(place) is way for place in waiting)]
            for way in used:
                found = way.collect(min(until, look) - time.monotonic() if len(used) == 1 else 0.05)
                answers |= {place: answer for place, answer in found.items() if answer is not None}
                waiting -= set(found)
            if used and not any(here.get(place) for place in waiting):
                look = 0.0
    finally:
        for way in carriers:
            way.end()
    return answers


def _questions(request: bytes | Mapping[int, bytes], places: Sequence[int]) -> dict[tuple[int, ...], bytes]:
    """What to ask whom: everybody the same at once, or each something else."""
    if isinstance(request, bytes):
        return {tuple(places): request} if places else {}
    return {(place,): request[place] for place in places}


def roll_call(carriers: Sequence[Carrier], places: Collection[int]) -> dict[int, Carrier]:
    """Which silos are there, each with the first way on which it is."""
    here: dict[int, Carrier] = {}
    for way in carriers:
        missing = set(places) - set(here)
        if missing:
            here |= dict.fromkeys(missing & way.present(), way)
    return here


def _is_due(asked: tuple[Carrier, float] | None, way: Carrier, now: float) -> bool:
    """Whether a silo is to be asked: for the first time, on another way, or again where messages get lost."""
    if asked is None or asked[0] is not way:
        return True
    return isinstance(way, ByGrid) and now - asked[1] > AGAIN
