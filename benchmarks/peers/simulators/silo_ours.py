"""kinfolk: one silo's own training at example level, by the engine that trains any number of them."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.simulators.ours import federation, train
from benchmarks.peers.simulators.turns import Task, Turn, serve
from kinfolk.privacy.levels import example_level
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training


def main(task: Task, turn: Turn) -> list[tuple[Any, Any]]:
    experiment = Experiment(
        seed=0,
        model=ModelChoice(task.model),
        training=Training(task.batch_size),
        privacy=example_level(noise_multiplier=task.noise, clip=task.clip, allow_large_delta=True),
        phases=(Phase("mean_regularized", task.rounds, {"strength": float("inf"), "step_size": task.step_size}),),
    )
    return train(experiment, federation(task), task, turn)


if __name__ == "__main__":
    serve(main)
