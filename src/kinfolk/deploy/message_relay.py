"""What stands between Flower and a silo's worker: it carries bytes from one to the other, and does nothing else.

Flower would install and run the app that the server sends; then the server could run any code beside the silo's data.
A silo's SuperNode is therefore started so that it runs nothing itself (`--isolation process`), and this program takes
its messages: no code comes over the network. One process carries all messages of a silo. It is run by its path and does
not import kinfolk, so that it is small.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
import traceback
from typing import Any

REFUSAL = b'{"refused": true}\n'
"""The one answer to every request that is not served, whatever the reason."""
DOOR = "KINFOLK_DOOR"
"""The environment variable that says where the worker's socket is."""
RECORD, REQUEST, ANSWER = "kinfolk", "request", "answer"
LONGEST_ANSWER = 2**31
POLL = 1.0
"""Seconds between two looks for a message; the SuperNode itself looks every three."""


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


def carried(message: Any, door: str) -> Any:
    """The reply to a message of Flower: the worker's answer or the refusal, whatever happens."""
    from flwr.app import ConfigRecord, Message, RecordDict

    try:
        request = message.content[RECORD][REQUEST]
        answer = ask_worker(door, request) if isinstance(request, bytes) else REFUSAL
    except Exception:
        answer = REFUSAL
    return Message(RecordDict({RECORD: ConfigRecord({ANSWER: answer})}), reply_to=message)


def client_app() -> Any:
    """The same as a Flower app, for a silo whose owner lets Flower run what the server sends."""
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.train()(lambda message, context: carried(message, os.environ[DOOR]))
    return app


def serve_node(address: str, secret: bytes, door: str) -> None:
    """Takes the SuperNode's tasks, for ever.

    Each has a thread of its own: when a server dies while it sends, the SuperNode announces a message that it never
    gets, Flower waits for it for two hours, and the server's next message shall not wait with it.
    """
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"])
    client = _runtime(address, "SuperExec", signed)
    while True:
        try:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except Exception as error:  # the SuperNode is not there yet
            print(f"no SuperNode at {address}: {type(error).__name__}", file=sys.stderr, flush=True)
            time.sleep(2.0)
            continue
        if found.HasField("task") and found.token:
            threading.Thread(target=_serve_or_end, args=(address, found.token, door), daemon=True).start()
        time.sleep(POLL)


def _serve_or_end(address: str, token: str, door: str) -> None:
    """An error with a task ends this process: the SuperNode waits for a reply that will not come, and whoever keeps
    both running starts them again."""
    try:
        _serve_task(address, token, door)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _serve_task(address: str, token: str, door: str) -> None:
    from flwr.common.constant import SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supernode.runtime import run_clientapp as runtime

    client = _runtime(address, "flwr-clientapp", RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    try:
        message, context, _, _ = runtime.pull_task_input(client)
        runtime.push_message(client, carried(message, door), context)
        runtime.push_task_output(client, context, SubStatus.COMPLETED, "")
    finally:
        heartbeat.stop()
        client.close()


def _runtime(address: str, component: str, interceptor: Any) -> Any:
    """A connection to the SuperNode, which listens on this machine only."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), interceptor],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def main() -> None:
    """`proxy.py ADDRESS SECRET_FILE DOOR`"""
    address, secret, door = sys.argv[1:]
    with open(secret, "rb") as file:
        serve_node(address, file.read(), door)


if __name__ == "__main__":
    main()
