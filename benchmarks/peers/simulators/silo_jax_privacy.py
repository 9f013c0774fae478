"""jax_privacy: one silo's DP-SGD from its sampling, its clipped gradients and its noise.

Batches are padded to whole multiples of 32, so that few shapes are compiled.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import batch_selection, clipped_grad, noise_addition

from benchmarks.peers.simulators.jax_model import mean_loss
from benchmarks.peers.simulators.turns import Task, Turn, serve

MULTIPLE = 32


def main(task: Task, turn: Turn) -> list[tuple[Any, Any]]:
    images, labels = task.rows(0)
    x, y = jnp.asarray(images)[..., None], jnp.asarray(labels)
    steps = len(labels) // task.batch_size
    gradient = clipped_grad(
        lambda params, x, y: mean_loss(task, params, x, y),
        l2_clip_norm=task.clip,
        normalize_by=task.batch_size,
        batch_argnums=(1, 2),
    )
    deviation = task.noise * gradient.sensitivity()
    privatizer = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=jax.random.key(task.seed))

    @jax.jit
    def step(params: Any, noise: Any, places: Any) -> Any:
        total = gradient(params, x[places], y[places], is_padding_example=places < 0)
        noisy, noise = privatizer.update(total, noise)
        return jax.tree.map(lambda w, g: w - task.step_size * g, params, noisy), noise

    params = jax.tree.map(jnp.asarray, task.weights)
    noise = privatizer.init(params)
    sampling = batch_selection.CyclicPoissonSampling(task.batch_size / len(labels), task.rounds * steps)
    batches = sampling.batch_iterator(len(labels), np.random.default_rng(task.seed))
    for _ in range(task.rounds):
        turn()
        for _ in range(steps):
            places = batch_selection.pad_to_multiple_of(next(batches), MULTIPLE)
            params, noise = step(params, noise, places)
        jax.block_until_ready(params)
    turn()
    return params


if __name__ == "__main__":
    serve(main)
