"""A simulation whose loop is written by its user: `init` and `step`, with calibrated noise and the flow check behind.

>>> from kinfolk import none
>>> from kinfolk.data.sets.synthetic import synthetic_schools
>>> sim = simulate(synthetic_schools(clients=3, least=8, most=9), "fedavg", none(), rounds=2)
>>> state = sim.init(seed=0)
>>> for _ in range(2):
...     state = sim.step(state)
>>> sim.evaluate(state)["error"].shape
(3,)
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from kinfolk import limits, trees
from kinfolk.accounting import composition
from kinfolk.algorithms.registry import REGISTRY
from kinfolk.data.federation import Federation
from kinfolk.engines.loop import Loop
from kinfolk.engines.resident import State
from kinfolk.privacy.levels import PrivacyLevel, example_level
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError, shown
from kinfolk.training.build import as_array
from kinfolk.training.charges import uses_of
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training, require_level, require_training
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.recipes import is_sparse, linear_model
from kinfolk.types import Algorithm, Model, Params, Personal, Rows, Shared


@trees.register
@dataclass(frozen=True)
class SimulationState:
    """Where a simulation is; a tree of arrays, as JAX wants it."""

    round: Array
    """Rounds that lie behind it."""
    inner: State
    """The engine's own: shared and personal states, and the meters that count releases."""

    def __repr__(self) -> str:
        """Without the arrays: personal ones may be private, and all are long."""
        return "SimulationState(traced)" if isinstance(self.round, Tracer) else f"SimulationState(round={self.round})"

    @property
    def shared(self) -> Shared:
        """What is published."""
        return self.inner.shared

    @property
    def personal(self) -> Personal:
        """What stays with the clients, one row each."""
        return self.inner.personal


@dataclass(frozen=True)
class Simulation:
    """A method on data, made ready: releases are counted, noise is calibrated to them, and the program is checked.

    Made by `simulate`. Its functions are pure and can be compiled, mapped over seeds or scanned over rounds.
    """

    rounds: int
    """The most rounds that the noise was calibrated for."""
    loop: Loop
    """The rounds themselves, as the engine has them."""
    tests: tuple[Rows, ...]
    """The clients' test rows, in blocks."""
    job: Job
    """What was counted and calibrated."""

    def __repr__(self) -> str:
        """Method, guarantee and size; no rows, which are private."""
        experiment, level = self.job.experiment, self.job.experiment.privacy
        numbers = {"epsilon": level.epsilon, "noise_multiplier": level.noise_multiplier}
        given = "".join(f", {name}={value:g}" for name, value in numbers.items() if value is not None)
        about = f"method={experiment.phases[0].method!r}, level={level.level!r}{given}"
        return f"Simulation({about}, clients={len(self.ids)}, rounds={self.rounds}, data={self.job.account.data!r})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients, in the order of all arrays."""
        return self.job.ids

    def init(self, seed: int | Array) -> SimulationState:
        """The state before the first round; `seed` decides weights, batches, cohorts and noise, as in `run`."""
        number = seed if isinstance(seed, Array) else int(limits.checked("seed", seed))
        return SimulationState(jnp.int32(0), self.loop.init(jax.random.key(number, impl="threefry2x32")))

    def step(self, state: SimulationState, rounds: int = 1) -> SimulationState:
        """A `state` after one round more, or after `rounds`; never more in all than the noise was calibrated for."""
        limits.checked("rounds", rounds)
        if not isinstance(state.round, Tracer) and int(state.round) + rounds > self.rounds:
            raise PrivacyError(
                f"round={int(state.round) + rounds} is more than rounds={self.rounds}, which the noise was calibrated "
                "for: give simulate more rounds"
            )
        end = jnp.minimum(state.round + rounds, self.rounds)
        return SimulationState(end, self.loop.rounds(state.inner, state.round, end))

    def models(self, state: SimulationState) -> Params:
        """The models that the clients of a `state` predict with, one row per client."""
        return self.loop.models(state.inner)

    def evaluate(self, state: SimulationState) -> dict[str, Array]:
        """Every client's mean test loss and error (squared, or the share of wrong labels) in a `state`.

        They are private: looking is free in a simulation only. One that is not finite is warned of.
        """
        found = self.loop.errors(self.tests, state.inner)
        if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(found)):
            self._warn_of_divergence(found["error"])
        return found

    def _warn_of_divergence(self, errors: Array) -> None:
        """Where clients that have test rows have no error; Python shows the same warning once."""
        tested = np.asarray(self.job.federations[0].test.sizes) > 0
        if not np.isfinite(np.asarray(errors)[tested]).all():
            warnings.warn(
                "errors are NaN or infinite, as training went astray: choose a smaller step_size", stacklevel=3
            )

    def epsilon(self, at: SimulationState | int | None = None) -> float:
        """What the party that pays most has spent, simulated, at the `delta` of the privacy level; 0 without privacy.

        `at`: a state, whose meters must have counted what is charged; or a number of rounds; None: all rounds.
        """
        return max(self.epsilons(at).values(), default=0.0)

    def epsilons(self, at: SimulationState | int | None = None) -> dict[str, float]:
        """The same, also with `at`, for every party: the clients at example level, the federation at client level."""
        if isinstance(at, SimulationState):
            self._require_counted(at)
        rounds = self.rounds if at is None else int(at.round) if isinstance(at, SimulationState) else at
        if not 0 <= rounds <= self.rounds:
            raise ConfigError(f"rounds={rounds} must lie between 0 and the {self.rounds} that were planned")
        account = self.job.account
        lines = account.lines("simulation", range(rounds))
        return {
            party: composition.epsilon([(line.cost, line.uses) for line in lines if line.party == party], delta)
            for party, delta in account.deltas().items()
        }

    def _require_counted(self, state: SimulationState) -> None:
        nothing = dict.fromkeys(self.job.account.uses, 0)
        self.job.account.require_metered(nothing, uses_of(state.inner), range(int(state.round)))


def check_numbers(algorithm: Algorithm) -> None:
    """Refuses numbers of an algorithm that are out of range, or, in one of one's own, that are none.

    `algorithm`: a dataclass.
    """
    known = next((name for name, entry in REGISTRY.items() if entry.make is type(algorithm)), None)
    for field in dataclasses.fields(algorithm) if dataclasses.is_dataclass(algorithm) else ():
        value = getattr(algorithm, field.name)
        if known and limits.is_number(value):
            limits.checked(field.name, value, known)
        elif limits.is_number(value) and math.isnan(float(value)):
            raise ConfigError(f"{field.name}={value} of {type(algorithm).__name__} must be a number")


def _require_objects(data: object, level: object, model: object, training: object) -> None:
    """Refuses words where objects are needed."""
    if not isinstance(data, Federation):
        raise ConfigError(f"data={shown(data)} is no Federation: give one, as from_rows makes it")
    require_level(level)
    if isinstance(model, str):
        raise ConfigError(f"model={model!r} is a name: give ModelChoice({model!r}), or a Model")
    if not isinstance(model, Model | ModelChoice | None):
        raise ConfigError(f"model={type(model).__name__}: give a ModelChoice, or a Model (from_functions makes one)")
    if training is not None:
        require_training(training)


def _prepared(experiment: Experiment, data: Federation, model: Model | None, own: tuple[Algorithm, ...] | None) -> Job:
    """The job; what a method of ours says against the data while it is traced comes without JAX's frames."""
    try:
        return prepare(experiment, data, model, own)
    except ValueError as error:
        if own is not None or model is not None or type(error) is not ValueError:
            raise
        raise ConfigError(f"method={experiment.phases[0].method!r} on data {data.name!r}: {error}") from None


def simulate(
    data: Federation,
    method: str | Algorithm = "mean_regularized",
    privacy: PrivacyLevel | None = None,
    *,
    rounds: int = 60,
    model: Model | ModelChoice | None = None,
    options: Mapping[str, Any] | None = None,
    training: Training | None = None,
) -> Simulation:
    """A simulation to be run round by round: counts releases, calibrates noise, and refuses what leaks.

    `data`: who takes part. `method`: a name in the registry, with `options`, or an algorithm of one's own (`types.py`
    has its five functions), which the flow check follows like any other. `privacy`: the level; None is example level
    with epsilon 3, as the simulation shows when it is printed, and `none()` is no privacy. `rounds`: how many there
    will be at most: the budget is divided among them. `model`: a `Model` or a `ModelChoice`, by default a linear one
    for the data's outcome. `training`: the local work in a round.
    """
    level = example_level(epsilon=3.0) if privacy is None else privacy
    _require_objects(data, level, model, training)
    named = isinstance(method, str)
    if not named and options:
        raise ConfigError("options are for a method by name: an algorithm of one's own has its numbers already")
    if not isinstance(method, str):
        check_numbers(method)
    phase = Phase(method if isinstance(method, str) else type(method).__name__, rounds, dict(options or {}))
    choice = model if isinstance(model, ModelChoice) else linear_model(data.outcome, is_sparse(data))
    experiment = Experiment(seed=0, model=choice, training=training or Training(), privacy=level, phases=(phase,))
    own_model = None if isinstance(model, ModelChoice) else model
    job = _prepared(experiment, data, own_model, None if isinstance(method, str) else (method,))
    job.require_checked()
    loop = Loop(job.plan, as_array(job.algorithms[0]), as_array(job.terms), trees.row(job.clients, 0))
    made = Simulation(rounds, loop, trees.row(job.tests, 0), job)
    if level.noise_multiplier is not None and level.epsilon is not None and made.epsilon() > level.epsilon * (1 + 1e-9):
        raise PrivacyError(
            f"noise_multiplier={level.noise_multiplier:g} over rounds={rounds} costs epsilon={made.epsilon():.4g}, "
            f"beyond epsilon={level.epsilon:g}: use fewer rounds or more noise"
        )
    return made
