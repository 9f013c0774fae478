"""Records of TensorFlow Federated's public data: SQLite files whose rows are serialised `tf.train.Example` messages.

Only what those messages use of protocol buffers is read: a map from names to lists of bytes, floats or integers.
"""

from __future__ import annotations

import lzma
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

Value = list[bytes] | np.ndarray
BYTES, FLOATS, INTEGERS = 1, 2, 3
"""The numbers of a feature's three kinds."""
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""The wire types of protocol buffers."""


def read_example(message: bytes) -> dict[str, Value]:
    """The features of one serialised `tf.train.Example`, by name."""
    found: dict[str, Value] = {}
    for features in _fields(message, 1):
        for entry in _fields(features, 1):
            (name,), (feature,) = _fields(entry, 1), _fields(entry, 2)
            found[name.decode()] = _values(feature)
    return found


def rows(path: Path, split: str, clients: list[str]) -> Iterator[tuple[str, dict[str, Value]]]:
    """Client and features of the examples of these clients in one split."""
    with _database(path) as database:
        for client in clients:
            query = "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ?"
            for (message,) in database.execute(query, (client, split)):
                yield client, read_example(message)


def clients_of(path: Path, split: str, least: int = 1) -> list[str]:
    """The clients that have at least so many examples in a split, in the order of their names."""
    with _database(path) as database:
        query = "SELECT client_id FROM client_metadata WHERE split_name = ? AND num_examples >= ? ORDER BY client_id"
        return [str(client) for (client,) in database.execute(query, (split, least))]


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The SQLite file itself, of which `path` may be an LZMA archive."""
    if path.suffix != ".lzma":
        yield path
        return
    with TemporaryDirectory(prefix="kinfolk-sqlite-") as folder:
        whole = Path(folder) / path.stem
        with lzma.open(path) as packed, whole.open("wb") as content:
            shutil.copyfileobj(packed, content, 1 << 20)
        yield whole


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise ValueError(f"no such database: {error}") from error


def _values(feature: bytes) -> Value:
    for kind in (BYTES, FLOATS, INTEGERS):
        for content in _fields(feature, kind):
            if kind == BYTES:
                return _fields(content, 1)
            parts = _fields(content, 1)
            if kind == FLOATS:
                return np.frombuffer(b"".join(parts), "<f4")
            return np.array([value for part in parts for value in _varints(part)], np.int64)
    return []


def _fields(message: bytes, number: int) -> list[bytes]:
    """The contents of all fields of this number; a number's content is its own bytes."""
    found, place = [], 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        begin = place
        if kind == LENGTH:
            length, begin = _varint(message, place)
            place = begin + length
        elif kind == VARINT:
            _, place = _varint(message, place)
        elif kind in (FIXED32, FIXED64):
            place += 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} is none that tf.train.Example has")
        if place > len(message):
            raise ValueError("a message ends in the middle of a field")
        if tag >> 3 == number:
            found.append(message[begin:place])
    return found


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if place >= len(message):
            raise ValueError("a message ends in the middle of a number")
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def _varints(content: bytes) -> Iterator[int]:
    place = 0
    while place < len(content):
        value, place = _varint(content, place)
        yield value - (1 << 64) if value >= 1 << 63 else value
