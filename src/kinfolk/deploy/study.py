"""What all parties of a federation have agreed on: who takes part, what the columns are, and the experiment.

Every party has its own copy of the two files. A message carries their digest, so that nothing in them can be changed by
a message: not the method, not its numbers, not how many rounds there are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.building import build_algorithm, build_model
from kinfolk.experiment import ConfigError, Experiment, from_toml, load, to_toml
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.types import Algorithm, Model, Tree

STUDY_FILE, EXPERIMENT_FILE = "study.toml", "experiment.toml"


@dataclass(frozen=True)
class Roster:
    """Who takes part, and what their tables hold; the order of clients and features is part of the agreement."""

    name: str
    clients: tuple[str, ...]
    features: tuple[str, ...]
    outcome: str = "binary"
    """`number`, `binary` or `classes`."""
    classes: int = 0
    sizes: tuple[int, ...] = ()
    """The clients' public numbers of rows; needed only where means are weighted by size."""

    def __post_init__(self) -> None:
        if not self.clients or len(set(self.clients)) < len(self.clients):
            raise ConfigError(f"clients={self.clients}: at least one, and every name once")
        if not self.features or len(set(self.features)) < len(self.features):
            raise ConfigError(f"features={self.features}: at least one, and every name once")
        if self.sizes and (len(self.sizes) != len(self.clients) or min(self.sizes) < 1):
            raise ConfigError(f"sizes={self.sizes}: one for each of the {len(self.clients)} clients, all above 0")


def require_plain(level: PrivacyLevel) -> None:
    """Refuses what only simulations do so far: mechanisms that change, or remember something, from round to round."""
    usual = PrivacyLevel()
    names = ("clip_quantile", "noise_bands", "noise_power", "noise_factor", "clip_factor", "noise")
    changed = [name for name in names if getattr(level, name) != getattr(usual, name)]
    if changed:
        raise ConfigError(f"a federation cannot use privacy.{changed[0]} yet: leave {', '.join(changed)} out")


@dataclass(frozen=True)
class Study:
    """A roster and an experiment, made ready: the same program for everybody."""

    roster: Roster
    experiment: Experiment

    def __post_init__(self) -> None:
        if self.experiment.seeds != 1:
            raise ConfigError(f"seeds={self.experiment.seeds}: a federation runs once")
        if self.experiment.training.weights == "size" and not self.roster.sizes:
            raise ConfigError("weights='size' needs the clients' public sizes in study.toml")
        require_plain(self.experiment.privacy)
        training = self.experiment.training
        if training.weights == "precision" or training.tail or self.experiment.afterwards is not None:
            raise ConfigError("weights='precision', tail and afterwards are for simulations so far: leave them out")

    @cached_property
    def digest(self) -> str:
        """The same for two parties exactly if they agree on everything."""
        return hashlib.sha256((to_toml(self.roster) + to_toml(self.experiment)).encode()).hexdigest()

    @property
    def level(self) -> str:
        return self.experiment.privacy.level

    @property
    def clients(self) -> int:
        return len(self.roster.clients)

    @cached_property
    def model(self) -> Model:
        roster = self.roster
        return build_model(self.experiment.model, (len(roster.features),), roster.outcome, roster.classes)

    @cached_property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """One per phase, with its numbers as float32, as in simulation."""
        built = (build_algorithm(phase, self.level) for phase in self.experiment.phases)
        return tuple(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), algorithm) for algorithm in built)

    def phase(self, number: int) -> int:
        """The phase that a round belongs to."""
        for index, phase in enumerate(self.experiment.phases):
            number -= phase.rounds
            if number < 0:
                return index
        return len(self.experiment.phases) - 1

    @property
    def key(self) -> Array:
        """Public: it draws the initial weights, and everything else only where test keys are allowed."""
        seed = self.experiment.seed
        return jax.random.key(int(self.digest[:8], 16) if seed is None else seed, impl="threefry2x32")

    def first(self) -> Tree:
        """The shared state before the first round: data-free, the same for everybody."""
        return self.algorithms[0].init(self.model.init(jax.random.fold_in(self.key, 0)), self.clients)

    @cached_property
    def shapes(self) -> tuple[Tree, ...]:
        """For every phase, the shape of its shared state."""
        found = [jax.eval_shape(self.first)]
        for algorithm in self.algorithms[1:]:
            found.append(jax.eval_shape(lambda shared, a=algorithm: a.init(shared, self.clients), found[-1]))
        return tuple(found)

    def request_shape(self, phase: int) -> Tree:
        """What a request holds: the shared state, and after the first phase also the one that this phase began with."""
        return self.shapes[phase] if phase == 0 else (self.shapes[phase], self.shapes[phase])

    def weights(self) -> np.ndarray:
        """The clients' public weights in a mean."""
        if self.experiment.training.weights == "uniform":
            return np.ones(self.clients, np.float32)
        sizes = np.asarray(self.roster.sizes, float)
        return (sizes / sizes.mean()).astype(np.float32)


def read_study(folder: Path) -> Study:
    """The study in a folder with study.toml and experiment.toml."""
    return Study(read_record(Roster, folder / STUDY_FILE), load(folder / EXPERIMENT_FILE))


def read_record(kind: Any, path: Path) -> Any:
    """A dataclass in a TOML file."""
    try:
        return from_toml(path.read_text(), kind)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
