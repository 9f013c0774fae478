"""A silo's line to its server: it calls, hands in its last answer, and waits for the next question.

Only the silo calls; nothing is open at its end. What comes back is bytes for the worker, never code. The line is taken
up again whenever it was cut, and an answer that may not have arrived is sent again.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kinfolk.deploy import flower_api
from kinfolk.deploy.listening import parsed
from kinfolk.deploy.message_relay import LONGEST_ANSWER
from kinfolk.deploy.post_office import Question
from kinfolk.deploy.superlink_guard import BEAT, NAME, POLL, TIME, VISIT

BEATS = 4.0
"""Seconds between two signs of life while the worker computes."""
PATIENCE = 30.0
"""Seconds that the server may take beyond those of the long poll."""
PAUSES = (0.1, 0.3, 1.0, 2.0)
"""Seconds before the line is taken up again; the last one again and again."""


class LineError(Exception):
    """The line was cut, or the server does not take this silo."""


class Line:
    """A connection that is opened when it is needed.

    `address`: the server's, `HOST:PORT`. `certificate`: of the authority that vouches for it. `key`: the silo's own.
    `longest`: bytes of a question that are taken.
    """

    def __init__(self, address: str, certificate: Path, key: Path, longest: int = LONGEST_ANSWER) -> None:
        self.host, self.port = parsed(address)
        self.longest, self._signed = longest, flower_api.signer(key)
        self._context = ssl.create_default_context(cafile=str(certificate))
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._open: http.client.HTTPSConnection | None = None

    def visit(self, name: str = "", answer: bytes = b"") -> Question | None:
        """Hands in the answer to the question of that name, and returns the next question, if one came in time."""
        reply, body = self._post(VISIT, {NAME: name} if name else {}, answer)
        return Question(reply.headers.get(NAME, ""), body) if reply.status == 200 else None

    def beat(self) -> None:
        """A sign of life."""
        self._post(BEAT, {}, b"")

    def close(self) -> None:
        """Hangs up; the next call opens the line again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _post(self, path: str, headers: dict[str, str], body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        was_open = self._open is not None
        try:
            return self._posted(path, headers, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if was_open and not isinstance(error, TimeoutError):  # it was closed while nobody spoke: that is usual
                return self._post(path, headers, body)
            raise LineError(f"no server at {self.host}:{self.port}: {error or type(error).__name__}") from None
        except LineError:
            self.close()
            raise

    def _posted(self, path: str, headers: dict[str, str], body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        if self._open is None:
            timeout = POLL + PATIENCE
            self._open = http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self._context)
        self._open.request("POST", path, body, {**headers, **self._signed()})
        reply = self._open.getresponse()
        if (reply.length or 0) > self.longest:
            raise LineError(f"a question of {reply.length} bytes is longer than the study's {self.longest}")
        content = reply.read(self.longest + 1)
        if reply.status not in (200, 204):
            raise LineError(_refused(reply, path))
        return reply, content


def _refused(reply: http.client.HTTPResponse, path: str) -> str:
    """Why the server does not take a request, as far as it can be told from here."""
    if reply.status >= 500:
        return f"the server at {path} is stopping or has no room ({reply.status})"
    if reply.status == 413:
        return "the server does not take an answer of this length now"
    if reply.status != 401:
        return f"the server answers {path} with {reply.status}: is it a kinfolk server of this version?"
    try:
        ahead = (datetime.now(UTC) - datetime.fromisoformat(reply.headers[TIME])).total_seconds()
    except (KeyError, TypeError, ValueError):
        ahead = 0.0
    if ahead > flower_api.CLOCKS_APART - 0.5 or ahead < -60:
        side = "ahead of" if ahead > 0 else "behind"
        return (
            f"this machine's clock is {abs(ahead):.0f} s {side} the server's, and signatures of another time are "
            f"refused (allowed: {flower_api.CLOCKS_APART:g} s ahead): set both clocks, with NTP, say"
        )
    return "the server does not know this silo's key: send it node.pub, or wait until it has started"


def serve(line: Line, answer: Callable[[bytes], bytes], say: Callable[[str], None] = print) -> None:
    """Takes questions and hands in what `answer` makes of them, for ever. `say`: is told of troubles, once each."""
    done, trouble, tries, connected = ("", b""), "", 0, False
    while True:
        try:
            if not connected:
                line.beat()  # a visit may take a while; whether there is a line is said at once
                say("connected")
            connected, trouble = True, ""
            question = line.visit(*done)
        except LineError as error:
            connected = False
            if str(error) != trouble:
                trouble = str(error)
                say(f"{trouble}; trying again")
            time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1
            if tries > 2:  # nobody may want it any more; whoever does asks again, and gets it again
                done = ("", b"")
            continue
        tries = 0
        done = ("", b"") if question is None else (question.name, answer(question.body))


@contextmanager
def signs_of_life(line: Line) -> Iterator[Callable[[Callable[[bytes], bytes]], Callable[[bytes], bytes]]]:
    """What wraps an answering function so that the server hears of the silo while it computes; on a line of its own."""
    busy, ended = threading.Event(), threading.Event()

    def keep() -> None:
        while not ended.wait(BEATS):
            try:
                if busy.is_set():
                    line.beat()
                else:
                    line.close()
            except LineError:
                continue

    def wrapped(answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        def answered(request: bytes) -> bytes:
            busy.set()
            try:
                return answer(request)
            finally:
                busy.clear()

        return answered

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield wrapped
    finally:
        ended.set()
        thread.join(BEATS)
