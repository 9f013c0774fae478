"""Client-level privacy on School and HAR: personal models under joint differential privacy.

    python -m benchmarks.studies.client_level.run school [--training-share 0.8] [--json]
    python -m benchmarks.studies.client_level.run figure1|figure1-femnist [--json]
    python -m benchmarks.studies.client_level.run har [--json]

Fixed before any test data was looked at, and the same for all methods: 20 rounds, all clients in every round, clip 0.3,
delta 1e-3, 5 seeds; features standardised by each school alone (free at this level). `school`: every method at epsilon
1, 4 and 16, and self-selection on the shared model of mean regularisation at strength 0.1. A strength "in hindsight" is
picked on test data: a reference, not something to deploy. `figure1`: plain privacy for all personal models at once
against joint privacy. `har`: fine-tuning after training with the paper's four objectives (30 people, softmax).
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from kinfolk.data.choice import DataChoice
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.femnist import femnist
from kinfolk.data.sets.school import SOURCE
from kinfolk.data.sets.school import school as school_data
from kinfolk.engines.loop import Sweep
from kinfolk.engines.resident import State
from kinfolk.personalize.fine_tune import OBJECTIVES
from kinfolk.personalize.registry import build
from kinfolk.privacy.levels import PrivacyLevel, client_level, none
from kinfolk.training.build import as_array
from kinfolk.training.evaluate import gains
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.sweep import sweep

EPSILONS = (1.0, 4.0, 16.0)
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
ROUNDS, CLIP, DELTA, SEEDS = 20, 0.3, 1e-3, 5
STEP = 0.1


def figure_for(
    method: str,
    options: dict[str, Any],
    level: PrivacyLevel,
    data: DataChoice,
    model: str = "linear",
    over: Mapping[str, Sequence[float]] | None = None,
) -> Sweep:
    """A method with these options, for every point of `over` and seed."""
    phases = (Phase(method, ROUNDS, options),)
    experiment = Experiment(seed=0, seeds=SEEDS, data=data, model=ModelChoice(model), privacy=level, phases=phases)
    return sweep(experiment, over)


def trained(figure: Sweep, seeds: int = SEEDS) -> State:
    """Final states for every point and seed."""
    return figure.rounds(figure.init(range(seeds)), 0, ROUNDS)


def errors_of(figure: Sweep, states: State) -> np.ndarray:
    """Test errors of every point, seed and client."""
    return np.asarray(figure.errors(states)["error"])


def pooled(figure: Sweep, errors: np.ndarray) -> np.ndarray:
    """Test error over all rows together, times 1000, of every point: the mean over seeds."""
    return 1000 * np.asarray(figure.pooled(jnp.asarray(errors))).mean(axis=1)


def after(figure: Sweep, states: State, method: str, **options: Any) -> np.ndarray:
    """Clients' errors after they worked alone on their models."""
    return errors_of(figure, figure.personalised(states, as_array(build(method, options))))


def school_graph() -> np.ndarray:
    """A public relation: schools with the same school-level columns (21 to 26) belong together."""
    arrays = load_arrays(SOURCE)
    ids = school_data().ids
    kind = np.array([arrays["x"][arrays["client"] == int(name)][0, 21:27] for name in ids])
    _, group = np.unique(kind, axis=0, return_inverse=True)
    return (group[None, :] == np.arange(group.max() + 1)[:, None]).astype(np.float32)


def school(training_share: float) -> dict[str, Any]:
    data = DataChoice("school", "as_published", 1 - training_share)
    result: dict[str, Any] = {"training_share": training_share, "mse_x1000": {}, "self_selection": {}}
    for epsilon in EPSILONS:
        level = client_level(epsilon, DELTA, clip=CLIP)
        found: dict[str, float] = {}
        by_itself = {"solved": True, "strength": 0.1}
        for rule in ("displacement", "increment"):
            swept = {"strength": STRENGTHS}
            figure = figure_for("mean_regularized", by_itself | {"rule": rule}, level, data, over=swept)
            mse = pooled(figure, errors_of(figure, trained(figure)))
            for strength, value in zip(STRENGTHS, mse, strict=True):
                found[f"mean-regularised, {rule}, strength {strength:g}"] = float(value)
        solved = figure_for("mean_regularized", by_itself, level, data)
        states = trained(solved)
        alone = after(solved, states, "self_select", rule="alone")
        found["local (own leave-one-out)"] = float(pooled(solved, alone)[0])
        for rule in ("aggregate", "cautious"):
            chosen = after(solved, states, "self_select", rule=rule)
            found[f"self-selected, {rule}"] = float(pooled(solved, chosen)[0])
            result["self_selection"][f"epsilon {epsilon:g}, {rule}"] = gains(alone[0], chosen[0])
        for method, options in {
            "fedavg": {},
            "fedprox": {"strength": 1.0},
            "ditto": {"strength": 0.1},
            "shared_and_own": {},
        }.items():
            figure = figure_for(method, {**options, "step_size": STEP}, level, data)
            found[method] = float(pooled(figure, errors_of(figure, trained(figure)))[0])
        graph = {"relation": school_graph().tolist(), "strength": 0.1, "step_size": STEP}
        figure = figure_for("relation_regularized", graph, level, data)
        found["relation-regularised (public graph)"] = float(pooled(figure, errors_of(figure, trained(figure)))[0])
        result["mse_x1000"][f"epsilon {epsilon:g}"] = found
    return result


def figure1() -> dict[str, Any]:
    """Test error of personal models: all of them published with noise, or joint privacy, or no noise."""
    data = DataChoice("school", "as_published")
    found: dict[str, Any] = {}
    for name, level in {
        **{f"epsilon {e:g}": client_level(e, DELTA, clip=CLIP) for e in EPSILONS},
        "no privacy": none(),
    }.items():
        row = {}
        for title, method in (("plain privacy for all models", "joint"), ("joint privacy", "mean_regularized")):
            figure = figure_for(method, {"strength": 0.1, "step_size": STEP}, level, data)
            row[title] = float(pooled(figure, errors_of(figure, trained(figure)))[0])
        found[name] = row
    return {"mse_x1000": found}


def femnist_figure1() -> dict[str, Any]:
    """The same on FEMNIST, small: 60 writers, at most 20 images each, a small CNN, 20 rounds, one seed; accuracy."""
    data, found = [femnist(writers=60, most_images=20)], {}
    levels = {f"epsilon {e:g}": client_level(e, DELTA, clip=CLIP) for e in (1.0, 4.0, 16.0)} | {"no privacy": none()}
    for name, level in levels.items():
        row = {}
        for title, method in (("plain privacy for all models", "joint"), ("joint privacy", "mean_regularized")):
            phase = Phase(method, ROUNDS, {"strength": 0.1, "step_size": STEP})
            training = Training(batch_size=10, epochs=2)
            model = ModelChoice("cnn", (8, 16))
            experiment = Experiment(seed=0, model=model, training=training, privacy=level, phases=(phase,))
            figure = sweep(experiment, data=data)
            row[title] = 1 - float(errors_of(figure, trained(figure, seeds=1)).mean())
        found[name] = row
    return {"accuracy": found}


def har() -> dict[str, Any]:
    """Mean client accuracy after fine-tuning, from the personal and from the shared model."""
    data, found = DataChoice("har"), {}
    levels = {f"epsilon {e:g}": client_level(e, DELTA, clip=CLIP) for e in (1.0, 4.0, 16.0)} | {"no privacy": none()}
    for name, level in levels.items():
        row: dict[str, Any] = {}
        for title, method, options in (
            ("personal", "mean_regularized", {"strength": 0.1}),
            ("shared", "fedavg", {}),
        ):
            figure = figure_for(method, {**options, "step_size": 1.0}, level, data, "softmax")
            states = trained(figure)
            row[f"{title}, as trained"] = 1 - float(errors_of(figure, states).mean())
            for objective in OBJECTIVES:
                options = {"objective": objective, "start": title, "strength": 0.1, "step_size": 1.0, "steps": 50}
                row[f"{title}, {objective}"] = 1 - float(after(figure, states, "fine_tune", **options).mean())
        found[name] = row
    figure = figure_for("local", {"step_size": 1.0}, none(), data, "softmax")
    alone = after(figure, trained(figure), "fine_tune")
    found["alone"] = {"trained and fine-tuned alone": 1 - float(alone.mean())}
    return {"accuracy": found}


STUDIES: dict[str, Any] = {"school": school, "figure1": figure1, "figure1-femnist": femnist_figure1, "har": har}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(STUDIES))
    parser.add_argument("--training-share", type=float, default=0.8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    study = STUDIES[args.what]
    result = study(args.training_share) if args.what == "school" else study()
    print(json.dumps(result, indent=None if args.json else 1))


if __name__ == "__main__":
    main()
