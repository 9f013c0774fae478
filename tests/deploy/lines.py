"""A guarded server on loopback for tests: TLS and node keys as in a federation, and a stand-in for Flower's app."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kinfolk.deploy import listening
from kinfolk.deploy.keys import node_key, write_certificates, write_node_key
from kinfolk.deploy.post_office import Office
from kinfolk.deploy.silo_line import Line
from kinfolk.deploy.superlink_guard import Guard


@dataclass
class Guarded:
    """A running server. `folder`: certificates and the keys of silos `a` and `b`, and of `stranger`."""

    folder: Path
    office: Office
    port: int
    local: int
    loop: asyncio.AbstractEventLoop
    reached: list[tuple[str, bytes]] = field(default_factory=list)
    """Paths and bodies that got through to Flower."""
    lines: list[Line] = field(default_factory=list)

    def line(self, name: str, longest: int = 1000) -> Line:
        self.lines.append(Line(f"127.0.0.1:{self.port}", self.folder / "ca.crt", self.folder / name, longest))
        return self.lines[-1]

    def key(self, name: str) -> bytes:
        return node_key(self.folder / f"{name}.pub")

    def ask(self, **questions: str) -> None:
        """Asks silos, each under a name."""
        names = {self.key(silo): name for silo, name in questions.items()}
        self.loop.call_soon_threadsafe(self.office.ask, names, b"question", 100)

    def collect(self, *names: str, seconds: float = 10.0) -> dict[str, bytes]:
        return asyncio.run_coroutine_threadsafe(self.office.collect(names, seconds), self.loop).result()

    def present(self) -> list[bytes]:
        async def told() -> list[bytes]:
            return self.office.present()

        return asyncio.run_coroutine_threadsafe(told(), self.loop).result()


@contextmanager
def guarded(folder: Path, silence: float = 10.0, most: int = 200) -> Iterator[Guarded]:
    import uvicorn

    write_certificates(folder, ["127.0.0.1"])
    for name in ("a", "b", "stranger"):
        write_node_key(folder, name)
    known = {node_key(folder / f"{name}.pub"): number for number, name in enumerate(("a", "b"), 1)}
    state = SimpleNamespace(get_node_id_by_public_key=known.get)
    app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: state)))
    with listening.listener("127.0.0.1", 0) as public, listening.listener("127.0.0.1", 0) as local:
        ports = [listener.getsockname()[1] for listener in (public, local)]
        server = Guarded(folder, Office(), *ports, loop=listening.PatientLoop())

        async def stand_in(scope: Any, receive: Any, send: Any) -> None:
            server.reached.append((scope["path"], (await receive())["body"]))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"flower"})

        guard = Guard(stand_in, server.office, server.port)

        async def with_app(scope: Any, receive: Any, send: Any) -> None:
            await guard({**scope, "app": app}, receive, send)

        files = {"ssl_certfile": str(folder / "server.crt"), "ssl_keyfile": str(folder / "server.key")}
        config = listening.configured(with_app, silence, most, lifespan="off", log_level="error", **files)
        running = uvicorn.Server(config)
        thread = threading.Thread(
            target=lambda: server.loop.run_until_complete(running.serve(sockets=[public, local])), daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            for line in server.lines:
                line.close()
            running.should_exit = True
            thread.join(20)
            server.loop.close()


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side hangs up within some seconds."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
