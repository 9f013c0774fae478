"""An account that follows rows: a million tokens, a thousand earlier releases, and what a growing table takes on disk.

python -m benchmarks.speed.identity
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from kinfolk.accounting.member_store import MemberStore
from kinfolk.accounting.members import Members, Source
from kinfolk.accounting.records import RELEASED, Line
from kinfolk.accounting.standing import Promise, Standing
from kinfolk.data.identity import Identity
from kinfolk.privacy.release import Cost

KEY = bytes(range(32))


def source(first: int, last: int, clients: int) -> Source:
    """Rows with numbers from `first` to `last`, dealt to clients in turn."""
    rows = np.arange(first, last)
    values = tuple(np.char.add("visit-", rows[rows % clients == k].astype(str)) for k in range(clients))
    names = tuple(f"client {k}" for k in range(clients))
    return Source("patients", "column ward", names, tuple(map(len, values)), Identity("row", "visit", values))


def measured(rows: int, contents: int, releases: int, clients: int) -> dict[str, float]:
    """Seconds and bytes of each part."""
    found: dict[str, float] = {"rows": rows, "contents": contents, "releases": releases, "clients": clients}
    begun = time.perf_counter()
    whole = source(0, rows, clients).members("example", KEY)
    found["tokens_seconds"] = time.perf_counter() - begun
    with tempfile.TemporaryDirectory() as folder:
        store = MemberStore(Path(folder) / "members", KEY)
        digests, sizes = [], []
        begun = time.perf_counter()
        for n in range(contents):
            grown = _cut(whole, rows - (contents - 1 - n) * rows // 1000)
            digests.append(store.remember(grown))
            store.save(digests[-1])
            sizes.append(sum(file.stat().st_size for file in store.folder.iterdir()))
        found["store_seconds_each"] = (time.perf_counter() - begun) / contents
        found["first_bytes"], found["all_bytes"] = sizes[0], sizes[-1]
        lines = [
            Line(
                party=f"client {k}",
                data="patients",
                unit="example",
                kind="gradient",
                cost=Cost("gaussian", 60.0),
                uses=1,
                run=f"run {n}",
                rounds=(0, 1),
                noise=RELEASED,
                members=digests[n % contents],
            )
            for n in range(releases)
            for k in range(clients)
        ]
        begun = time.perf_counter()
        standing = Standing(lines, [], store)
        budgets = {f"client {k}": (1e9, 1e-6) for k in range(clients)}
        promise = Promise("run 0", store.load(digests[-1]), "zero_out", 1, budgets)
        worst = [standing.worst(promise, party) for party in budgets]
        found["account_seconds"] = time.perf_counter() - begun
        found["epsilon"] = max(one.epsilon for one in worst)
        begun = time.perf_counter()
        fresh = MemberStore(store.folder, KEY)
        fresh.load(digests[-1])
        found["read_back_seconds"] = time.perf_counter() - begun
    return found


def _cut(whole: Members, rows: int) -> Members:
    """The first rows of every client."""
    kept = [np.sort(whole.tokens_of(k)[: rows // len(whole.clients)]) for k in range(len(whole.clients))]
    return replace(whole, sizes=tuple(map(len, kept)), tokens=np.concatenate(kept))


def main() -> None:
    """Prints what was measured, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--contents", type=int, default=30)
    parser.add_argument("--releases", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    given = parser.parse_args()
    print(json.dumps(measured(given.rows, given.contents, given.releases, given.clients), indent=2))


if __name__ == "__main__":
    main()
