"""How good clients' models are on their test rows. Private, all of it: looking costs nothing only in a simulation."""

from __future__ import annotations

import numpy as np

from kinfolk.engines import resident
from kinfolk.engines.resident import State
from kinfolk.training.build import as_sweep
from kinfolk.training.prepare import Job


def measure(job: Job, phase: int, state: State) -> dict[str, np.ndarray]:
    """Test loss and error of every seed and client."""
    found = resident.errors(job.plan, as_sweep(job.algorithms[phase]), job.tests, state)
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
