"""Flower's SuperLink with a guard in front, and the post office beside it.

Flower serves three interfaces on one port. Silos need `fleet`, where their keys are checked. `control` starts runs (of
any code) and `runtime` hands out the server's tasks; without an account service neither asks who is calling. So there
are two ports: one that silos call, where only `fleet` and the post office answer, and one on this machine for the rest.
Which of them a request came in by decides, and not what it says of its origin: a program on this machine that passes
connections on makes everybody local.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from kinfolk.deploy import flower_api, listening, post_socket
from kinfolk.deploy.asgi import App, Event, Receive, Scope, Send
from kinfolk.deploy.post_office import Office

PUBLIC = "KINFOLK_PUBLIC"
"""The environment variable with the address that silos call, `HOST:PORT`."""
VISIT, BEAT = flower_api.FLEET + "kinfolk-visit", flower_api.FLEET + "kinfolk-beat"
NAME = "kinfolk-question"
"""The header with a question's name: of the one that is answered in a request, of the one that is asked in a reply."""
TIME = "kinfolk-time"
"""The header with the server's time, for a silo whose signature is of another one."""
POLL = 20.0
"""Seconds that a silo waits for a question before it calls again."""
SLACK = 2**20
"""Bytes of a request besides an answer."""
SLOWEST = 20_000.0
"""Bytes in a second; a slower request is cut off, some seconds for the start apart."""
BEGINNING = 30.0


class Guard:
    """Middleware, before all of Flower's.

    `app`: what it guards. `office`: where questions and answers are. `port`: the one that silos call.
    """

    def __init__(self, app: App, office: Office, port: int) -> None:
        self.app, self.office, self.port = app, office, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        path, public = scope.get("path", ""), (scope.get("server") or (None, None))[1] == self.port
        if scope["type"] != "http" or not allowed(path, public):
            await _reply(send, 403)
        elif path in (VISIT, BEAT):
            await self._visited(scope, receive, send, path)
        elif not public:
            await self.app(scope, receive, send)
        elif (body := await read_body(receive, self.office.longest + SLACK)) is None:
            await _reply(send, 413)
        elif path == flower_api.PUSH and flower_api.speaks_for_another(body):
            await _reply(send, 403)
        else:
            await self.app(scope, _again(body, receive), send)

    async def _visited(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        """A silo's visit: its answer is taken, and it is given a question when there is one."""
        key = flower_api.caller(scope)
        if key is None:
            await _reply(send, 401, headers={TIME: datetime.now(UTC).isoformat()})
            return
        if path == BEAT:
            self.office.beat(key)
            await _reply(send, 204)
            return
        answer = await read_body(receive, self.office.longest)
        if answer is None:
            await _reply(send, 413)
            return
        name = dict(scope["headers"]).get(NAME.encode(), b"").decode("latin1")
        if name:
            self.office.hand_in(key, name, answer)
        waiting = asyncio.ensure_future(self.office.next_question(key, POLL))
        left = asyncio.ensure_future(_gone(receive))
        await asyncio.wait({waiting, left}, return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if not waiting.done():
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
        elif (question := waiting.result()) is None:
            await _reply(send, 204)
        else:
            await _reply(send, 200, question.body, {NAME: question.name})


def allowed(path: str, public: bool) -> bool:
    """Whether a path is served at all: on the silos' port only what silos need.

    >>> allowed("/v1/fleet/pull-messages", True), allowed("/v1/control/start-run", True)
    (True, False)
    """
    return not public or (path.startswith(flower_api.FLEET) and ".." not in path)


async def read_body(receive: Receive, longest: int) -> bytes | None:
    """A request's body; None where it is longer, comes too slowly, or ends too soon."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BEGINNING + longest / SLOWEST):
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    return None
                parts.append(event.get("body", b""))
                size += len(parts[-1])
                if size > longest:
                    return None
                if not event.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        return None


def _again(body: bytes, receive: Receive) -> Receive:
    """What hands out a body that was read, and then what comes after it."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Event:
        return parts.pop() if parts else await receive()

    return read


async def _gone(receive: Receive) -> None:
    """Returns when the caller has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _reply(send: Send, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
    told = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    if status != 204:
        told.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """`python -m kinfolk.deploy.superlink_guard`, with `flower-superlink`'s options for the local port."""
    address, office = listening.parsed(os.environ[PUBLIC]), Office()

    @asynccontextmanager
    async def beside(app: object) -> AsyncIterator[None]:
        async with post_socket.opened(office, Path(os.environ[post_socket.SOCKET])):
            yield

    flower_api.run_superlink(lambda app: Guard(app, office, address[1]), beside, listening.server(address))


if __name__ == "__main__":
    main()
