"""Opacus: one silo's DP-SGD with its private engine, loader and optimizer.

As `opacus` every example's gradient is written down (hooks, the default); as `opacus_ghost` only norms are, and a
second backward pass sums the clipped gradients (`grad_sample_mode="ghost"`).
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.simulators.torch_model import build, common
from benchmarks.peers.simulators.turns import Task, Turn, serve


def main(task: Task, turn: Turn) -> list[tuple[Any, Any]]:
    warnings.simplefilter("ignore")
    torch.manual_seed(task.seed)
    x, y = task.rows(0)
    network = build(task)
    settings: dict[str, Any] = {"noise_multiplier": task.noise, "max_grad_norm": task.clip}
    ghost = sys.argv[3] == "opacus_ghost"
    if ghost:
        settings |= {"criterion": torch.nn.CrossEntropyLoss(), "grad_sample_mode": "ghost"}
    model, optimizer, *criterion, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=task.step_size),
        data_loader=DataLoader(
            TensorDataset(torch.tensor(x)[:, None], torch.tensor(y).long()), batch_size=task.batch_size
        ),
        **settings,
    )
    loss = criterion[0] if ghost else torch.nn.CrossEntropyLoss()
    for _ in range(task.rounds):
        turn()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            optimizer.step()
    turn()
    return common(network)


if __name__ == "__main__":
    serve(main)
