"""Where the server leaves its questions and the silos their answers: in the SuperLink's memory, and nowhere else.

A silo is its public key. It has at most one question at a time; it is given it as often as it asks until it has
answered, so that a silo that was stopped in between gets it again. Each question has a name that nobody can guess, and
an answer counts only when it comes from the silo that was asked, under the name of its open question.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

AWAY = 15.0
"""Seconds without a sign of life after which a silo is away."""


class Question(NamedTuple):
    """What a silo is asked, and the name under which it answers."""

    name: str
    body: bytes


class Office:
    """Questions and answers. All of it runs in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.longest = 0
        """Bytes of the longest answer that is taken."""
        self._questions: dict[bytes, Question] = {}
        self._answers: dict[str, bytes] = {}
        self._seen: dict[bytes, float] = {}
        self._here: Counter[bytes] = Counter()
        self._bells: dict[bytes, asyncio.Event] = {}
        self._news = asyncio.Event()

    def present(self) -> list[bytes]:
        """The silos that wait for a question now, or have shown a sign of life just before."""
        now = self.clock()
        return [key for key, seen in self._seen.items() if self._here[key] or now - seen < AWAY]

    def beat(self, key: bytes) -> None:
        """A silo's sign of life."""
        self._seen[key] = self.clock()

    def hand_in(self, key: bytes, name: str, answer: bytes) -> bool:
        """Takes a silo's answer, if that is what it was asked."""
        self.beat(key)
        asked = self._questions.get(key)
        if asked is None or asked.name != name or len(answer) > self.longest:
            return False
        del self._questions[key]
        self._answers[name] = answer
        self._news.set()
        return True

    async def next_question(self, key: bytes, seconds: float) -> Question | None:
        """The silo's open question, or the one that comes within some seconds."""
        until = self.clock() + seconds
        self._here[key] += 1
        self.beat(key)
        try:
            while (found := self._questions.get(key)) is None and (left := until - self.clock()) > 0:
                bell = self._bells.setdefault(key, asyncio.Event())
                await _within(bell, left)
            return found
        finally:
            self._here[key] -= 1
            self.beat(key)

    def ask(self, names: Mapping[bytes, str], body: bytes, longest: int) -> None:
        """Leaves a question, the same for some silos; an older one that is still open is taken back."""
        self.longest = longest
        for key, name in names.items():
            self._questions[key] = Question(name, body)
            self._bells.pop(key, asyncio.Event()).set()

    async def collect(self, names: Iterable[str], seconds: float) -> dict[str, bytes]:
        """The answers that are there, at once; where there is none, the first that comes within some seconds."""
        until, wanted = self.clock() + seconds, list(names)
        while True:
            self._news.clear()
            found = {name: self._answers.pop(name) for name in wanted if name in self._answers}
            left = until - self.clock()
            if found or left <= 0:
                return found
            await _within(self._news, left)

    def clear(self) -> None:
        """Forgets all questions and answers: nobody waits for them any more."""
        self._questions.clear()
        self._answers.clear()


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
