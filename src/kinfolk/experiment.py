"""An experiment: all that is needed to repeat a run, as dataclasses and as TOML, which is their text form.

>>> print(to_toml(Experiment(seed=1, phases=(Phase("local", 5),))).splitlines()[1])
seed = 1
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfolk.privacy.levels import PrivacyLevel, example_level

WEIGHTS = ("uniform", "size", "precision")
STORES = ("device", "memory", "disk")
BATCHES = ("poisson", "shuffled")


class ConfigError(ValueError):
    """A configuration that cannot be used, with the nearest one that can."""


@dataclass(frozen=True)
class DataChoice:
    """Which federation: a built-in one, or tables of one's own."""

    name: str = "synthetic_schools"
    """The data set's name: one that is built in, or what its owner calls the tables. The ledger knows it by this."""
    scaling: str = "bounds"
    test_fraction: float = 0.2
    pooled: bool = False
    """All clients' rows put together, as if one client had them: a reference that no federation can have."""
    files: tuple[str, ...] = ()
    """Tables to read (CSV, Parquet, Arrow), as seen from the directory in which training was begun."""
    client: str | None = None
    """The column that says whose row it is; None: every file is one client."""
    target: str | None = None
    """The column to predict; None: as the schema says."""
    schema: str | None = None
    """The file that declares the columns; None: drafted from the data, which only a simulation may do."""


@dataclass(frozen=True)
class Afterwards:
    """What every client does alone with its model after the last round: free at client level."""

    method: str = "fine_tune"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelChoice:
    """Which model: linear, logistic, softmax (each also with `sparse_` before it, for sparse rows), mlp, cnn, or a
    network of fixed widths (see `models.NETWORKS`)."""

    name: str = "linear"
    hidden: tuple[int, ...] = (64,)
    """Widths of the hidden layers (mlp) or channels of the convolutions (cnn)."""


@dataclass(frozen=True)
class Training:
    """Local work in a round."""

    batch_size: int | None = 32
    """Expected batch size; a client with fewer examples uses them all. None: full batches."""
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
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size} must be at least 1")
        if self.epochs < 1:
            raise ConfigError(f"epochs={self.epochs} must be at least 1")
        if self.batches not in BATCHES:
            raise ConfigError(f"batches={self.batches!r} is not one of {BATCHES}")
        if self.weights not in WEIGHTS:
            raise ConfigError(f"weights={self.weights!r} is not one of {WEIGHTS}")
        if not 0 <= self.tail <= 1:
            raise ConfigError(f"tail={self.tail} must lie between 0 and 1: it is a share of the rounds")


@dataclass(frozen=True)
class Engine:
    """How a simulation is computed: results do not depend on it."""

    store: str = "device"
    """Where clients' states are: `device`, all in the program; for very many clients `memory` or `disk`, and only a
    round's cohort in the program."""

    def __post_init__(self) -> None:
        if self.store not in STORES:
            raise ConfigError(f"store={self.store!r} is not one of {STORES}")


@dataclass(frozen=True)
class Phase:
    """Some rounds of one algorithm."""

    method: str = "mean_regularized"
    rounds: int = 60
    options: dict[str, Any] = field(default_factory=dict)
    """The algorithm's hyper-parameters, where they differ from its defaults."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"rounds={self.rounds} must be at least 1")


@dataclass(frozen=True)
class Experiment:
    """All that is needed to repeat a run."""

    name: str = "run"
    seed: int | None = None
    """With a seed the run is a simulation, and can be repeated; without one it is a release, and cannot."""
    seeds: int = 1
    """Repetitions with seeds `seed`, `seed` + 1, ..., computed together."""
    data: DataChoice = DataChoice()
    model: ModelChoice = ModelChoice()
    training: Training = Training()
    privacy: PrivacyLevel = field(default_factory=lambda: example_level(epsilon=3.0))
    phases: tuple[Phase, ...] = (Phase(),)
    afterwards: Afterwards | None = None
    engine: Engine = Engine()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds={self.seeds} must be at least 1")
        if self.seed is None and self.seeds > 1:
            raise ConfigError(f"seeds={self.seeds} needs a seed: a release is one run")
        if not self.phases:
            raise ConfigError("an experiment needs at least one phase")

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)


def load(path: Path) -> Experiment:
    """The experiment in a TOML file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return from_toml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def from_toml(text: str, kind: type = Experiment) -> Any:
    """The experiment (or other dataclass) that a TOML text describes.

    An unknown key is an error that names the nearest valid one.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}") from None
    return _build(kind, values, "")


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value` from TOML as the type `kind`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (kind,) = (a for a in arguments if a is not type(None))
        return _build(kind, value, where)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{where} should be a table, but is {value!r}")
        hints = typing.get_type_hints(kind)
        for key in value:
            if key not in hints:
                near = difflib.get_close_matches(key, hints, 1, 0.0)
                raise ConfigError(f"unknown key {_dotted(where, key)!r}; did you mean {_dotted(where, near[0])!r}?")
        built = {key: _build(hints[key], item, _dotted(where, key)) for key, item in value.items()}
        try:
            return kind(**built)  # type: ignore[operator]
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{where or getattr(kind, '__name__', '').lower()}: {error}") from None
    if origin is tuple:
        return tuple(_build(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if origin is dict:
        return {key: _build(arguments[1], item, _dotted(where, key)) for key, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is not Any and type(value) is not kind:
        raise ConfigError(f"{where}={value!r} should be a {kind.__name__}")
    return value


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def to_toml(experiment: Any) -> str:
    """The experiment (or other dataclass) as TOML, every value written out except those that are None."""
    return "\n".join(_tables(experiment, "")) + "\n"


def _tables(value: Any, name: str) -> list[str]:
    """A dataclass or dict as TOML lines: plain values first, then one table per nested value."""
    items = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)} if _is_record(value) else value
    plain, nested = [], []
    for key, item in items.items():
        path = _dotted(name, _key(key))
        if item is None or item == {}:
            continue
        if _is_record(item) or isinstance(item, dict):
            nested += ["", f"[{path}]", *_tables(item, path)]
        elif isinstance(item, tuple) and item and _is_record(item[0]):
            for one in item:
                nested += ["", f"[[{path}]]", *_tables(one, path)]
        else:
            plain.append(f"{_key(key)} = {_scalar(item)}")
    return plain + nested


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _scalar(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)  # TOML reads inf and nan too
    return json.dumps(value)
