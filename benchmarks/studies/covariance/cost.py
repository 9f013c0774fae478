"""What one-shot empirical Bayes costs for very many clients, taken in chunks."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.studies.covariance.methods import whole_noise
from benchmarks.studies.covariance.one_shot import in_chunks


def seconds(ridge: float) -> dict[str, Any]:
    """Data generation and compiling are not counted."""
    rows, chunk, result = 20, 2000, {"rows": 20, "ridge": ridge}

    def timed(clients: int, features: int) -> float:
        generator = np.random.default_rng(0)
        basis = generator.normal(size=(5, features)).astype(np.float32)
        taken = spent = 0.0

        def rows_of(number: int) -> tuple[Any, Any, Any]:
            nonlocal spent
            began = time.process_time()
            own = np.random.default_rng(number)
            x = own.normal(size=(chunk, rows, features)).astype(np.float32)
            x /= np.linalg.norm(x, axis=2, keepdims=True)
            truth = own.normal(size=(chunk, 5)).astype(np.float32) @ basis
            y = np.einsum("mnd,md->mn", x, truth) + 0.1 * own.normal(size=(chunk, rows)).astype(np.float32)
            found = jnp.asarray(x), jnp.asarray(y, jnp.float32), jnp.ones((chunk, rows), bool)
            spent += time.process_time() - began
            return found

        noise = whole_noise(1.0, 1e-6)
        for _ in range(2):  # the first time compiles
            began, spent = time.process_time(), 0.0
            in_chunks(jax.random.key(0), clients // chunk, rows_of, ridge, noise)
            taken = time.process_time() - began - spent
        return taken

    for clients, features in ((20_000, 50), (20_000, 100), (20_000, 200), (50_000, 200), (100_000, 200)):
        result[f"{clients} clients, {features} features"] = timed(clients, features)
    return result
