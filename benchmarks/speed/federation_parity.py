"""Whether separate processes give simulation's result every time, whatever else the machine does.

    python -m benchmarks.speed.federation_parity [--runs 20] [--silos 4] [--rounds 6]

Every run is a federation of its own, as in `federation.py`: a server, and a process for each silo, over TLS. In every
second one a silo is stopped with SIGSTOP for three seconds in the middle of the rounds, and goes on. Prints a line for
each run, with the load of the machine, and ends with a code other than 0 unless all agree.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speed.federation import leaves_of, over_flower, require_same, simulated, study_of


def pause_one(silos: list[Any]) -> None:
    """Stops a silo for a while."""
    os.kill(silos[0].pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(silos[0].pid, signal.SIGCONT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--silos", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    study, federation = study_of(arguments.silos, arguments.rounds)
    expected, same = leaves_of(simulated(study, federation)[0]), 0
    for number in range(arguments.runs):
        stopped = number % 2 == 1
        with tempfile.TemporaryDirectory(prefix="kf") as name:
            try:
                found, took = over_flower(study, federation, Path(name), harm=pause_one if stopped else None)
                require_same(found, expected)
                same, words = same + 1, f"the same result, {took['seconds_per_round']} s per round"
            except (AssertionError, RuntimeError) as error:
                words = f"NOT the same: {error}"
        load = os.getloadavg()[0]
        print(
            f"run {number + 1}{', one silo stopped for 3 s' if stopped else ''}: {words}; load {load:.1f}", flush=True
        )
    print(f"{same} of {arguments.runs} runs gave simulation's result")
    sys.exit(same != arguments.runs)


if __name__ == "__main__":
    main()
