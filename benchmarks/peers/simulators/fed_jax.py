"""FedJAX: its `for_each_client`, as its own algorithms are written, with a clip and noise."""

from __future__ import annotations

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.simulators.jax_model import mean_loss
from benchmarks.peers.simulators.turns import Task, Turn, serve


def main(task: Task, turn: Turn) -> list[tuple[Any, Any]]:
    def loss(params: Any, batch: Any) -> Any:
        return mean_loss(task, params, batch["x"], batch["y"])

    def init(shared: Any, _: Any) -> Any:
        return {"params": shared, "shared": shared}

    def step(state: Any, batch: Any) -> Any:
        gradient = jax.grad(loss)(state["params"], batch)
        return {**state, "params": jax.tree.map(lambda w, g: w - task.step_size * g, state["params"], gradient)}

    def final(_: Any, state: Any) -> Any:
        moved = jax.tree.map(jnp.subtract, state["params"], state["shared"])
        return fedjax.tree_util.tree_clip_by_global_norm(moved, task.clip)

    @jax.jit
    def server(params: Any, total: Any, key: Any) -> Any:
        keys = iter(jax.random.split(key, len(jax.tree.leaves(params))))
        return jax.tree.map(
            lambda w, t: w + (t + task.noise * task.clip * jax.random.normal(next(keys), t.shape)) / task.cohort,
            params,
            total,
        )

    train = fedjax.for_each_client(init, step, final)
    generator = np.random.default_rng(task.seed)
    rows = [
        fedjax.ClientDataset({"x": x[..., None], "y": y.astype(np.int32)})
        for x, y in map(task.rows, range(len(task.sizes)))
    ]
    params = [(jnp.asarray(weights), jnp.asarray(bias)) for weights, bias in task.weights]
    for number in range(task.rounds):
        turn()
        cohort = generator.choice(len(rows), task.cohort, replace=False)
        batches = [
            (c, rows[c].shuffle_repeat_batch(batch_size=task.batch_size, num_epochs=1, seed=1000 * number + n), None)
            for n, c in enumerate(cohort.tolist())
        ]
        total = fedjax.tree_util.tree_sum(moved for _, moved in train(params, batches))
        params = jax.block_until_ready(server(params, total, jax.random.key(number)))
    turn()
    return params


if __name__ == "__main__":
    serve(main)
