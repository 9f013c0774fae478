"""A calibrated job as a file, to be run on a machine that has jax and numpy but no accounting library.

`python -m kinfolk.training.job_file JOB.npz RESULT.npz` runs it. What it releases was charged before it was exported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.schedules import Schedule
from kinfolk.devices import usable
from kinfolk.engines import resident, results
from kinfolk.engines.resident import Clients, Plan, State
from kinfolk.files import npz
from kinfolk.personalize import AFTERWARDS
from kinfolk.privacy.choice import ExactMin, NoisyMin
from kinfolk.privacy.correlated_noise import CorrelatedSum, Turns
from kinfolk.privacy.levels import Level, Terms
from kinfolk.privacy.mechanisms import AdaptiveSum, ExactSum, GaussianSum, LaplaceSum, Sampling
from kinfolk.training.build import build_model
from kinfolk.training.experiment import ModelChoice
from kinfolk.types import Afterwards, Algorithm, Rows, Tree

VERSION = 1


@dataclass(frozen=True)
class Parcel:
    """Everything an engine needs for some runs with the same program."""

    model: ModelChoice
    shape: tuple[int, ...]
    """Of one example."""
    outcome: str
    classes: int
    level: str
    widths: tuple[int, ...]
    most_steps: tuple[int, ...]
    tail_from: int | None
    rounds: tuple[int, ...]
    """Of each phase."""
    first_seed: int
    algorithms: tuple[Algorithm, ...]
    """One per phase; leaves have a leading sweep axis, as those of `terms`."""
    terms: Terms
    clients: Clients
    """Leaves have a leading seed axis, as those of `tests`."""
    tests: tuple[Rows, ...]
    afterwards: Afterwards | None = None

    def plan(self) -> Plan:
        model = build_model(self.model, self.shape, self.outcome, self.classes)
        return Plan(model, Level(self.level), self.widths, self.most_steps, self.tail_from, devices=usable())


_OTHERS = (Parcel, ModelChoice, Schedule, Terms, Clients, Rows, Sampling, Turns)
_MECHANISMS = (GaussianSum, AdaptiveSum, CorrelatedSum, LaplaceSum, ExactSum, NoisyMin, ExactMin)
_KNOWN = (*_OTHERS, *_MECHANISMS, *(entry.make for entry in REGISTRY.values()), *AFTERWARDS.values())
CLASSES = {kind.__name__: kind for kind in _KNOWN}


def save(value: Tree, path: Path) -> None:
    """Writes a parcel, or anything made of the same classes: one array per leaf, the rest as JSON, and no code."""
    leaves: list[np.ndarray] = []
    about = {"version": VERSION, "form": _form(value, leaves)}
    arrays = {f"leaf{n}": leaf for n, leaf in enumerate(leaves)}
    path.write_bytes(npz({"about": np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays}))


def load(path: Path) -> Tree:
    """What `save` wrote."""
    with np.load(path, allow_pickle=False) as file:
        about = json.loads(file["about"].tobytes())
        if about["version"] != VERSION:
            raise ValueError(
                f"{path} has version {about['version']}, and this kinfolk reads {VERSION}: export it again"
            )
        leaves = [file[f"leaf{n}"] for n in range(len(file.files) - 1)]
    return _value(about["form"], leaves)


def digest(path: Path) -> str:
    """What a parcel is known by."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _form(value: object, leaves: list[np.ndarray]) -> dict[str, object]:
    """How a value is made of leaves, as JSON; the leaves are collected."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: {"static": getattr(value, f.name)}
            if f.metadata.get("static")
            else _form(getattr(value, f.name), leaves)
            for f in dataclasses.fields(value)
        }
        return {"class": type(value).__name__, "fields": fields}
    if isinstance(value, tuple | list) and not all(isinstance(item, int | str) for item in value):
        return {"items": [_form(item, leaves) for item in value]}
    if isinstance(value, np.ndarray | jax.Array | float | np.generic):
        leaves.append(np.asarray(value))
        return {"leaf": len(leaves) - 1}
    return {"static": value}


def _value(form: Any, leaves: Sequence[np.ndarray]) -> Tree:
    if "class" in form:
        return CLASSES[form["class"]](**{name: _value(part, leaves) for name, part in form["fields"].items()})
    if "items" in form:
        return tuple(_value(part, leaves) for part in form["items"])
    if "leaf" in form:
        return jnp.asarray(leaves[form["leaf"]])
    value = form["static"]
    return tuple(value) if isinstance(value, list) else value


def run(parcel: Parcel, chunks: int = 1) -> tuple[State, dict[str, np.ndarray], dict[str, float]]:
    """Runs a parcel: the final state, every client's test errors, and seconds for compiling and for running."""
    plan = parcel.plan()
    seeds = jax.tree.leaves(parcel.clients)[0].shape[0]
    numbers = jnp.arange(parcel.first_seed, parcel.first_seed + seeds, dtype=jnp.uint32)
    keys = jax.vmap(lambda number: jax.random.key(number, impl="threefry2x32"))(numbers)
    state, begin = resident.start_all(plan, parcel.algorithms[0], keys), 0
    seconds = {"compile": 0.0, "run": 0.0}
    for phase, (algorithms, rounds) in enumerate(zip(parcel.algorithms, parcel.rounds, strict=True)):
        if phase:
            state = resident.enter_phase(plan, algorithms, state)
        started = time.perf_counter()
        arguments = (plan, algorithms, parcel.terms, parcel.clients, state, jnp.int32(0), jnp.int32(0))
        compiled = resident.run_rounds.lower(*arguments).compile()
        seconds["compile"] += time.perf_counter() - started
        started = time.perf_counter()
        edges = [begin + rounds * part // chunks for part in range(chunks + 1)]
        for first, last in itertools.pairwise(edges):
            state = compiled(*arguments[1:4], state, jnp.int32(first), jnp.int32(last))
        jax.block_until_ready(state)
        seconds["run"] += time.perf_counter() - started
        begin += rounds
    if parcel.afterwards is not None:
        rest = (parcel.algorithms[-1], parcel.terms, parcel.clients, state)
        state = results.personalise(plan, parcel.afterwards, *rest)
    found = results.errors(plan, parcel.algorithms[-1], parcel.tests, state)
    return state, {name: np.asarray(values) for name, values in found.items()}, seconds


def result_arrays(state: State) -> tuple[Tree, ...]:
    """What comes back from a run besides errors: everything but keys."""
    own, theirs = ((m.uses, m.draws, m.memory) for m in (state.meters, state.server))
    return state.shared, state.personal, state.models, own, theirs


def main() -> None:
    job, result = (Path(name) for name in sys.argv[1:3])
    state, errors, seconds = run(load(job))
    leaves = {f"leaf{n}": np.asarray(leaf) for n, leaf in enumerate(jax.tree.leaves(result_arrays(state)))}
    device = np.array(jax.devices()[0].device_kind)
    arrays = {"job": np.array(digest(job)), "device": device, **errors, **leaves}
    arrays |= {f"{k}_seconds": np.array(v) for k, v in seconds.items()}
    result.write_bytes(npz(arrays, compressed=False))
    print(json.dumps({"device": str(device), **seconds, "mean_error": float(errors["error"].mean())}))


if __name__ == "__main__":
    main()
