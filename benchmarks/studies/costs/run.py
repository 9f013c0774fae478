"""What methods cost at example level, read off the ledger: a figure like figure 4 of Liu, Hu, Wu and Smith (2022).

    python -m benchmarks.studies.costs.run [--picture FILE] [--json]

Runs of 60 rounds on the built-in schools, all with the same noise (multiplier 4), and what the ledger says one school
has spent after each chunk. Local training, federated averaging and mean regularisation look at the data once a round;
Ditto looks twice; IFCA pays for its choices, in every round or in the first twentieth.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import read_lines
from kinfolk.privacy.levels import example_level
from kinfolk.report import line_chart
from kinfolk.training import loop
from kinfolk.training.experiment import Experiment, Phase

ROUNDS, NOISE, DELTA, SCHOOL = 60, 4.0, 1e-4, "school-30"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("local", {}),
    "FedAvg": ("fedavg", {}),
    "mean-regularised": ("mean_regularized", {}),
    "Ditto": ("ditto", {}),
    "IFCA, choosing in the first twentieth": ("ifca", {"choosing_rounds": ROUNDS // 20}),
    "IFCA, choosing in every round": ("ifca", {"choosing_rounds": ROUNDS}),
}


def spent(method: str, options: dict[str, Any]) -> list[tuple[float, float]]:
    """Epsilon of one school after every chunk of rounds."""
    level = example_level(delta=DELTA, noise_multiplier=NOISE, choice_epsilon=0.5)
    experiment = Experiment(seed=0, privacy=level, phases=(Phase(method, ROUNDS, options),))
    with tempfile.TemporaryDirectory() as folder:
        run = loop.run(experiment, Path(folder))
        lines = [line for line in read_lines(run.public / "ledger.jsonl") if line.party == SCHOOL]
    ends = sorted({line.rounds[1] for line in lines})
    return [
        (
            float(end),
            composition.epsilon(
                composition.by_run((x.run, x.cost, x.uses) for x in lines if x.rounds[1] <= end), DELTA
            ),
        )
        for end in ends
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, default=Path("runs/costs.svg"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    series = {name: spent(*choice) for name, choice in METHODS.items()}
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    title = f"Epsilon spent by one school, the same noise for all (delta {DELTA:g})"
    args.picture.write_text(line_chart.lines(title, series, "rounds", "epsilon, from the ledger"))
    if args.json:
        print(json.dumps(series))
        return
    for name, points in series.items():
        print(f"{name:40s} epsilon {points[-1][1]:.3f} after {points[-1][0]:.0f} rounds")
    print(f"picture: {args.picture}")


if __name__ == "__main__":
    main()
