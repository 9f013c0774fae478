"""Messages as bytes: a line of JSON, then the arrays, one after the other, in a form that the receiver knows already.

Nothing about the arrays is read from the message, so there is nothing to parse: it has the right length, or it is
refused.

>>> import jax, numpy as np
>>> form = {"w": jax.ShapeDtypeStruct((2,), np.float32)}
>>> header, tree = unpack(pack({"round": 3}, {"w": np.ones(2, np.float32)}), form)
>>> header["round"], tree["w"].tolist()
(3, [1.0, 1.0])
"""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np

from kinfolk.types import Tree

LONGEST_HEADER = 2000
RECEIPT = b'{"received": true}\n'
"""The answer to the last message of a run."""


class WireError(ValueError):
    """Bytes that are not a message of the expected form."""


def size_of(form: Tree) -> int:
    """Bytes of the arrays of a form."""
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(form))


def pack(header: dict[str, Any], tree: Tree) -> bytes:
    """A message; every array is written in its own type, little-endian."""
    return json.dumps(header, sort_keys=True).encode() + b"\n" + arrays_of(tree)


def arrays_of(tree: Tree) -> bytes:
    """The arrays of a tree, as they follow a header."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return b"".join(np.ascontiguousarray(a, a.dtype.newbyteorder("<")).tobytes() for a in arrays)


def read_header(message: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header of a message, and what follows it."""
    end = message.find(b"\n", 0, LONGEST_HEADER)
    if end < 0:
        raise WireError("no header")
    try:
        header = json.loads(message[:end])
    except (ValueError, RecursionError):
        raise WireError("the header is not JSON") from None
    if not isinstance(header, dict):
        raise WireError("the header is not an object")
    return header, memoryview(message)[end + 1 :]


def unpack(message: bytes, form: Tree, largest: float = np.inf) -> tuple[dict[str, Any], Tree]:
    """Header and arrays. Other lengths, values that are not finite, and values beyond `largest` are refused."""
    header, body = read_header(message)
    return header, unpack_body(body, form, largest)


def unpack_body(body: memoryview, form: Tree, largest: float = np.inf) -> Tree:
    """The arrays that follow a header; refused as by `unpack`."""
    if len(body) != size_of(form):
        raise WireError(f"{len(body)} bytes instead of {size_of(form)}")
    leaves, begin = [], 0
    for leaf in jax.tree.leaves(form):
        dtype = np.dtype(leaf.dtype).newbyteorder("<")
        count = int(np.prod(leaf.shape))
        array = np.frombuffer(body, dtype, count, begin).reshape(leaf.shape).astype(leaf.dtype)
        begin += count * dtype.itemsize
        if not np.isfinite(array).all():
            raise WireError("a value is not finite")
        if array.size and float(np.abs(array.astype(np.float64)).max()) > largest:
            raise WireError("a value is too large")
        leaves.append(array)
    return jax.tree.unflatten(jax.tree.structure(form), leaves)
