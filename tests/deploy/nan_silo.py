"""A broken silo as a process, whose worker answers with NaN: `python -m tests.deploy.nan_silo FOLDER DOOR`"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np

from kinfolk.deploy.local_socket import open_door, serve
from kinfolk.deploy.silo import read_silo, state_of
from kinfolk.deploy.wire import pack, read_header
from kinfolk.deploy.worker import Worker


class Broken(Worker):
    def answer(self, request: bytes) -> bytes:
        header, _ = read_header(request)
        form = self.program.study.message_shapes[0]
        header = {key: header[key] for key in ("version", "study", "run", "round")}
        return pack(header, jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan, leaf.dtype), form))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with Broken(read_silo(folder), state_of(folder)) as worker, open_door(Path(sys.argv[2])) as listener:
        serve(worker, listener)
