"""An experiment: all that is needed to repeat a run, as dataclasses and as TOML, which is their text form.

>>> from kinfolk.toml import to_toml
>>> print(to_toml(Experiment(seed=1, phases=(Phase("local", 5),))).splitlines()[1])
seed = 1
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kinfolk import limits
from kinfolk.algorithms.registry import check_numbers
from kinfolk.data.choice import DataChoice
from kinfolk.personalize.registry import check_numbers as check_afterwards
from kinfolk.privacy.levels import PrivacyLevel, example_level
from kinfolk.toml import ConfigError, from_toml, shown
from kinfolk.training.relation_files import with_files_read

WEIGHTS = ("uniform", "size", "precision")
STORES = ("device", "memory", "disk")
BATCHES = ("poisson", "shuffled")


@dataclass(frozen=True)
class Afterwards:
    """What every client does alone with its model after the last round: free at client level."""

    method: str = "fine_tune"
    """`fine_tune` or `self_select`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of that method, where they differ from its defaults."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", check_afterwards(self.method, self.options))


@dataclass(frozen=True)
class ModelChoice:
    """Which model: linear (for whatever outcome the data have), logistic, softmax and others for one outcome (each also
    with `sparse_` before it, for sparse rows), mlp, cnn, or a network of fixed widths (see `models.NETWORKS`); `own` is
    one that `run` was given as an object."""

    name: str = "linear"
    """The model's name."""
    hidden: tuple[int, ...] = (64,)
    """Widths of the hidden layers (mlp) or channels of the convolutions (cnn)."""

    def __post_init__(self) -> None:
        limits.settle(self)


@dataclass(frozen=True)
class Training:
    """Local work in a round."""

    batch_size: int | None = field(default=32, metadata={"none": 0})
    """Expected batch size; a client with fewer examples uses them all. None (in TOML 0): full batches."""
    epochs: int = 1
    """Passes over a client's data in a round."""
    batches: str = "poisson"
    """How a batch is drawn: `poisson` (a coin for every example, what accounts need at example level), or parts of a
    `shuffled` pass, which cost less time where nothing is paid for a look."""
    weights: str = "uniform"
    """Weights of the clients in a mean: uniform, by (public) size, or by the precision that their noise leaves."""
    tail: float = 0.0
    """Share of the rounds, at the end, over which a client's models are averaged; 0 keeps the last one. It is free."""

    def __post_init__(self) -> None:
        if limits.is_number(self.batch_size) and self.batch_size < 1:  # type: ignore[operator]
            raise ConfigError(
                f"batch_size={self.batch_size} must be at least 1: for full batches give None, in TOML and on the "
                "command line 0"
            )
        limits.settle(self)
        if self.batches not in BATCHES:
            raise ConfigError(f"batches={self.batches!r} is not one of {BATCHES}")
        if self.weights not in WEIGHTS:
            raise ConfigError(f"weights={self.weights!r} is not one of {WEIGHTS}")


@dataclass(frozen=True)
class Engine:
    """How a simulation is computed: results do not depend on it."""

    store: str = "device"
    """Where clients' states are: `device`, all in the program; for very many clients `memory` or `disk`, and only a
    round's cohort in the program."""
    devices: int | None = None
    """Among how many devices a round's clients are divided; all that JAX sees, where none is given."""

    def __post_init__(self) -> None:
        limits.settle(self)
        if self.store not in STORES:
            raise ConfigError(f"store={self.store!r} is not one of {STORES}")


@dataclass(frozen=True)
class Phase:
    """Some rounds of one algorithm."""

    method: str = "mean_regularized"
    """An algorithm's name in the registry."""
    rounds: int = 60
    """How many rounds."""
    options: dict[str, Any] = field(default_factory=dict)
    """The algorithm's hyper-parameters, where they differ from its defaults; an array becomes a list, as in TOML."""

    def __post_init__(self) -> None:
        plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in self.options.items()}
        limits.settle(self)
        object.__setattr__(self, "options", check_numbers(self.method, plain))


@dataclass(frozen=True)
class Experiment:
    """All that is needed to repeat a run."""

    name: str = "run"
    """What the names of its run directories begin with."""
    seed: int | None = None
    """With a seed the run is a simulation, and can be repeated; without one it is a release, and cannot."""
    seeds: int = 1
    """Repetitions with seeds `seed`, `seed` + 1, ..., computed together."""
    data: DataChoice = field(default_factory=DataChoice)
    """Which federation."""
    model: ModelChoice = ModelChoice()
    """Which model."""
    training: Training = Training()
    """Local work in a round."""
    privacy: PrivacyLevel = field(default_factory=lambda: example_level(epsilon=3.0))
    """Level, budget and clip."""
    phases: tuple[Phase, ...] = (Phase(),)
    """Methods and their rounds, one after another."""
    afterwards: Afterwards | None = None
    """What clients do alone at the end; None: nothing."""
    engine: Engine = Engine()
    """How it is computed; results do not depend on it."""
    evaluate: float | None = None
    """Epsilon of one evaluation on the test rows at the end, beside that of training, whose metrics may be published;
    None: none is planned."""
    why: str = ""
    """Why the method was chosen and what it is expected to gain, in a sentence, where a recipe chose it; from public
    numbers alone."""

    def __post_init__(self) -> None:
        for name, value, kind in (("data", self.data, DataChoice), ("model", self.model, ModelChoice)):
            if not isinstance(value, kind):
                raise ConfigError(
                    f"{name}={type(value).__name__}: an experiment names its {name} ({kind.__name__}); give an object "
                    f"to run(experiment, {name}=...)"
                )
        require_level(self.privacy)
        require_training(self.training)
        _require_phases(self.phases)
        limits.settle(self)
        if self.seed is not None:
            limits.checked("seed", self.seed + self.seeds - 1)
        if self.seed is None and self.seeds > 1:
            raise ConfigError(f"seeds={self.seeds} needs a seed: a release is one run")

    @property
    def rounds(self) -> int:
        """Rounds of all phases together."""
        return sum(phase.rounds for phase in self.phases)

    @property
    def spans(self) -> tuple[range, ...]:
        """The rounds of each phase, by their numbers in the run."""
        ends = itertools.accumulate((phase.rounds for phase in self.phases), initial=0)
        return tuple(range(begin, end) for begin, end in itertools.pairwise(ends))

    @property
    def tail_from(self) -> int | None:
        """The first round whose models count in the tail average; None: a client's model is the last one."""
        return self.rounds - math.ceil(self.training.tail * self.rounds) if self.training.tail else None


def require_level(privacy: object) -> None:
    """Refuses what is no privacy level, such as its name.

    `privacy`: what was given.
    """
    if not isinstance(privacy, PrivacyLevel):
        raise ConfigError(
            f"privacy={shown(privacy)} is no privacy level: give example_level(epsilon=3), client_level(epsilon=3) or "
            "none()"
        )


def require_training(training: object) -> None:
    """Refuses what does not say how local work is done.

    `training`: what was given.
    """
    if not isinstance(training, Training):
        raise ConfigError(f"training={shown(training)} is no Training: give Training(batch_size=32), or leave it out")


def _require_phases(phases: object) -> None:
    if not isinstance(phases, tuple | list):
        raise ConfigError(f"phases={shown(phases)} must be a tuple of phases: for one write (Phase(...),)")
    if not phases:
        raise ConfigError("an experiment needs at least one phase")
    for place, phase in enumerate(phases):
        if not isinstance(phase, Phase):
            like = repr(phase) if isinstance(phase, str) else '"mean_regularized"'
            raise ConfigError(f"phases[{place}]={shown(phase)} is no Phase: write Phase({like}, rounds=60)")


def load(path: Path) -> Experiment:
    """The experiment in a TOML file, with relations in it read from the files, or the columns of tables, that it names.

    `path`: the file.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: byte {error.start} is no UTF-8; save it so") from None
    try:
        found = from_toml(text, Experiment)
        release = found.seed is None and found.privacy.level.private
        options = [with_files_read(phase.options, found.data, release=release) for phase in found.phases]
        phases = [replace(phase, options=own) for phase, own in zip(found.phases, options, strict=True)]
        return replace(found, phases=tuple(phases))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
