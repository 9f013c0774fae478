"""Averages of classifiers that were tried for self-selection, on the design settings: against models of clients' own.

    KINFOLK_DATA=... python -m benchmarks.studies.defaults.plan FOLDER --half design --level client
    python -m benchmarks.studies.defaults.averages FOLDER [heart ...]

Prints every cell's ratio, and their geometric mean and the largest for each way. Settings: what names begin with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.studies.defaults.compute import losses_of
from kinfolk import trees
from kinfolk.engines import resident, results
from kinfolk.personalize import self_select
from kinfolk.personalize.self_select import STRENGTHS, Candidate, SelfSelect
from kinfolk.privacy.gates import DataGate
from kinfolk.privacy.levels import Level
from kinfolk.training import job_file
from kinfolk.training.build import build_model
from kinfolk.training.experiment import ModelChoice
from kinfolk.types import Model, Params, Rows

Shares = Callable[[Model, Rows, Candidate], Array]
CHOSEN = self_select._shares


def weighted(part: float) -> Shares:
    """exp(-`part` x loss)."""
    return lambda model, rows, every: jax.nn.softmax(-part * every.losses.sum(axis=1))


WAYS: dict[str, tuple[Shares, tuple[float, ...]]] = {
    "exp(-loss / 2)": (weighted(0.5), STRENGTHS),
    "exp(-loss)": (weighted(1.0), STRENGTHS),
    "Q-aggregation": (CHOSEN, STRENGTHS),
    "Q-aggregation, strength 0.001 too": (CHOSEN, (0.001, *STRENGTHS)),
}
"""How shares are found, and which strengths candidates have."""


@trees.register
@dataclass(frozen=True)
class Tried:
    """Self-selection in one of these ways."""

    way: str = field(metadata={"static": True})

    def __call__(self, common: Params, model: Params, gate: DataGate) -> Params:
        shares, strengths = WAYS[self.way]
        with patch.object(self_select, "_shares", shares):
            return SelfSelect(strengths=strengths).choose(gate.model, gate.examples(), common)


def ratios(path: Path) -> dict[str, list[float]]:
    """For every way, its loss over that of models of clients' own, in every cell of one planned file."""
    about = json.loads(path.with_suffix(".json").read_text())
    clients, tests, programs = job_file.load(path)
    model = build_model(ModelChoice(about["model"]), tuple(about["shape"]), about["outcome"], about["classes"])
    plan = resident.Plan(model, Level(about["level"]), tuple(about["widths"]), tuple(about["most_steps"]))
    keys = jax.vmap(jax.random.key)(jnp.asarray(about["seeds"] * len(about["taus"]), jnp.uint32))
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for piece, (algorithm, terms, *_) in zip(about["pieces"], programs, strict=True):
        if not piece["names"][0].startswith("default"):
            continue
        states = resident.start_all(plan, algorithm, keys)
        states = resident.run_rounds(plan, algorithm, terms, clients, states, jnp.int32(0), jnp.int32(piece["rounds"]))
        losses = {}
        for name, step in {**{way: Tried(way) for way in WAYS}, "own": SelfSelect(rule="alone")}.items():
            after = results.personalise(plan, step, algorithm, terms, clients, states)
            every = np.array(losses_of(plan, algorithm, tests, after)[0])
            losses[name] = every.reshape(len(about["taus"]), -1).mean(axis=1)
        for way in WAYS:
            found[way] += (losses[way] / losses["own"]).round(4).tolist()
    return found


def main() -> None:
    """The command."""
    folder, *names = sys.argv[1:]
    paths = [one for one in sorted(Path(folder).glob("*.npz")) if one.name.startswith(tuple(names) or "")]
    done = {}
    for path in paths:
        done[path.stem] = ratios(path)
        print(path.stem, done[path.stem], flush=True)
    for way in WAYS:
        every = np.array([ratio for one in done.values() for ratio in one[way]])
        print(f"{way}: geometric mean {np.exp(np.log(every).mean()):.4f}, worst {every.max():.4f}")


if __name__ == "__main__":
    main()
