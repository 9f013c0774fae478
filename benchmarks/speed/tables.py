"""A table of 100 000 rows, 200 columns and 500 clients, from a file to trained models at default settings.

    python -m benchmarks.speed.tables [--rows 100000] [--columns 200] [--clients 500] [--seed 0] [--profile FILE]

Without --seed it is a release. The table is made up; writing it is not part of the time. Everything runs in a fresh
process, so that imports and compilation count.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from kinfolk.data.tables.schema import Column, Schema, to_toml


def write(folder: Path, rows: int, columns: int, clients: int) -> tuple[Path, Path]:
    """A table as CSV, and its schema: numbers between -1 and 1 and a yes-or-no target with client-specific weights."""
    generator = np.random.default_rng(0)
    client = generator.choice(clients, rows, p=generator.dirichlet(np.full(clients, 5.0)))
    client[: 3 * clients] = np.repeat(np.arange(clients), 3)
    x = generator.uniform(-1, 1, (rows, columns)).astype(np.float32)
    weights = generator.normal(size=columns) + 0.25 * generator.normal(size=(clients, columns))
    y = (np.einsum("nd,nd->n", x, weights[client]) + generator.logistic(size=rows) > 0).astype(int)
    frame = pl.DataFrame(x, schema=[f"x{k}" for k in range(columns)]).with_columns(
        client=pl.Series([f"c{k:03d}" for k in client]), y=pl.Series(y)
    )
    frame.write_csv(folder / "big.csv", float_precision=4)
    features = tuple(Column(f"x{k}", low=-1, high=1) for k in range(columns))
    (folder / "big.toml").write_text(to_toml(Schema(Column("y", "yes_no"), features, client="client")))
    return folder / "big.csv", folder / "big.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("rows", 100_000), ("columns", 200), ("clients", 500)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--profile", help="write a cProfile of the command here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table, schema = write(folder, options.rows, options.columns, options.clients)
        words = ["train", table, "--schema", schema, "--epsilon", 1, "--output", folder / "runs", "--json"]
        words += [] if options.seed is None else ["--seed", options.seed]
        python = [sys.executable, *(["-m", "cProfile", "-o", options.profile] if options.profile else [])]
        script = folder / "command.py"
        script.write_text("from kinfolk.cli.main import main\nmain()\n")
        environment = {**os.environ, "KINFOLK_LEDGERS": str(folder / "ledgers")}
        begin = time.monotonic()
        done = subprocess.run([*python, script, *map(str, words)], env=environment, check=True, capture_output=True)
        wall = time.monotonic() - begin
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = json.loads(done.stdout)
        print(json.dumps({**answer["results"][0], "run": "", "notes": answer.get("notes")}, indent=1))
        cpu = used.ru_utime + used.ru_stime
        print(f"wall {wall:.1f} s, CPU {cpu:.1f} s, most memory {used.ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
