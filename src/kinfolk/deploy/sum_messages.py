"""Questions and answers of secure sums as bytes: a header, steps as JSON, and then arrays.

A question names steps; an answer has what became of each. Everything is read strictly: other fields, types or
characters are refused, and so is JSON that is longer than any real one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from kinfolk.deploy.wire import WireError, read_header
from kinfolk.secure.messages import Attempt, KeyCard, ListSignature, MaskedVector, Opening, Packets

BEGIN, SHARE, MASK, SIGN, OPEN = STEPS = ("begin", "share", "mask", "sign", "open")
PER_SILO = 2000
"""Bytes of JSON for each silo of a study that a question or an answer may take."""
LENGTH = "json"
Record = TypeVar("Record", KeyCard, Packets, ListSignature, MaskedVector, Opening)


def packed(header: Mapping[str, Any], steps: Mapping[str, Any], tail: bytes = b"") -> bytes:
    """A question or an answer.

    `header`: which study, run and round. `steps`: by name. `tail`: arrays.
    """
    body = json.dumps(steps, sort_keys=True).encode()
    return json.dumps({**header, LENGTH: len(body)}, sort_keys=True).encode() + b"\n" + body + tail


def unpacked(message: bytes, silos: int) -> tuple[dict[str, Any], dict[str, Any], memoryview]:
    """Header, steps and arrays.

    `message`: bytes from somebody. `silos`: how many the study has.
    """
    header, body = read_header(message)
    length = header.pop(LENGTH, None)
    if type(length) is not int or not 0 <= length <= min(len(body), PER_SILO * (silos + 1)):
        raise WireError("not the length of steps")
    try:
        steps = json.loads(bytes(body[:length]))
    except (ValueError, RecursionError):
        raise WireError("the steps are not JSON") from None
    if not isinstance(steps, dict) or not set(steps) <= set(STEPS):
        raise WireError("unknown steps")
    return header, steps, body[length:]


def attempt_of(found: object, run: str) -> Attempt:
    """Round and number of a step's attempt.

    `found`: a pair of whole numbers. `run`: the run's name.
    """
    if not isinstance(found, list) or len(found) != 2 or any(type(x) is not int or not 0 <= x < 2**40 for x in found):
        raise WireError("not an attempt")
    return Attempt(run, *found)


def as_json(record: KeyCard | Packets | ListSignature | MaskedVector | Opening) -> dict[str, Any]:
    """A record as plain values. A masked vector goes without its numbers, which follow as they are.

    `record`: with its signature.
    """
    found = {field.name: getattr(record, field.name) for field in fields(record) if field.name != "vector"}
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def from_json(kind: type[Record], found: object, **rest: bytes) -> Record:
    """A record of a kind.

    `kind`: its class. `found`: plain values from somebody. `rest`: what followed as it is.
    """
    read = _readers(kind)
    if not isinstance(found, dict) or {*found, *rest} != {*read} or len(found) + len(rest) != len(read):
        raise WireError(f"not a {kind.__name__}")
    return kind(**{name: read[name](value) for name, value in found.items()}, **rest)  # type: ignore[arg-type]


@cache
def _readers(kind: type) -> dict[str, Callable[[object], Any]]:
    """What reads each field of a record."""
    return {field.name: _READ[str(field.type)] for field in fields(kind)}


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > PER_SILO:
        raise WireError("not a text")
    return value


def _bytes(value: object) -> bytes:
    try:
        return bytes.fromhex(_text(value))
    except ValueError:
        raise WireError("not bytes") from None


def texts(value: object) -> tuple[str, ...]:
    """Several texts.

    `value`: from somebody.
    """
    if not isinstance(value, list):
        raise WireError("not a list")
    return tuple(map(_text, value))


def bytes_by_name(value: object) -> dict[str, bytes]:
    """Bytes by names.

    `value`: from somebody.
    """
    if not isinstance(value, dict):
        raise WireError("not an object")
    return {_text(name): _bytes(one) for name, one in value.items()}


_READ = {"str": _text, "bytes": _bytes, "tuple[str, ...]": texts, "Mapping[str, bytes]": bytes_by_name}
