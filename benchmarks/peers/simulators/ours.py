"""kinfolk: mean-regularised training at client level, personal states included.

With infinite strength every client starts its round from the shared model, so the shared model is that of federated
averaging; the program, and so the time, is the same for every strength.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.simulators.turns import Task, Turn, serve
from kinfolk.data.client_data import padded
from kinfolk.data.federation import Federation
from kinfolk.engines import resident
from kinfolk.privacy.levels import client_level
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import prepare
from kinfolk.training.sweep import sweep_of


def federation(task: Task) -> Federation:
    clients, longest = task.y.shape
    places = np.arange(clients * longest).reshape(clients, longest)
    parts = [own[:size] for own, size in zip(places, task.sizes, strict=True)]
    rows = padded(task.x.reshape(-1, 28, 28, 1), task.y.reshape(-1), parts)
    names = tuple(f"writer-{k:03d}" for k in range(clients))
    return Federation("femnist", names, rows, rows, "classes", task.classes, "pixels divided by 255")


def main(task: Task, turn: Turn) -> list[tuple[Any, Any]]:
    experiment = Experiment(
        seed=0,
        model=ModelChoice(task.model),
        training=Training(task.batch_size, batches="shuffled"),
        privacy=client_level(noise_multiplier=task.noise, clip=task.clip, cohort=task.cohort, allow_large_delta=True),
        phases=(Phase("mean_regularized", task.rounds, {"strength": float("inf"), "step_size": task.step_size}),),
    )
    return train(experiment, federation(task), task, turn)


def train(experiment: Experiment, data: Federation, task: Task, turn: Turn) -> list[tuple[Any, Any]]:
    """The shared model after the task's rounds, from the task's first weights."""
    warnings.simplefilter("ignore")
    job = prepare(experiment, [data])
    figure = sweep_of(job)
    state = figure.init([task.seed])
    first = tuple(
        {"weights": jnp.asarray(weights)[None, None], "bias": jnp.asarray(bias)[None, None]}
        for weights, bias in task.weights
    )
    layers = iter(first)
    shared = tuple(next(layers) if own else {} for own in state.shared)
    everyone = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, :, None], job.plan.clients, axis=2), shared)
    own = resident.State(shared, everyone, state.meters, state.server)
    state = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), own, state)  # where rounds look for it
    for number in range(0, task.rounds, task.in_a_turn):
        turn(task.in_a_turn)
        state = jax.block_until_ready(figure.rounds(state, number, number + task.in_a_turn))
    turn(task.in_a_turn)
    return [(own["weights"][0, 0], own["bias"][0, 0]) for own in state.shared if own]


if __name__ == "__main__":
    serve(main)
