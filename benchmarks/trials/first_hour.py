"""What a new user does in the first hour, on tables of their own, step by step and timed.

    python -m benchmarks.trials.first_hour [--folder FOLDER]

Four hospitals in CSV files (heart disease where KINFOLK_DATA has it, else made up) with gaps and words, then commands
of the README, each in a process of its own, with a ledger of its own: schema, confirming it, compare, release,
report, predict, export. Prints seconds of each step; a step that fails ends it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HOSPITALS = ("cleveland", "budapest", "zurich", "long_beach")


def write_hospitals(folder: Path) -> list[str]:
    """The tables; returns their names."""
    source = Path(os.environ.get("KINFOLK_DATA", "nowhere")) / "heart_disease.npz"
    if source.exists():
        with np.load(source, allow_pickle=False) as file:
            x, client, names = file["x"], file["client"], [str(name) for name in file["feature_name"]]
            ill = file["y"] > 0
    else:
        generator = np.random.default_rng(0)
        names = ["age", "sex", "pressure", "sugar"]
        low, high = np.array([25, 0, 90, 0]), np.array([80, 1, 200, 1])
        x, client = generator.uniform(low, high, (800, 4)).round(), np.repeat(range(4), 200)
        ill = x[:, 0] + generator.normal(0, 20, 800) > 55
        x[generator.random(x.shape) < 0.05] = np.nan
    for k, hospital in enumerate(HOSPITALS):
        lines = [",".join([*names, "disease"])]
        for row, label in zip(x[client == k], ill[client == k], strict=True):
            cells = ["?" if np.isnan(value) else f"{value:g}" for value in row]
            lines.append(",".join([*cells, "yes" if label else "no"]))
        (folder / f"{hospital}.csv").write_text("\n".join(lines) + "\n")
    return [f"{hospital}.csv" for hospital in HOSPITALS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where it all goes; default: a folder that is removed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-hour-") as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        run(folder)


def run(folder: Path) -> None:
    tables, began = write_hospitals(folder), time.monotonic()
    environment = {**os.environ, "KINFOLK_LEDGERS": str(folder / "ledgers"), "KINFOLK_KEYS": str(folder / "keys")}
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))

    def step(command: str) -> None:
        start = time.monotonic()
        program = [sys.executable, "-m", "kinfolk", *shlex.split(command)]
        done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        print(f"{time.monotonic() - start:6.1f} s  kinfolk {command}", flush=True)
        if done.returncode:
            sys.exit(f"code={done.returncode}\n{done.stdout}{done.stderr}")

    files = shlex.join(tables)
    step(f"schema {files} --target disease")
    schema = folder / "schema.toml"
    schema.write_text(schema.read_text().replace("confirmed = false", "confirmed = true"))  # a person looks at each
    step(f"compare {files} --schema schema.toml --epsilon 1 --epsilon 3")
    because = "--disjoint-because 'these patients are in no other table'"
    step(f"train {files} --schema schema.toml --name heart --epsilon 3 {because}")
    newest = max((folder / "runs").glob("*/public"), key=lambda path: path.stat().st_mtime).parent
    place = f"runs/{newest.name}"
    step(f"report {place} --output report.html")
    step(f"predict {place} {tables[0]} --client {HOSPITALS[0]} --output risks.csv")
    step(f"export {place} --client {HOSPITALS[0]} --output mine")
    load = os.getloadavg()[0]
    print(f"{time.monotonic() - began:6.1f} s in all, from tables to a report and predictions; load {load:.1f}")


if __name__ == "__main__":
    main()
