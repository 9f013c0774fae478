"""All of Flower that kinfolk uses. What another version of Flower breaks, it breaks here.

Flower is the server's carrier: its SuperLink serves TLS, knows the silos' keys and checks who calls, and starts the
server's app. kinfolk's silos visit two routes of their own beside the SuperLink's (`superlink_guard.py`), with the
signature that Flower's nodes use. A silo may have Flower's own SuperNode and `message_relay.py` instead; the server
then talks to it through Flower's messages.
"""

from __future__ import annotations

import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kinfolk.deploy.asgi import App, Scope

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

PUBLIC_KEY, TIMESTAMP, SIGNATURE = "flwr-public-key", "flwr-timestamp", "flwr-signature"
"""Headers in which a node says who it is."""
CLOCKS_APART = 5.0
"""Seconds that a node's clock may be ahead of the server's."""
FLEET = "/v1/fleet/"
"""Where nodes call."""
PUSH = FLEET + "push-messages"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "PYTHONUNBUFFERED": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
}
"""The environment of Flower's programs: they report nothing to anybody."""
RECORD, REQUEST, ANSWER = "kinfolk", "request", "answer"
"""Where Flower's messages hold our bytes."""


def signer(path: Path) -> Callable[[], dict[str, str]]:
    """What signs a node's requests with the private key in a file: the headers of one request, each time."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_ssh_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is not a key on an elliptic curve: make one with `ssh-keygen -t ecdsa -b 384`")
    pem = serialization.Encoding.PEM
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    name = b64encode(public).decode()

    def headers() -> dict[str, str]:
        time = datetime.now(UTC).isoformat()
        signature = key.sign(time.encode(), ec.ECDSA(hashes.SHA256()))
        return {PUBLIC_KEY: name, TIMESTAMP: time, SIGNATURE: b64encode(signature).decode()}

    return headers


def caller(scope: Scope) -> bytes | None:
    """The public key of the node that makes a request, checked by Flower, if the SuperLink knows it."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.superlink.routers.fleet.node_auth import authenticate_node
    from starlette.exceptions import HTTPException

    headers = {name.decode("latin1"): value.decode("latin1") for name, value in scope["headers"]}
    try:
        key = b64decode(headers.get(PUBLIC_KEY, ""), validate=True)
        state = SimpleNamespace(protobuf_request=ActivateNodeRequest(public_key=key))
        authenticate_node(SimpleNamespace(headers=headers, state=state))  # type: ignore[arg-type]
    except (HTTPException, ValueError):
        return None
    known = scope["app"].state.linkstate_factory.state().get_node_id_by_public_key(key)
    return None if known is None else key


def speaks_for_another(body: bytes) -> bool:
    """Whether a node's replies say that they come from another one. Flower checks the caller only."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    try:
        request = PushMessagesRequest.FromString(body)
    except Exception:  # it is not such a message; Flower refuses it
        return False
    return any(message.metadata.src_node_id != request.node.node_id for message in request.messages_list)


def run_superlink(
    guard: Callable[[App], App],
    lifespan: Callable[[object], AbstractAsyncContextManager[None]],
    serve: Callable[..., None],
) -> None:
    """`flower-superlink` with a guard before everything, something beside it, and its own way to listen."""
    import uvicorn
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    middleware, contexts = extensions.get_middleware, extensions.get_lifespan_contexts
    extensions.__dict__["get_middleware"] = lambda: (Middleware(guard), *middleware())  # type: ignore[arg-type]
    extensions.__dict__["get_lifespan_contexts"] = lambda: (*contexts(), lifespan)
    uvicorn.__dict__["run"] = serve
    flower_superlink()


def superlink_options(folder: Path, port: int) -> tuple[str, ...]:
    """Its options: TLS, nodes known by their keys, everything in memory; on this machine only."""
    return (
        *("--ssl-ca-certfile", str(folder / "ca.crt")),
        *("--ssl-certfile", str(folder / "server.crt")),
        *("--ssl-keyfile", str(folder / "server.key")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--host", "127.0.0.1", "--port", str(port)),
    )


def supernode_options(folder: Path, address: str, port: int, secret: Path) -> tuple[str, ...]:
    """A SuperNode's options: it starts no programs, so it cannot run what it is sent."""
    return (
        *("--root-certificates", str(folder / "ca.crt")),
        *("--superlink", address),
        *("--auth-supernode-private-key", str(folder / "node")),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--host", "127.0.0.1", "--port", str(port)),
    )


CONNECTION = """[superlink]
default = "federation"

[superlink.federation]
address = "127.0.0.1:{port}"
root-certificates = "{certificate}"
"""
"""What Flower's own command line reads: where the SuperLink is."""


def register(home: Path, keys: Mapping[str, bytes]) -> None:
    """Makes nodes' keys known to the SuperLink, as `flwr supernode register` does. One that is known is fine."""
    import httpx
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection
    from flwr.proto.control_pb2 import RegisterNodeRequest

    os.environ["FLWR_HOME"] = str(home)
    client: Any = init_http_client_from_connection(read_superlink_connection("federation"))
    try:
        for name, key in keys.items():
            try:
                client.RegisterNode(request=RegisterNodeRequest(public_key=key, name=name))
            except httpx.HTTPStatusError as error:
                if "already" not in error.response.text.lower():
                    raise ValueError(f"{name}: {error.response.text[:300]}") from None
    finally:
        client.close()


def server_app(main: Callable[[Grid, Context], None]) -> ServerApp:
    """A server's app that runs a function."""
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(main)
    return app


def nodes_of(grid: Grid) -> dict[bytes, int]:
    """The SuperNodes that are there now, by their public keys."""
    return {node.public_key: node.node_id for node in grid.get_nodes()}


def push(grid: Grid, nodes: Iterable[int], request: bytes, group: str, seconds: float) -> list[str]:
    """Sends bytes to SuperNodes; the messages' names, in their order, empty where Flower took none.

    `group`: goes into the name, which is a hash; a secret in it keeps others from guessing the name.
    """
    from flwr.app import ConfigRecord, Message, RecordDict

    content = RecordDict({RECORD: ConfigRecord({REQUEST: request})})
    messages = [Message(content, node, "train", ttl=seconds, group_id=group) for node in nodes]
    return [name or "" for name in grid.push_messages(messages)] if messages else []


def pull(grid: Grid, name: str) -> tuple[bytes | None, ...]:
    """What came back for a message: nothing yet, or its answer, which is None where it has another form."""
    return tuple(_answer(reply) for reply in grid.pull_messages([name]))


def _answer(reply: Message) -> bytes | None:
    try:
        answer = None if reply.has_error() else reply.content[RECORD][ANSWER]
    except Exception:
        return None
    return answer if isinstance(answer, bytes) else None


def replied(message: Message, answer: Callable[[bytes], bytes], refusal: bytes) -> Message:
    """A SuperNode's reply to a message: what is made of its bytes, or the refusal, whatever happens."""
    from flwr.app import ConfigRecord, Message, RecordDict

    try:
        request = message.content[RECORD][REQUEST]
        found = answer(request) if isinstance(request, bytes) else refusal
    except Exception:
        found = refusal
    return Message(RecordDict({RECORD: ConfigRecord({ANSWER: found})}), reply_to=message)


def client_app(reply: Callable[[Message], Message]) -> ClientApp:
    """A client's app that replies with a function."""
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.train()(lambda message, context: reply(message))
    return app


def task_source(address: str, secret: bytes) -> Callable[[], str | None]:
    """Where a SuperNode hands out its tasks: the token of the next one, if there is one."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"])
    client = _runtime(address, "SuperExec", signed)

    def next_task() -> str | None:
        found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        return found.token if found.HasField("task") and found.token else None

    return next_task


def do_task(address: str, token: str, reply: Callable[[Message], Message]) -> None:
    """Takes a task's message from a SuperNode and hands in the reply."""
    from flwr.common.constant import SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supernode.runtime import run_clientapp as runtime

    client = _runtime(address, "flwr-clientapp", RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    try:
        message, context, _, _ = runtime.pull_task_input(client)
        runtime.push_message(client, reply(message), context)
        runtime.push_task_output(client, context, SubStatus.COMPLETED, "")
    finally:
        heartbeat.stop()
        client.close()


def _runtime(address: str, component: str, interceptor: Any) -> Any:
    """A connection to a SuperNode, which listens on this machine only."""
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


def run_supernode(options: Iterable[str]) -> None:
    """`flower-supernode` in this process."""
    from flwr.supernode.cli import flower_supernode

    sys.argv[1:] = list(options)
    flower_supernode()
