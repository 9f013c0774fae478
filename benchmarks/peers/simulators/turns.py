"""What every peer's script shares: the task, and taking turns with the others. Needs NumPy only.

A script gives `serve` a function that trains and returns the final weights; it calls `turn()` before the first round
and after every round. The bench lets one peer at a time do its round; what is printed besides is ignored.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MARK = "@peer "


@dataclass(frozen=True)
class Task:
    """The federation, the model and the settings that are the same for all."""

    model: str
    x: np.ndarray
    """Images of shape (clients, most images, 28, 28), ink 1 and paper 0."""
    y: np.ndarray
    sizes: np.ndarray
    classes: int
    weights: list[tuple[np.ndarray, np.ndarray]]
    """Initial (weights, bias) of every layer: dense as (inputs, outputs), convolutions as (height x width x inputs,
    outputs)."""
    rounds: int
    in_a_turn: int
    """Rounds that a peer does at a time."""
    cohort: int
    batch_size: int
    step_size: float
    clip: float
    noise: float
    seed: int = 0

    def rows(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """One client's images and labels."""
        return self.x[client, : self.sizes[client]], self.y[client, : self.sizes[client]]


def read(path: str) -> Task:
    with np.load(path) as file:
        values = json.loads(str(file["settings"]))
        layers = [(file[f"weights{n}"], file[f"bias{n}"]) for n in range(values.pop("layers"))]
        return Task(x=file["x"], y=file["y"], sizes=file["sizes"], weights=layers, **values)


def write(task: Task, path: Any) -> None:
    arrays = ("x", "y", "sizes", "weights")
    settings = {name: value for name, value in vars(task).items() if name not in arrays}
    layers = {
        f"{n}{k}": a for k, pair in enumerate(task.weights) for n, a in zip(("weights", "bias"), pair, strict=True)
    }
    text = json.dumps({**settings, "layers": len(task.weights)})
    np.savez(path, settings=np.array(text), x=task.x, y=task.y, sizes=task.sizes, **layers)


def say(**values: Any) -> None:
    print(MARK + json.dumps(values), flush=True)


@dataclass
class Turn:
    """Says how long the rounds of the last turn took, and waits until it is this peer's turn again."""

    rounds: int
    in_a_turn: int
    done: int = 0
    began: float | None = None

    def __call__(self, rounds: int = 1) -> None:
        """Called before the first round, and after every `rounds` rounds."""
        self.done += 0 if self.began is None else rounds
        if self.done % self.in_a_turn:
            return
        say(seconds=None if self.began is None else (time.perf_counter() - self.began) / self.in_a_turn)
        if self.done < self.rounds and not sys.stdin.readline():
            sys.exit("the bench is gone")
        self.began = time.perf_counter()


def serve(main: Callable[[Task, Turn], list[tuple[Any, Any]]]) -> None:
    """Runs `main` on the task in the file named first, and writes the final weights to the file named second."""
    task = read(sys.argv[1])
    finish(main(task, Turn(task.rounds, task.in_a_turn)))


def finish(weights: list[tuple[Any, Any]]) -> None:
    arrays = {
        f"{n}{k}": np.asarray(a)
        for k, pair in enumerate(weights)
        for n, a in zip(("weights", "bias"), pair, strict=True)
    }
    np.savez(sys.argv[2], **arrays)
    say(done=True)
