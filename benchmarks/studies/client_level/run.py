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
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.algorithms.relation_regularized import RelationRegularized
from kinfolk.data.choice import DataChoice
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.femnist import femnist
from kinfolk.data.sets.school import CHECKSUM, HOME, from_matlab
from kinfolk.engines import resident
from kinfolk.personalize.fine_tune import OBJECTIVES
from kinfolk.personalize.registry import build
from kinfolk.privacy.levels import PrivacyLevel, client_level, none
from kinfolk.training.build import as_array, as_sweep
from kinfolk.training.evaluate import gains
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import Job, prepare

EPSILONS = (1.0, 4.0, 16.0)
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
ROUNDS, CLIP, DELTA, SEEDS = 20, 0.3, 1e-3, 5
STEP = 0.1


def job_for(method: str, options: dict[str, Any], level: PrivacyLevel, data: DataChoice, model: str = "linear") -> Job:
    return prepare(
        Experiment(
            seed=0,
            seeds=SEEDS,
            data=data,
            model=ModelChoice(model),
            privacy=level,
            phases=(Phase(method, ROUNDS, options),),
        )
    )


def trained(job: Job, algorithms: Any = None, seeds: int = SEEDS) -> tuple[Any, Any]:
    """Final states for every sweep point of `algorithms` (default: the job's own) and seed."""
    algorithms = as_sweep(job.algorithms[0]) if algorithms is None else algorithms
    points = jax.tree.leaves(algorithms)[0].shape[0]
    numbers = jnp.arange(seeds, dtype=jnp.uint32)
    keys = jax.vmap(lambda n: jax.random.key(n, impl="threefry2x32"))(numbers)
    states = resident.start_all(job.plan, algorithms, keys)
    terms = as_sweep(job.terms, points)
    bounds = (jnp.int32(0), jnp.int32(ROUNDS))
    return algorithms, resident.run_rounds(job.plan, algorithms, terms, job.clients, states, *bounds)


def pooled(job: Job, errors: np.ndarray) -> np.ndarray:
    """Test error over all rows together."""
    rows = np.concatenate([np.asarray(block.mask).sum(axis=-1) for block in job.tests], axis=1)
    return (errors * rows).sum(axis=-1) / rows.sum(axis=-1)


def errors_of(job: Job, algorithms: Any, states: Any) -> np.ndarray:
    return np.asarray(resident.errors(job.plan, algorithms, job.tests, states)["error"])


def after(job: Job, algorithms: Any, states: Any, method: str, **options: Any) -> np.ndarray:
    """Clients' errors after they worked alone on their models."""
    points = jax.tree.leaves(algorithms)[0].shape[0]
    step = as_array(build(method, options))
    changed = resident.personalise(job.plan, step, algorithms, as_sweep(job.terms, points), job.clients, states)
    return errors_of(job, algorithms, changed)


def school_graph(ids: tuple[str, ...]) -> np.ndarray:
    """A public relation: schools with the same school-level columns (21 to 26) belong together."""
    arrays = load_arrays("school", [HOME], from_matlab, CHECKSUM)
    kind = np.array([arrays["x"][arrays["client"] == int(name)][0, 21:27] for name in ids])
    _, group = np.unique(kind, axis=0, return_inverse=True)
    return (group[None, :] == np.arange(group.max() + 1)[:, None]).astype(np.float32)


def school(training_share: float) -> dict[str, Any]:
    data = DataChoice("school", "as_published", 1 - training_share)
    result: dict[str, Any] = {"training_share": training_share, "mse_x1000": {}, "self_selection": {}}
    for epsilon in EPSILONS:
        level = client_level(epsilon, DELTA, clip=CLIP)
        found: dict[str, float] = {}
        solved = job_for("mean_regularized", {"solved": True, "strength": 0.1}, level, data)
        for rule in ("displacement", "increment"):
            algorithms = replace(
                as_sweep(solved.algorithms[0], len(STRENGTHS)), strength=jnp.asarray(STRENGTHS, jnp.float32), rule=rule
            )
            _, states = trained(solved, algorithms)
            mse = pooled(solved, errors_of(solved, algorithms, states)).mean(axis=1)
            for strength, value in zip(STRENGTHS, mse, strict=True):
                found[f"mean-regularised, {rule}, strength {strength:g}"] = 1000 * float(value)
        own, states = trained(solved)
        alone = after(solved, own, states, "self_select", rule="alone")
        found["local (own leave-one-out)"] = 1000 * float(pooled(solved, alone).mean())
        for rule in ("aggregate", "cautious"):
            chosen = after(solved, own, states, "self_select", rule=rule)
            found[f"self-selected, {rule}"] = 1000 * float(pooled(solved, chosen).mean())
            result["self_selection"][f"epsilon {epsilon:g}, {rule}"] = gains(alone[0], chosen[0])
        for method, options in {
            "fedavg": {},
            "fedprox": {"strength": 1.0},
            "ditto": {"strength": 0.1},
            "shared_and_own": {},
        }.items():
            job = job_for(method, {**options, "step_size": STEP}, level, data)
            found[method] = 1000 * float(pooled(job, errors_of(job, *trained(job))).mean())
        job = job_for("relation_regularized", {"strength": 0.1, "step_size": STEP}, level, data)
        relation = RelationRegularized(relation=school_graph(job.ids), strength=0.1, step_size=STEP)
        algorithms = as_sweep(relation)
        found["relation-regularised (public graph)"] = 1000 * float(
            pooled(job, errors_of(job, *trained(job, algorithms))).mean()
        )
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
            job = job_for(method, {"strength": 0.1, "step_size": STEP}, level, data)
            row[title] = 1000 * float(pooled(job, errors_of(job, *trained(job))).mean())
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
            job = prepare(Experiment(seed=0, model=model, training=training, privacy=level, phases=(phase,)), data)
            row[title] = 1 - float(errors_of(job, *trained(job, seeds=1)).mean())
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
            job = job_for(method, {**options, "step_size": 1.0}, level, data, "softmax")
            algorithms, states = trained(job)
            row[f"{title}, as trained"] = 1 - float(errors_of(job, algorithms, states).mean())
            for objective in OBJECTIVES:
                options = {"objective": objective, "start": title, "strength": 0.1, "step_size": 1.0, "steps": 50}
                row[f"{title}, {objective}"] = 1 - float(after(job, algorithms, states, "fine_tune", **options).mean())
        found[name] = row
    job = job_for("local", {"step_size": 1.0}, none(), data, "softmax")
    algorithms, states = trained(job)
    found["alone"] = {"trained and fine-tuned alone": 1 - float(after(job, algorithms, states, "fine_tune").mean())}
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
