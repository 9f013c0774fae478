"""A plain loop over clients in torch: what anybody would write first."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers.simulators.torch_model import build, common
from benchmarks.peers.simulators.turns import Task, Turn, serve


def main(task: Task, turn: Turn) -> list[tuple[Any, Any]]:
    torch.manual_seed(task.seed)
    generator = np.random.default_rng(task.seed)
    model = build(task)
    rows = [(torch.tensor(x)[:, None], torch.tensor(y).long()) for x, y in map(task.rows, range(len(task.sizes)))]
    shared = parameters_to_vector(model.parameters()).detach().clone()
    for _ in range(task.rounds):
        turn()
        total = torch.zeros_like(shared)
        for client in generator.choice(len(rows), task.cohort, replace=False):
            vector_to_parameters(shared, model.parameters())
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
            x, y = rows[client]
            optimizer = torch.optim.SGD(model.parameters(), lr=task.step_size)
            for batch in torch.randperm(len(y)).split(task.batch_size):
                optimizer.zero_grad()
                functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
            moved = parameters_to_vector(model.parameters()).detach() - shared
            total += moved * min(1.0, task.clip / max(float(moved.norm()), 1e-30))
        total += task.noise * task.clip * torch.randn_like(total)
        shared = shared + total / task.cohort
    turn()
    vector_to_parameters(shared, model.parameters())
    return common(model)


if __name__ == "__main__":
    serve(main)
