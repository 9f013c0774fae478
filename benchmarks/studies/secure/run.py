"""What it costs not to trust the aggregator: trusted, secure sums and local noise at the same epsilon.

    python -m benchmarks.studies.secure.run noise [--json]
    python -m benchmarks.studies.secure.run school|femnist [--training-share 0.1] [--json]

Fixed before any test data was looked at: those of the client-level study (20 rounds, everybody in each, clip 0.3, delta
1e-3; School 5 seeds, FEMNIST small: 60 writers, at most 20 images each, a CNN, one seed), against a fifth of the
clients, with four fifths that must be left. `local` has every client add the whole noise. `noise`: what a sum's noise
is beside the trusted aggregator's, from the plan alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from typing import Any

from benchmarks.studies.client_level.run import CLIP, DELTA, ROUNDS, STEP, after, errors_of, figure_for, pooled, trained
from kinfolk.accounting.planning import plan
from kinfolk.data.choice import DataChoice
from kinfolk.data.sets.femnist import femnist as femnist_data
from kinfolk.privacy.levels import AGGREGATORS, client_level
from kinfolk.privacy.noise_shares import usual
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.sweep import sweep

EPSILONS = (4.0, 1.0, 16.0)
FEDERATIONS = ((10, 2), (50, 10), (100, 20), (139, 27))


def noise() -> dict[str, Any]:
    """Noise multipliers of a sum at the same epsilon: the trusted aggregator's, secure sums', local noise's."""
    found = {}
    for clients, colluding in FEDERATIONS:
        for epsilon in EPSILONS:
            answer = plan("client", units=clients, uses=ROUNDS, epsilon=epsilon, delta=DELTA, colluding=colluding)
            shares = usual(clients, None, colluding)
            whole, paid, trusted = (
                answer.noise_multiplier_of_the_sum or 0.0,
                answer.noise_multiplier,
                answer.noise_multiplier_if_trusted or 1.0,
            )
            found[f"{clients} clients, epsilon {epsilon:g}"] = {
                "survivors": shares.survivors,
                "colluding": colluding,
                "trusted": round(trusted, 2),
                "secure": round(whole, 2),
                "times as much": round(whole / trusted, 3),
                "of this by the account": round(paid / trusted, 3),
                "of this by shares": round(shares.excess**0.5, 3),
                "local": round(trusted * clients**0.5, 2),
            }
    return found


def school(training_share: float) -> dict[str, Any]:
    """Pooled test error (MSE x 1000) of each aggregator."""
    data, found = DataChoice("school", "as_published", 1 - training_share), {}
    for epsilon in EPSILONS:
        for aggregator in AGGREGATORS:
            level = client_level(epsilon, DELTA, clip=CLIP, aggregator=aggregator)
            solved = figure_for("mean_regularized", {"solved": True, "strength": 0.1}, level, data)
            states = trained(solved)
            plain = figure_for("fedavg", {"step_size": STEP}, level, data)
            found[f"epsilon {epsilon:g}, {aggregator}"] = {
                "mean-regularised, strength 0.1": float(pooled(solved, errors_of(solved, states))[0]),
                "self-selected": float(pooled(solved, after(solved, states, "self_select", rule="aggregate"))[0]),
                "fedavg": float(pooled(plain, errors_of(plain, trained(plain)))[0]),
                "alone": float(pooled(solved, after(solved, states, "self_select", rule="alone"))[0]),
            }
    return {"training_share": training_share, "mse_x1000": found}


def femnist() -> dict[str, Any]:
    """Mean accuracy of the writers' own models, mean-regularised at strength 0.1."""
    data, found = [femnist_data(writers=60, most_images=20)], {}
    phase = Phase("mean_regularized", ROUNDS, {"strength": 0.1, "step_size": STEP})
    for epsilon in EPSILONS:
        for aggregator in AGGREGATORS:
            experiment = Experiment(
                seed=0,
                model=ModelChoice("cnn", (8, 16)),
                training=Training(batch_size=10, epochs=2),
                privacy=client_level(epsilon, DELTA, clip=CLIP, aggregator=aggregator),
                phases=(phase,),
            )
            figure = sweep(experiment, data=data)
            accuracy = 1 - float(errors_of(figure, trained(figure, seeds=1)).mean())
            found[f"epsilon {epsilon:g}, {aggregator}"] = accuracy
            print(epsilon, aggregator, accuracy, file=sys.stderr, flush=True)  # it takes a while
    return {"accuracy": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("noise", "school", "femnist"))
    parser.add_argument("--training-share", type=float, default=0.8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    result = school(args.training_share) if args.what == "school" else {"noise": noise, "femnist": femnist}[args.what]()
    print(json.dumps(result, indent=None if args.json else 1))


if __name__ == "__main__":
    main()
