"""What all parties of a federation have agreed on: who takes part, what the columns are, and the experiment.

Every party has its own copy of the two files. A message carries their digest, so that nothing in them can be changed by
a message: not the method, not its numbers, not how many rounds there are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import limits, trees
from kinfolk.data.federation import DataError
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.deploy.keys import signing_bytes
from kinfolk.outcomes import OUTCOMES
from kinfolk.privacy.choice import ExactMin
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.privacy.mechanisms import ExactSum, Sampling
from kinfolk.privacy.release import new_meter
from kinfolk.rounds import Client, RoundSpec, client_round
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training.build import as_array, build_afterwards, build_algorithm, build_model, require_used
from kinfolk.training.experiment import Experiment, load
from kinfolk.types import Afterwards, Algorithm, Model, Rows, Tree

STUDY_FILE, EXPERIMENT_FILE = "study.toml", "experiment.toml"

SAID_BY = {"survival": "edges", "count": "most", "ordinal": "labels", "labels": "labels"}
"""What a study must say of an outcome beside its name: all silos' models mean the same by it."""


@dataclass(frozen=True)
class Roster:
    """Who takes part, and what their tables hold; the order of clients and features is part of the agreement."""

    name: str
    clients: tuple[str, ...]
    features: tuple[str, ...]
    outcome: str = "binary"
    """What is predicted: `number`, `binary`, `classes`, `survival`, `count`, `ordinal` or `labels`."""
    classes: int = 0
    """How many, of `classes`."""
    labels: tuple[str, ...] = ()
    """The classes by name, in their order; needed only where the silos' schemas name them. Of `ordinal` the levels,
    from the lowest; of `labels` the columns, each yes or no."""
    edges: tuple[float, ...] = ()
    """Of `survival`: where intervals end, in the time's unit; public. The last is the horizon."""
    most: float | None = None
    """Of `count`: the most that counts; public. Larger ones are moved there."""
    sizes: tuple[int, ...] = ()
    """The clients' public numbers of rows (of people, where they are the units); needed only where means are weighted
    by size."""
    keys: tuple[str, ...] = ()
    """The clients' public keys for secure sums (`aggregator = "secure"`), as in `signing.pub`, in their order."""
    tests: tuple[int, ...] = ()
    """For the evaluation (`evaluate` of the experiment): how many rows each client keeps from training, or people where
    its table has them; public, and 0 for a client that is not asked."""
    target_range: tuple[float, ...] = ()
    """Likewise for a number: its lowest and highest value, as every silo declares it."""
    target_unit: str = ""
    """What a number, a time or a count is measured in."""
    quorum: int = 1
    """The fewest silos that a round needs: at example level answers, at client level silos that are there, whoever is
    drawn. With fewer the server waits, and then stops."""

    def __post_init__(self) -> None:
        limits.settle(self)
        if not self.clients or len(set(self.clients)) < len(self.clients):
            raise ConfigError(f"clients={self.clients}: at least one, and every name once")
        if not self.features or len(set(self.features)) < len(self.features):
            raise ConfigError(f"features={self.features}: at least one, and every name once")
        self._check_outcome()
        if self.sizes and len(self.sizes) != len(self.clients):
            raise ConfigError(f"sizes={self.sizes}: give one for each of the {len(self.clients)} clients")
        if self.keys and len(set(map(signing_bytes, self.keys))) < len(self.clients):
            raise ConfigError(
                f"keys: {len(self.keys)} for {len(self.clients)} clients; give each its own, every key once"
            )
        if self.quorum > len(self.clients):
            raise ConfigError(f"quorum={self.quorum}: there are {len(self.clients)} clients; give at most as many")

    def _check_outcome(self) -> None:
        """Refuses an outcome that is not said as a whole, as a schema would."""
        if self.outcome not in OUTCOMES:
            raise ConfigError(f"outcome={self.outcome!r} is not one of {', '.join(OUTCOMES)}")
        for name, own in {"edges": self.edges, "most": self.most, "labels": self.labels}.items():
            needed = SAID_BY.get(self.outcome) == name
            if needed and not own:
                raise ConfigError(f"outcome={self.outcome!r} needs {name}: give it, the same for all silos")
            if own and not needed and (name != "labels" or len(self.labels) != self.answers):
                raise ConfigError(f"{name}={own} does not fit outcome={self.outcome!r}: correct it, or leave it out")
        if self.classes and self.outcome in SAID_BY:
            raise ConfigError(f"classes={self.classes}: outcome={self.outcome!r} says it by {SAID_BY[self.outcome]}")
        try:
            _ = self.declared
        except DataError as error:
            raise ConfigError(str(error)) from None

    @property
    def answers(self) -> int:
        """How many classes, levels, intervals or labels there are."""
        if self.outcome in ("survival", "ordinal", "labels"):
            return len(self.edges or self.labels)
        return {"binary": 2, "classes": self.classes}.get(self.outcome, 0)

    def target(self, name: str) -> Column | None:
        """The column of this name as what is predicted; None: a number, whose bounds are the silos' own."""
        if self.outcome == "number":
            return None
        if self.outcome in ("survival", "count"):
            return Column(name, low=0, high=self.most or max(self.edges))
        if self.outcome == "labels" or (self.outcome == "binary" and not self.labels):
            return Column(name, "yes_no")
        return Column(name, "category", values=self.labels or tuple(map(str, range(self.classes))))

    @property
    def declared(self) -> Schema:
        """The outcome alone, as far as the study says it, of a table with made-up names."""
        low, high = self.target_range if len(self.target_range) == 2 else (0.0, 1.0)
        target = replace(self.target("") or Column("", low=low, high=high), unit=self.target_unit)
        return self.schema(target, (Column("x", low=0, high=1),), "event" if self.outcome == "survival" else None)

    def schema(self, target: Column, columns: tuple[Column, ...], event: str | None) -> Schema:
        """A silo's table with this outcome. `event`: of `survival`, the column that says whether the event came."""
        outcome = self.outcome if self.outcome in SAID_BY else None
        labels = self.labels if self.outcome == "labels" else ()
        return Schema(target, columns, outcome=outcome, event=event, edges=self.edges, labels=labels)


def require_separate_rounds(level: PrivacyLevel) -> None:
    """Refuses noise that is one release over a whole run: a round must be paid for and drawn on its own."""
    if level.noise_bands > 1:
        raise ConfigError(f"noise_bands={level.noise_bands}: correlated noise is for simulations so far; leave it out")
    if level.aggregator == "local":
        raise ConfigError(
            "aggregator='local' is for comparison in simulations: use level='example', where nobody is trusted, or "
            "aggregator='secure'"
        )


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
        require_separate_rounds(self.experiment.privacy)
        if self.sums_are_secure:
            self._require_secure()
        if self.experiment.evaluate is not None:
            self._require_tests()
        if self.experiment.training.weights == "precision":
            raise ConfigError("weights='precision' depends on noise that only the silos know: use 'uniform' or 'size'")
        build_afterwards(self.experiment)
        last = self.experiment.rounds - self.experiment.phases[-1].rounds
        if self.tail_from is not None and self.tail_from < last:
            raise ConfigError(
                f"tail={self.experiment.training.tail} begins in round {self.tail_from}, before the last phase does "
                f"(round {last}): use a smaller tail"
            )

    @property
    def sums_are_secure(self) -> bool:
        """Whether silos add noise in shares and masks, so that the server sees sums alone."""
        return self.experiment.privacy.aggregator == "secure"

    def _require_secure(self) -> None:
        self.experiment.privacy.shares(self.clients)  # or it is refused
        if self.experiment.seed is not None:
            raise ConfigError(
                f"seed={self.experiment.seed}: silos of aggregator='secure' draw their noise for real; leave the seed "
                "out, or simulate with `kinfolk train`"
            )

    def _require_tests(self) -> None:
        """Refuses an evaluation that could not be made at the end."""
        roster, asked = self.roster, f"evaluate={self.experiment.evaluate:g}"
        if not self.level.private:
            raise ConfigError(f"{asked}: level='none' has no account to pay it from; leave it out")
        if len(roster.tests) != self.clients or not any(roster.tests):
            raise ConfigError(
                f"{asked} needs tests in study.toml, one for each of the {self.clients} clients: how many rows it "
                f"keeps from training to be evaluated on (public); tests={list(roster.tests)}"
            )
        kept = sum(count > 0 for count in roster.tests)
        least = 1 if not self.sums_are_secure else self.experiment.privacy.settled(self.clients).survivors or 1
        if kept < least:
            raise ConfigError(
                f"{asked}: {kept} clients keep rows for it (tests), and a secure sum needs survivors={least}: more of "
                "them should"
            )
        low, high = (*roster.target_range, 0.0, 0.0)[:2]
        if roster.outcome == "number" and not (len(roster.target_range) == 2 and low < high):
            raise ConfigError(
                f"{asked} of a number needs target_range in study.toml, its lowest and highest value as all silos "
                f"declare it, so that errors are told in its own unit; target_range={list(roster.target_range)}"
            )

    @cached_property
    def digest(self) -> str:
        """The same for two parties exactly if they agree on everything."""
        return hashlib.sha256((to_toml(self.roster) + to_toml(self.experiment)).encode()).hexdigest()

    @property
    def level(self) -> Level:
        return self.experiment.privacy.level

    @property
    def clients(self) -> int:
        return len(self.roster.clients)

    @cached_property
    def model(self) -> Model:
        roster = self.roster
        return build_model(self.experiment.model, (len(roster.features),), roster.outcome, roster.answers)

    @cached_property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """One per phase, with its numbers as float32, as in simulation."""
        require_used(self.experiment)
        ids = self.roster.clients
        return tuple(as_array(build_algorithm(phase, self.level, ids)) for phase in self.experiment.phases)

    def phase(self, number: int) -> int:
        """The phase that a round belongs to."""
        found = (index for index, span in enumerate(self.experiment.spans) if number in span)
        return next(found, len(self.experiment.phases) - 1)

    @property
    def tail_from(self) -> int | None:
        """The first round whose model counts in a silo's tail average; None: its model is the last one."""
        return self.experiment.tail_from

    @cached_property
    def afterwards(self) -> Afterwards | None:
        """What every silo does alone with its model at the end."""
        found = build_afterwards(self.experiment)
        return None if found is None else as_array(found)

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

    @cached_property
    def model_shape(self) -> Tree:
        """The shape of one model's weights."""
        return jax.eval_shape(self.model.init, self.key)

    @cached_property
    def personal_shapes(self) -> tuple[Tree, ...]:
        """For every phase, the shape of a client's own state."""
        slot, pairs = jax.ShapeDtypeStruct((), jnp.int32), zip(self.algorithms, self.shapes, strict=True)
        return tuple(jax.eval_shape(algorithm.init_client, shared, slot) for algorithm, shared in pairs)

    @cached_property
    def message_shapes(self) -> tuple[Tree, ...]:
        """For every phase, what a client sends; the same for all of them, whatever stands at their gates."""
        gates = (ExactSum(Sampling(jnp.float32(1))), ExactMin(jnp.float32(1)))
        number, size = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float32)
        meter = jax.eval_shape(lambda key: new_meter(key, ()), self.key)
        spec = RoundSpec(self.model, self.level, 1, self.clients)

        def shape(algorithm: Algorithm, shared: Tree, personal: Tree) -> Tree:
            client = trees.filled(Client, personal, self.row_shapes(1), meter, gates, size, number)
            return jax.eval_shape(partial(client_round, spec, algorithm), shared, client, number)[0]

        return tuple(map(shape, self.algorithms, self.shapes, self.personal_shapes))

    def row_shapes(self, rows: int) -> Rows:
        """The shape of a client's rows, of which there are `rows`."""
        roster = self.roster
        kind = jnp.float32 if roster.outcome in ("number", "count") else jnp.int32
        each = (roster.answers,) if roster.outcome == "labels" else ()
        return Rows(
            jax.ShapeDtypeStruct((rows, len(roster.features)), jnp.float32),
            jax.ShapeDtypeStruct((rows, *each), kind),
            jax.ShapeDtypeStruct((rows,), bool),
        )

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
