"""How good clients' models are on their test rows. Private, all of it: looking costs nothing only in a simulation."""

from __future__ import annotations

import jax
import numpy as np

from kinfolk import trees
from kinfolk.engines import results
from kinfolk.engines.resident import State
from kinfolk.training import scorecard
from kinfolk.training.build import as_sweep, shared_model
from kinfolk.training.prepare import Job
from kinfolk.training.scorecard import Numbers, Scorecard
from kinfolk.types import Tree


def measure(job: Job, phase: int, state: State) -> dict[str, np.ndarray]:
    """Test loss and error of every seed and client."""
    found = results.errors(job.plan, as_sweep(job.algorithms[phase]), job.tests, state)
    return {name: np.asarray(values)[0] for name, values in found.items()}


def measured(errors: np.ndarray) -> np.ndarray:
    """Numbers of the clients that have test rows in every seed."""
    return np.flatnonzero(~np.isnan(errors).any(axis=0))


def summary(numbers: dict[str, np.ndarray]) -> dict[str, float]:
    """Means over seeds: the mean client's error, and that of the worst tenth of clients; empty where none has any."""
    clients = measured(numbers["error"])
    if not len(clients):
        return {}
    errors = np.sort(numbers["error"][:, clients], axis=1)
    worst = max(1, errors.shape[1] // 10)
    return {
        "loss": float(numbers["loss"][:, clients].mean()),
        "error": float(errors.mean()),
        "worst_decile_error": float(errors[:, -worst:].mean()),
    }


def watched(job: Job, numbers: Numbers) -> dict[str, float]:
    """The metric that a run is judged by, under its name and unit, for those who watch; empty where nothing was
    measured.
    """
    first = scorecard.yardsticks(job.plan.model.outcome, job.federations[0].target)[0]
    found = numbers[first.key][:, measured(numbers[first.key])]
    return {first.words: first.factor * float(found.mean())} if found.size else {}


def at_the_end(job: Job, phase: int, state: Tree, numbers: Numbers) -> tuple[Scorecard | None, dict[str, np.ndarray]]:
    """What a run's models are worth beside the constant and the shared model: the scorecard, and each client's.

    Each client's are those of the first metric, in the target's own unit, as `value`, `constant` and `shared`, with
    axes (seeds, clients). Where clients are streamed, the shared model, the AUC and the C-index are not measured.

    `phase`: the last. `state`: after it. `numbers`: what was measured of everybody.
    """
    model, data = job.plan.model, job.federations
    if not any(np.asarray(one.test.sizes).any() for one in data):
        return None, {}
    seeds = range(len(numbers["error"]))
    own, shared = dict(numbers), None
    if job.experiment.engine.store == "device":
        lacking = [one.key for one in scorecard.yardsticks(model.outcome, data[0].target) if one.key not in numbers]
        if lacking:
            models = jax.device_get(results.all_models(as_sweep(job.algorithms[phase]), state))
            found = [scorecard.of_models(model, trees.row(models, (0, n)), data[n % len(data)]) for n in seeds]
            own |= {key: scorecard.together(found)[key] for key in lacking}
        published = jax.device_get(state.shared)
        common = [shared_model(job.experiment.phases[phase].method, model, trees.row(published, (0, n))) for n in seeds]
        if all(one is not None for one in common):
            pairs = zip(common, seeds, strict=True)
            shared = scorecard.together(
                [scorecard.of_models(model, p, data[n % len(data)], one=True) for p, n in pairs]
            )
    constant = scorecard.together([scorecard.constants(model.outcome, data[n % len(data)]) for n in seeds])
    card = scorecard.scorecard(model.outcome, data[0].target, own, constant, shared)
    first = scorecard.yardsticks(model.outcome, data[0].target)[0]
    known = {"value": own, "constant": constant, "shared": shared or {}}
    return card, {name: first.factor * part[first.key] for name, part in known.items() if first.key in part}


def gains(alone: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
    """How many clients (mean over seeds) do better than alone, and how many lose anything, or more than 5 %."""
    clients = measured(alone)
    alone, chosen = alone[:, clients], chosen[:, clients]
    if not len(clients):
        return {"clients": 0, "gained": 0.0, "lost": 0.0, "lost_more_than_5_percent": 0.0}
    return {
        "clients": int(alone.shape[1]),
        "gained": float((chosen < alone).sum(axis=1).mean()),
        "lost": float((chosen > alone).sum(axis=1).mean()),
        "lost_more_than_5_percent": float((chosen > 1.05 * alone).sum(axis=1).mean()),
        "error_alone": float(alone.mean()),
        "error": float(chosen.mean()),
    }
