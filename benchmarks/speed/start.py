"""How long commands take to start: help, training on a small table, and a release that no budget is left for.

    python -m benchmarks.speed.start [--turns 3] [--other CHECKOUT/src]

Every command is a process of its own, in turns, so that all of them meet the same load: with compiled programs kept
(the second start; the first one is shown too), and without; `--other` adds the same commands of another checkout.
Prints medians of wall and CPU seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.trials.first_hour import write_hospitals

SIMULATE = ("--epsilon", "3", "--seed", "0")


def commands(tables: list[str]) -> dict[str, tuple[str, ...]]:
    """What is timed, by name."""
    table = ("train", *tables, "--target", "disease")
    return {
        "--help": ("--help",),
        "train, picked by theory": (*table, *SIMULATE),
        "train, mean_regularized": (*table, *SIMULATE, "--method", "mean_regularized"),
        "train, ten rounds of built-in data": ("train", "--seed", "0", "--rounds", "10"),
        "release that is refused": ("train", "--epsilon", "3"),
    }


def seconds(words: tuple[str, ...], folder: Path, source: str, cache: str) -> tuple[float, float]:
    """Wall and CPU seconds of one command in a process of its own."""
    own = {"KINFOLK_LEDGERS": str(folder / "ledgers"), "KINFOLK_KEYS": str(folder / "keys"), "KINFOLK_CACHE": cache}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "kinfolk", *words],
        cwd=folder,
        env={**environment, **own, "PYTHONPATH": source},
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--other", help="the src folder of another checkout")
    arguments = parser.parse_args()
    source = str(Path(__file__).parents[2] / "src")
    with tempfile.TemporaryDirectory(prefix="start-") as name:
        folder = Path(name)
        ways = {"kept": (source, str(folder / "cache")), "not kept": (source, "")}
        if arguments.other:
            ways["other"] = (arguments.other, "")
        every = commands(write_hospitals(folder))
        seconds(every["release that is refused"], folder, source, "")  # the one that was not refused
        for title, words in every.items():
            print(f"{title}: first start {_shown([seconds(words, folder, *ways['kept'])])}", flush=True)
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(arguments.turns):
            for title, words in every.items():
                for way, place in ways.items():
                    found.setdefault((title, way), []).append(seconds(words, folder, *place))
    for (title, way), times in found.items():
        print(f"{title}, {way}: {_shown(times)}")
    print(f"load {os.getloadavg()[0]:.1f}")


def _shown(times: list[tuple[float, float]]) -> str:
    wall, cpu = (median(column) for column in zip(*times, strict=True))
    return f"{wall:.2f} s, {cpu:.2f} CPU s"


if __name__ == "__main__":
    main()
