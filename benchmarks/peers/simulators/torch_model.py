"""The two models in torch, from and to the common weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers.simulators.turns import Task


def build(task: Task) -> nn.Module:
    """The task's model with its initial weights."""
    if task.model == "softmax":
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, task.classes))
    else:
        model = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, task.classes),
        )
    for layer, (weights, bias) in zip(layers(model), task.weights, strict=True):
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(_to_torch(layer, weights)))
            layer.bias.copy_(torch.tensor(bias))
    return model


def layers(model: nn.Module) -> list[Any]:
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def common(model: nn.Module) -> list[tuple[np.ndarray, np.ndarray]]:
    """The weights as every peer returns them."""
    return [(_from_torch(one, one.weight), one.bias.detach().numpy()) for one in layers(model)]


def _after_images(layer: Any) -> bool:
    """Whether this dense layer reads a flattened image, whose channels come first in torch and last elsewhere."""
    return isinstance(layer, nn.Linear) and layer.in_features == 3136


def _to_torch(layer: Any, weights: np.ndarray) -> np.ndarray:
    if isinstance(layer, nn.Conv2d):
        return weights.reshape(5, 5, layer.in_channels, layer.out_channels).transpose(3, 2, 0, 1).copy()
    if _after_images(layer):
        weights = weights.reshape(7, 7, 64, -1).transpose(2, 0, 1, 3).reshape(3136, -1)
    return weights.T.copy()


def _from_torch(layer: Any, weights: torch.Tensor) -> np.ndarray:
    values = weights.detach().numpy()
    if isinstance(layer, nn.Conv2d):
        return values.transpose(2, 3, 1, 0).reshape(-1, layer.out_channels)
    values = values.T
    if _after_images(layer):
        values = values.reshape(64, 7, 7, -1).transpose(1, 2, 0, 3).reshape(3136, -1)
    return values
