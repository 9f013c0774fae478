"""How the server listens: on two ports, and so that callers who say nothing keep nobody else out."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Any

from kinfolk.deploy.asgi import App

HANDSHAKE = 5.0
"""Seconds for the beginning of a connection, TLS."""
SILENCE = 10.0
"""Seconds that a connection may be open without a whole request's head, or with none under way."""
MOST_SILENT = 200
"""Connections without a request; beyond it the oldest one is closed."""
OPEN_FILES = 65536


def parsed(address: str) -> tuple[str, int]:
    """Host and port.

    >>> parsed("127.0.0.1:9092"), parsed("[::1]:9092")
    (('127.0.0.1', 9092), ('::1', 9092))
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"address={address!r}: give HOST:PORT")
    return host.strip("[]"), int(port)


def listener(host: str, port: int) -> socket.socket:
    """A listening socket."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    return socket.create_server((host, port), family=family, backlog=2048)


class PatientLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait for long for the beginning of a connection."""

    async def create_server(self, *words: Any, **options: Any) -> asyncio.Server:  # type: ignore[override]
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HANDSHAKE
        return await super().create_server(*words, **options)


def impatient(protocol: type, silence: float = SILENCE, most: int = MOST_SILENT) -> type:
    """A protocol of uvicorn that closes connections on which nothing happens.

    `protocol`: the class. `silence`: seconds. `most`: how many such connections there may be.
    """
    silent: dict[Any, None] = {}

    class Impatient(protocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            silent[self] = None
            if len(silent) > most:
                next(iter(silent)).transport.close()
            self._look_again()

        def _look_again(self) -> None:
            self._look = self.loop.call_later(silence, self._look_at_it)

        def _busy(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _look_at_it(self) -> None:
            if self._busy():
                self._look_again()
            else:
                self.transport.close()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._busy():
                silent.pop(self, None)
                self._look.cancel()
                self._look_again()

        def connection_lost(self, exc: Exception | None) -> None:
            silent.pop(self, None)
            self._look.cancel()
            super().connection_lost(exc)

    return Impatient


def configured(app: App, silence: float = SILENCE, most: int = MOST_SILENT, **options: Any) -> Any:
    """uvicorn's settings. Where a request says that it comes from decides nothing, and who calls is not logged."""
    import uvicorn

    options |= {"access_log": False, "proxy_headers": False, "ws": "none", "timeout_graceful_shutdown": 1}
    config = uvicorn.Config(app, **options)
    config.load()
    config.http_protocol_class = impatient(config.http_protocol_class, silence, most)  # type: ignore[arg-type]
    return config


def server(public: tuple[str, int]) -> Callable[..., None]:
    """What stands for `uvicorn.run`: the same, on the address for silos as well as on the given one."""

    def run(app: App, host: str, port: int, **options: Any) -> None:
        import uvicorn

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        config = configured(app, host=host, port=port, **options)
        with (
            asyncio.Runner(loop_factory=PatientLoop) as runner,
            listener(*public) as silos,
            listener(host, port) as rest,
        ):
            runner.run(uvicorn.Server(config).serve(sockets=[silos, rest]))

    return run
