"""The worker's door, from outside; and the relay that carries messages between it and Flower's own SuperNode.

A silo needs the relay only where it runs a SuperNode instead of kinfolk's own line (`--supernode`). Flower would
install and run the app that the server sends; then the server could run any code beside the silo's data. The SuperNode
is therefore started so that it runs nothing itself (`--isolation process`), and this program takes its messages: no
code comes over the network. One process carries all messages of a silo.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
import traceback
from functools import partial
from typing import Any

from kinfolk.deploy import flower_api

REFUSAL = b'{"refused": true}\n'
"""The one answer to every request that is not served, whatever the reason."""
DOOR = "KINFOLK_DOOR"
"""The environment variable that says where the worker's socket is."""
LONGEST_ANSWER = 2**31
POLL = 1.0
"""Seconds between two looks for a message; the SuperNode itself looks every three."""
STARTING = 120.0
"""Seconds that a worker which is not there yet may take to start."""
LOOK = 0.2


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


def ask_worker(door: str, request: bytes, seconds: float = 600.0, starting: float = STARTING) -> bytes:
    """The worker's answer. One that is not there yet is waited for; without one it is the refusal, which is data-free.

    `seconds`: for the answer. `starting`: for the worker to open its door.
    """
    until, cut = time.monotonic() + starting, False
    while True:
        connected = False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(seconds)
                connection.connect(door)
                connected = True
                send(connection, request)
                return receive(connection, LONGEST_ANSWER)
        except (OSError, ValueError) as error:
            given_up = connected and (cut or not isinstance(error, ConnectionError))
            if given_up or time.monotonic() > until:
                return REFUSAL
            cut = cut or connected  # it was stopped in the middle: once more, when it is there again
            time.sleep(LOOK)


def carried(message: Any, door: str) -> Any:
    """The reply to a message of Flower: the worker's answer or the refusal, whatever happens."""
    return flower_api.replied(message, partial(ask_worker, door), REFUSAL)


def client_app() -> Any:
    """The same as a Flower app, for a silo whose owner lets Flower run what the server sends."""
    return flower_api.client_app(lambda message: carried(message, os.environ[DOOR]))


def serve_node(address: str, secret: bytes, door: str) -> None:
    """Takes the SuperNode's tasks, for ever.

    Each has a thread of its own: when a server dies while it sends, the SuperNode announces a message that it never
    gets, Flower waits for it for two hours, and the server's next message shall not wait with it.
    """
    next_task = flower_api.task_source(address, secret)
    while True:
        try:
            token = next_task()
        except Exception as error:  # the SuperNode is not there yet
            print(f"no SuperNode at {address}: {type(error).__name__}", file=sys.stderr, flush=True)
            time.sleep(2.0)
            continue
        if token is not None:
            threading.Thread(target=_serve_or_end, args=(address, token, door), daemon=True).start()
        time.sleep(POLL)


def _serve_or_end(address: str, token: str, door: str) -> None:
    """An error with a task ends this process: the SuperNode waits for a reply that will not come, and whoever keeps
    both running starts them again."""
    try:
        flower_api.do_task(address, token, lambda message: carried(message, door))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    """`python -m kinfolk.deploy.message_relay ADDRESS SECRET_FILE DOOR`"""
    address, secret, door = sys.argv[1:]
    with open(secret, "rb") as file:
        serve_node(address, file.read(), door)


if __name__ == "__main__":
    main()
