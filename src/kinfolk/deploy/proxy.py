"""What Flower starts at a silo for every message: it carries the bytes to the silo's worker and back, nothing else.

Flower would install and run the app that the server sends; then the server could run any code beside the silo's data.
This program stands in the place of `flwr-clientapp` and runs itself instead: no code comes over the network. It is run
by its path and must not import kinfolk, which would load jax for every message.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

REFUSAL = b'{"refused": true}\n'
"""The one answer to every request that is not served, whatever the reason."""
DOOR = "KINFOLK_DOOR"
"""The environment variable that says where the worker's socket is."""
RECORD, REQUEST, ANSWER = "kinfolk", "request", "answer"
LONGEST_ANSWER = 2**31


def receive(connection: socket.socket, longest: int) -> bytes:
    """One message: its length in 8 bytes, then itself."""
    (length,) = struct.unpack(">Q", _exactly(connection, 8))
    if length > longest:
        raise ValueError(f"a message of {length} bytes is longer than {longest}")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(2**20, count - len(parts)))
        if not part:
            raise ConnectionError("the other side has hung up")
        parts += part
    return bytes(parts)


def send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(struct.pack(">Q", len(message)) + message)


def ask_worker(door: str, request: bytes, seconds: float = 600.0) -> bytes:
    """The worker's answer. Without a worker it is the refusal: data-free, and the server goes on."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(seconds)
            connection.connect(door)
            send(connection, request)
            return receive(connection, LONGEST_ANSWER)
    except (OSError, ValueError):
        return REFUSAL


def client_app() -> Any:
    """The Flower app of a silo. Whatever happens, the server sees an answer of the worker or the refusal."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def carry(message: Message, context: Context) -> Message:
        try:
            request = message.content[RECORD][REQUEST]
            answer = ask_worker(os.environ[DOOR], request) if isinstance(request, bytes) else REFUSAL
        except Exception:
            answer = REFUSAL
        return Message(RecordDict({RECORD: ConfigRecord({ANSWER: answer})}), reply_to=message)

    return app


def main() -> None:
    """`flwr-clientapp`, but with the app of this file in place of the one that was sent."""
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    for name in ("install_from_fab", "install_app_dependencies", "get_load_client_app_fn"):
        if not hasattr(run_clientapp, name):
            raise SystemExit(f"this version of flwr has no {name}: kinfolk[flower] needs flwr==1.41.0")
    vars(run_clientapp)["install_from_fab"] = lambda *_, **__: None
    vars(run_clientapp)["install_app_dependencies"] = lambda *_, **__: None
    vars(run_clientapp)["get_load_client_app_fn"] = lambda *_, **__: lambda *_, **__: client_app()
    flwr_clientapp()


if __name__ == "__main__":
    main()
