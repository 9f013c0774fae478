"""The server's own way into the post office: a socket in the file system, for its user alone."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kinfolk.deploy.message_relay import receive, send
from kinfolk.deploy.post_office import Office

SOCKET = "KINFOLK_POST"
"""The environment variable that says where the socket is."""
SLACK = 30.0
"""Seconds that the post office may take beyond those that it was given."""


@asynccontextmanager
async def opened(office: Office, path: Path) -> AsyncIterator[None]:
    """The post office's socket, open as long as the context."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                (length,) = struct.unpack(">Q", await reader.readexactly(8))
                answer = await _done(office, await reader.readexactly(length))
                writer.write(struct.pack(">Q", len(answer)) + answer)
                await writer.drain()
        writer.close()

    path.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(talk, str(path), limit=2**20)
    finally:
        os.umask(before)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def _done(office: Office, request: bytes) -> bytes:
    head, _, body = request.partition(b"\n")
    words: dict[str, Any] = json.loads(head)
    if words["do"] == "ask":
        names = {bytes.fromhex(key): name for key, name in words["names"].items()}
        office.ask(names, body, words["longest"])
    if words["do"] == "clear":
        office.clear()
    found = await office.collect(words["names"], words["seconds"]) if words["do"] == "collect" else {}
    head = {"present": [key.hex() for key in office.present()], "answers": [[n, len(a)] for n, a in found.items()]}
    return json.dumps(head).encode() + b"\n" + b"".join(found.values())


class Post:
    """The post office, as the server's app sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _do(self, words: Mapping[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(words.get("seconds", 0.0) + SLACK)
            line.connect(str(self.path))
            send(line, json.dumps(words).encode() + b"\n" + body)
            head, _, rest = receive(line, 2**40).partition(b"\n")
        return json.loads(head), rest

    def present(self) -> set[bytes]:
        """The public keys of the silos that are there."""
        return {bytes.fromhex(key) for key in self._do({"do": "present"})[0]["present"]}

    def ask(self, keys: Collection[bytes], body: bytes, longest: int) -> dict[str, bytes]:
        """Asks silos; for the name of each question the silo's key. `longest`: bytes of an answer."""
        names = {key: secrets.token_hex(16) for key in keys}
        self._do({"do": "ask", "names": {key.hex(): n for key, n in names.items()}, "longest": longest}, body)
        return {name: key for key, name in names.items()}

    def collect(self, names: Collection[str], seconds: float) -> dict[str, bytes]:
        """Answers to questions of these names, as soon as there is one."""
        head, rest = self._do({"do": "collect", "names": list(names), "seconds": seconds})
        found, begin = {}, 0
        for name, length in head["answers"]:
            found[name] = rest[begin : begin + length]
            begin += length
        return found

    def clear(self) -> None:
        """Takes all questions back and drops what was not fetched."""
        self._do({"do": "clear"})
