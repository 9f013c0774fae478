"""From an experiment to a job for an engine: data laid out, uses counted, noise calibrated, program checked."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.accounting.calibrate import budget_of, terms_for
from kinfolk.accounting.ledger import Allowance
from kinfolk.accounting.noise_for_budget import times
from kinfolk.algorithms.registry import REGISTRY, resolve
from kinfolk.data.federation import Federation
from kinfolk.engines import streaming
from kinfolk.engines.layout import lay_out, lay_out_streamed
from kinfolk.engines.release_counts import count_uses
from kinfolk.engines.resident import Clients, Plan
from kinfolk.privacy.correlated_noise import CorrelatedSum
from kinfolk.privacy.gates import CHOICE, GRADIENT
from kinfolk.privacy.levels import Level, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import AdaptiveSum, Cost, ExactSum, GaussianSum, LaplaceSum
from kinfolk.privacy.release import Tape
from kinfolk.toml import ConfigError
from kinfolk.training.build import build_afterwards, build_algorithm
from kinfolk.training.experiment import Experiment
from kinfolk.training.inputs import GivenData, federations_of, model_for
from kinfolk.types import Afterwards, Algorithm, Model, Rows
from kinfolk.verify.round_check import RoundCheck, check_round

SERVER = "the federation"
"""The party that pays at client level."""


@dataclass(frozen=True)
class Job:
    """Everything an engine needs, and everything the ledger will be charged."""

    experiment: Experiment
    federations: Sequence[Federation]
    plan: Plan
    algorithms: tuple[Algorithm, ...]
    """One per phase."""
    terms: Terms
    clients: Clients
    tests: tuple[Rows, ...]
    uses: tuple[dict[str, np.ndarray], ...]
    """Per phase: releases of each kind, of shape (rounds, parties)."""
    checks: tuple[RoundCheck, ...]
    """Per phase."""
    afterwards: Afterwards | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        return self.federations[0].ids

    @property
    def parties(self) -> tuple[str, ...]:
        return (SERVER,) if self.plan.level.server_pays else self.ids

    @property
    def mechanism(self) -> GaussianSum | AdaptiveSum | CorrelatedSum | LaplaceSum | None:
        """The mechanism that adds Gaussian noise."""
        found = self.terms.inbox if self.plan.level.server_pays else self.terms.data
        return None if isinstance(found, ExactSum) else found

    def costs(self, factor: float = 1.0) -> dict[str, tuple[Cost, ...]]:
        """For every kind of release, what one use costs each party in rounds whose noise has this factor."""

        def scaled(costs: list[Cost]) -> tuple[Cost, ...]:
            return tuple(dataclasses.replace(c, noise_multiplier=times(c.noise_multiplier, factor)) for c in costs)

        if self.plan.level.server_pays:
            return dict.fromkeys(Level.CLIENT.inbox_kinds, scaled(self.terms.inbox.costs()))
        if not self.plan.level.private:
            return {}
        return {GRADIENT: scaled(self.terms.data.costs()), CHOICE: tuple(self.terms.choice.costs())}

    def noise_factors(self, begin: int, end: int) -> np.ndarray:
        """What the noise is multiplied by in these rounds."""
        return np.take(np.asarray(self.terms.noise_factors), np.arange(begin, end), mode="clip")

    def budgets(self) -> dict[str, Allowance]:
        """What each party may spend; empty where noise was given instead of a budget."""
        level = self.experiment.privacy
        sizes = [len(self.ids)] if self.plan.level.server_pays else self.federations[0].train.sizes
        found = {p: budget_of(level, p, int(n)) for p, n in zip(self.parties, sizes, strict=True)}
        return {party: Allowance(epsilon, delta) for party, (epsilon, delta) in found.items() if epsilon is not None}

    def deltas(self) -> dict[str, float]:
        level = self.experiment.privacy
        sizes = [len(self.ids)] if self.plan.level.server_pays else self.federations[0].train.sizes
        return {p: budget_of(level, p, int(n))[1] for p, n in zip(self.parties, sizes, strict=True)}


def prepare(
    experiment: Experiment,
    given: GivenData | None = None,
    own_model: Model | None = None,
    own_algorithms: tuple[Algorithm, ...] | None = None,
) -> Job:
    """Loads data, counts releases on the program itself, calibrates the noise to them and checks the flow.

    `given`, `own_model` and `own_algorithms` (one per phase): data, model and methods, where they are objects and not
    only named by the experiment.
    """
    level, federations = experiment.privacy, federations_of(experiment, given)
    data = federations[0]
    model = model_for(experiment, data, own_model)
    algorithms = own_algorithms or tuple(build_algorithm(p, level.level, data.ids) for p in experiment.phases)
    afterwards = build_afterwards(experiment)
    sizes, training = data.train.sizes, experiment.training
    if level.cohort is not None and level.cohort > len(sizes):
        raise ConfigError(f"cohort={level.cohort:g} is more than the {len(sizes)} clients there are")
    weights_count = trees.size(jax.eval_shape(model.init, jax.random.key(0)))

    def terms_with(level: PrivacyLevel, uses: dict[str, np.ndarray]) -> Terms:
        shuffled = training.batches == "shuffled"
        return terms_for(level, data.ids, sizes, training.batch_size, uses, weights_count, shuffled)

    streamed = experiment.engine.store != "device"
    if streamed:
        _check_streamed(experiment)
    one_block = not level.level.clients_pay and level.cohort is not None
    work: Any = {
        "batch_size": training.batch_size,
        "epochs": training.epochs,
        "by_size": training.weights == "size",
    }
    clients, tests, widths, most_steps = (
        lay_out_streamed(data, **work) if streamed else lay_out(federations, **work, most_blocks=1 if one_block else 4)
    )
    tail_from = experiment.rounds - math.ceil(training.tail * experiment.rounds) if training.tail else None
    _check_phases(model, experiment, algorithms)
    plan = Plan(model, level.level, widths, most_steps, tail_from)
    nothing = {kind: np.zeros(len(sizes), int) for kind in (*level.level.data_kinds, *level.level.inbox_kinds)}
    draft = terms_with(_without_budget(level), nothing)
    uses, begin = [], 0
    count = streaming.count_uses if streamed else count_uses
    for phase, algorithm in zip(experiment.phases, algorithms, strict=True):
        one_seed = trees.row(clients, 0)
        uses.append(count(plan, algorithm, draft, one_seed, range(begin, begin + phase.rounds)))
        begin += phase.rounds
    total = {kind: np.concatenate([part[kind] for part in uses]) for kind in uses[0]}
    terms = terms_with(level, {**nothing, **total})
    if training.weights == "precision":
        clients = dataclasses.replace(
            clients, weights=jnp.tile(precision_weights(terms, sizes, clients), (len(federations), 1))
        )
    checks = tuple(check_job(plan, algorithm, terms, clients) for algorithm in algorithms)
    return Job(experiment, federations, plan, algorithms, terms, clients, tests, tuple(uses), checks, afterwards)


def _check_phases(model: Model, experiment: Experiment, algorithms: tuple[Algorithm, ...]) -> None:
    """A phase goes on from the shared state before it, so that must be one model."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    for phase, algorithm in zip(experiment.phases[:-1], algorithms, strict=False):
        shared = jax.eval_shape(lambda p, algorithm=algorithm: algorithm.init(p, 2), params)
        if jax.tree.structure(shared) != jax.tree.structure(params) or any(
            a.shape != b.shape for a, b in zip(jax.tree.leaves(shared), jax.tree.leaves(params), strict=True)
        ):
            raise ConfigError(
                f"{phase.method} does not end with one shared model, so no other phase can start from it. For warm "
                "starts within clusters use ifca's own options (choosing_rounds, strength, alone_from)"
            )


def _check_streamed(experiment: Experiment) -> None:
    """Refuses what the streaming engine cannot do."""
    store, level, training = experiment.engine.store, experiment.privacy.level, experiment.training
    if level not in streaming.LEVELS:
        raise ConfigError(
            f"store={store!r} streams cohorts at level={' or '.join(map(repr, streaming.LEVELS))}; at level={level!r} "
            "every client is in every round: use store='device'"
        )
    for name, given in (
        ("seeds", experiment.seeds > 1),
        ("training.tail", training.tail > 0),
        ("afterwards", experiment.afterwards is not None),
    ):
        if given:
            raise ConfigError(f"{name} needs every client's model at once: leave it out, or use store='device'")
    for phase in experiment.phases:
        if "client" not in REGISTRY[resolve(phase.method, phase.options)[0]].levels:
            raise ConfigError(f"{phase.method} reads every client's message at once: use store='device'")


def precision_weights(terms: Terms, sizes: np.ndarray, clients: Clients) -> np.ndarray:
    """Weights inversely proportional to the noise variance of a client's mean gradient over a round; public, mean 1."""
    if not isinstance(terms.data, GaussianSum):
        raise ConfigError("weights='precision' needs noise at the clients (level='example'): use 'uniform' or 'size'")
    expected = np.asarray(terms.data.sampling.rate) * sizes
    precision = np.asarray(clients.steps)[0] * (expected / np.asarray(terms.data.noise_multiplier)) ** 2
    return (precision / precision.mean()).astype(np.float32)


def _without_budget(level: PrivacyLevel) -> PrivacyLevel:
    if not level.level.private:
        return level
    return dataclasses.replace(level, epsilon=None, noise_multiplier=1.0, budgets={}, allow_large_delta=True)


def check_job(
    plan: Plan,
    algorithm: Algorithm,
    terms: Terms,
    clients: Clients,
    tapes: tuple[Tape | None, Tape | None] = (None, None),
) -> RoundCheck:
    """The flow check on the very programs of a job: every block's, for one client."""
    data, choice = trees.row(terms.own, 0)
    own = Terms(data, choice, terms.inbox)
    places = terms.inbox.sampling.capacity
    found = [
        check_round(plan.spec(most_steps), algorithm, own, trees.row(rows, (0, 0)), places, tapes)
        for rows, most_steps in zip(clients.blocks, plan.most_steps, strict=True)
    ]
    violations = tuple(dict.fromkeys(text for check in found for text in check.violations))
    program = hashlib.sha256("".join(check.program for check in found).encode()).hexdigest()
    return dataclasses.replace(found[-1], violations=violations, program=program)


def releases_per_round(job: Job, phase: int) -> dict[str, int]:
    """Most releases one party can make in a round of a phase, as traced."""
    check = job.checks[phase]
    return check.client_releases if job.plan.level.data_kinds else check.server_releases
