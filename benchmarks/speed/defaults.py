"""CPU seconds of `kinfolk train` where nothing is chosen, beside another checkout: three outcomes at both levels.

    python -m benchmarks.speed.defaults --other CHECKOUT/src [--turns 2]

Tables of 10 clients x 150 rows with 8 features, simulated at epsilon 3. Every run is a process of its own, in turns:
the other checkout's, ours with nothing compiled before (a first start), and ours with programs kept (later starts).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.speed.start import SIMULATE, seconds

CLIENTS, ROWS, FEATURES = 10, 150, 8
OUTCOMES = ("yes or no", "numbers", "four classes")


def write_table(path: Path, outcome: str) -> None:
    """A table whose outcome goes with its features, and a little with the client."""
    generator = np.random.default_rng(0)
    x = generator.uniform(size=(CLIENTS * ROWS, FEATURES))
    client = np.repeat(np.arange(CLIENTS), ROWS)
    score = 3 * (x[:, 0] - x[:, 1]) + 0.3 * client - 1.5
    if outcome == "numbers":
        y = [f"{value:.4f}" for value in score + 0.3 * generator.normal(size=len(x))]
    elif outcome == "yes or no":
        y = (generator.logistic(size=len(x)) < score).astype(int).astype(str).tolist()
    else:
        scores = 4 * (x - 0.5) @ generator.normal(size=(FEATURES, 4)) + generator.gumbel(size=(len(x), 4))
        y = ["abcd"[place] for place in scores.argmax(axis=1)]
    rows = [f"h{k},{','.join(f'{v:.4f}' for v in row)},{own}" for k, row, own in zip(client, x, y, strict=True)]
    head = f"client,{','.join(f'f{number}' for number in range(FEATURES))},outcome"
    path.write_text("\n".join([head, *rows]) + "\n")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--other", required=True, help="the src folder of another checkout")
    arguments = parser.parse_args()
    source, found = str(Path(__file__).parents[2] / "src"), {}
    with tempfile.TemporaryDirectory(prefix="defaults-") as name:
        folder = Path(name)
        ways = {"other": (arguments.other, ""), "first": (source, ""), "later": (source, str(folder / "cache"))}
        for number, outcome in enumerate(OUTCOMES):
            write_table(folder / f"{number}.csv", outcome)
            for level in ("example", "client"):
                table = ("train", f"{number}.csv", "--client", "client", "--target", "outcome", "--level", level)
                seconds((*table, *SIMULATE), folder, *ways["later"])
                for _ in range(arguments.turns):
                    for way, place in ways.items():
                        _, cpu = seconds((*table, *SIMULATE), folder, *place)
                        found.setdefault((outcome, level, way), []).append(cpu)
                other, first, later = (median(found[outcome, level, way]) for way in ways)
                print(
                    f"{outcome}, {level} level: other {other:.2f}, first {first:.2f} ({first / other:.2f}), "
                    f"later {later:.2f} ({later / other:.2f})",
                    flush=True,
                )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
