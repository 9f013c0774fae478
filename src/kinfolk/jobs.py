"""From an experiment to a job for an engine: data laid out, uses counted, noise calibrated, program checked."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import models, trees
from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.registry import resolve
from kinfolk.data.federation import DataError, Federation
from kinfolk.data.school import school
from kinfolk.data.synthetic import synthetic_schools
from kinfolk.experiment import ConfigError, DataChoice, Experiment, ModelChoice, Phase
from kinfolk.privacy.calibration import budget_of, terms_for
from kinfolk.privacy.checks import RoundCheck, check_round
from kinfolk.privacy.gates import CHOICE, GRADIENT
from kinfolk.privacy.ledger import Allowance
from kinfolk.privacy.levels import DATA_KINDS, INBOX_KINDS, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import Cost, GaussianSum
from kinfolk.privacy.release import Tape
from kinfolk.simulation.engine import Clients, Plan, count_uses
from kinfolk.simulation.layout import lay_out
from kinfolk.types import Algorithm, Model

DATASETS: dict[str, Callable[..., Federation]] = {
    "synthetic_schools": lambda scaling, **options: synthetic_schools(**options),
    "school": school,
}
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
    tests: tuple[Any, ...]
    uses: tuple[dict[str, np.ndarray], ...]
    """Per phase: releases of each kind, of shape (rounds, parties)."""
    checks: tuple[RoundCheck, ...]
    """Per phase."""

    @property
    def ids(self) -> tuple[str, ...]:
        return self.federations[0].ids

    @property
    def parties(self) -> tuple[str, ...]:
        return (SERVER,) if self.plan.level == "client" else self.ids

    @property
    def mechanism(self) -> GaussianSum | None:
        """The mechanism that adds Gaussian noise."""
        found = self.terms.inbox if self.plan.level == "client" else self.terms.data
        return found if isinstance(found, GaussianSum) else None

    def costs(self) -> dict[str, tuple[Cost, ...]]:
        """For every kind of release, what one use costs each party."""
        if self.plan.level == "client":
            return dict.fromkeys(INBOX_KINDS["client"], tuple(self.terms.inbox.costs()))
        if self.plan.level == "none":
            return {}
        return {GRADIENT: tuple(self.terms.data.costs()), CHOICE: tuple(self.terms.choice.costs())}

    def budgets(self) -> dict[str, Allowance]:
        """What each party may spend; empty where noise was given instead of a budget."""
        level = self.experiment.privacy
        sizes = [len(self.ids)] if self.plan.level == "client" else self.federations[0].train.sizes
        found = {p: budget_of(level, p, int(n)) for p, n in zip(self.parties, sizes, strict=True)}
        return {party: Allowance(epsilon, delta) for party, (epsilon, delta) in found.items() if epsilon is not None}

    def deltas(self) -> dict[str, float]:
        level = self.experiment.privacy
        sizes = [len(self.ids)] if self.plan.level == "client" else self.federations[0].train.sizes
        return {p: budget_of(level, p, int(n))[1] for p, n in zip(self.parties, sizes, strict=True)}


def prepare(experiment: Experiment, federations: Sequence[Federation] | None = None) -> Job:
    """Loads data, counts releases on the program itself, calibrates the noise to them and checks the flow."""
    level = experiment.privacy
    if federations is None:
        first = experiment.seed or 0
        federations = [load_data(experiment.data, seed) for seed in range(first, first + experiment.seeds)]
    data = federations[0]
    model = build_model(experiment.model, data)
    algorithms = tuple(build_algorithm(phase, level.level) for phase in experiment.phases)
    sizes, training = data.train.sizes, experiment.training
    if level.cohort is not None and level.cohort > len(sizes):
        raise ConfigError(f"cohort={level.cohort:g} is more than the {len(sizes)} clients there are")
    weights_count = trees.size(jax.eval_shape(model.init, jax.random.key(0)))

    def terms_with(level: PrivacyLevel, uses: dict[str, np.ndarray]) -> Terms:
        return terms_for(level, data.ids, sizes, training.batch_size, uses, weights_count)

    one_block = level.level != "example" and level.cohort is not None
    clients, tests, widths, most_steps = lay_out(
        federations,
        batch_size=training.batch_size,
        epochs=training.epochs,
        weights=training.weights,
        most_blocks=1 if one_block else 4,
    )
    plan = Plan(model, level.level, widths, most_steps)
    nothing = {kind: np.zeros(len(sizes), int) for kind in (*DATA_KINDS[level.level], *INBOX_KINDS[level.level])}
    draft = terms_with(_without_budget(level), nothing)
    uses, begin = [], 0
    for phase, algorithm in zip(experiment.phases, algorithms, strict=True):
        one_seed = trees.row(clients, 0)
        uses.append(count_uses(plan, algorithm, draft, one_seed, range(begin, begin + phase.rounds)))
        begin += phase.rounds
    total = {kind: np.concatenate([part[kind] for part in uses]).sum(axis=0) for kind in uses[0]}
    terms = terms_with(level, {**nothing, **total})
    checks = tuple(check_job(plan, algorithm, terms, clients) for algorithm in algorithms)
    return Job(experiment, federations, plan, algorithms, terms, clients, tests, tuple(uses), checks)


def _without_budget(level: PrivacyLevel) -> PrivacyLevel:
    if level.level == "none":
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
    numbers = (plan.clients, terms.inbox.sampling.capacity)
    found = [
        check_round(plan.model, plan.level, algorithm, own, trees.row(rows, (0, 0)), most_steps, *numbers, tapes)
        for rows, most_steps in zip(clients.blocks, plan.most_steps, strict=True)
    ]
    violations = tuple(dict.fromkeys(text for check in found for text in check.violations))
    program = hashlib.sha256("".join(check.program for check in found).encode()).hexdigest()
    return dataclasses.replace(found[-1], violations=violations, program=program)


def load_data(choice: DataChoice, seed: int) -> Federation:
    """A built-in data set, split by `seed`."""
    if choice.name not in DATASETS:
        raise DataError(f"data={choice.name!r} is not one of {sorted(DATASETS)}")
    return DATASETS[choice.name](scaling=choice.scaling, test_fraction=choice.test_fraction, seed=seed)


def build_model(choice: ModelChoice, data: Federation) -> Model:
    """The model of that name, with inputs and outputs as the data has them."""
    wanted = {"linear": "number", "logistic": "binary"}.get(choice.name, "classes")
    if choice.name in ("linear", "logistic", "softmax", "cnn") and data.outcome != wanted:
        raise ConfigError(f"model={choice.name!r} predicts {wanted}, but data {data.name!r} holds {data.outcome}")
    if choice.name == "linear":
        return models.linear(data.features)
    if choice.name == "logistic":
        return models.logistic(data.features)
    if choice.name == "softmax":
        return models.softmax(data.features, data.classes)
    if choice.name == "mlp":
        return models.mlp(data.features, max(1, data.classes), choice.hidden, data.outcome)
    if choice.name == "cnn":
        return models.cnn(data.train.x.shape[2], data.classes, choice.hidden)
    raise ConfigError(f"model={choice.name!r} is not one of linear, logistic, softmax, mlp, cnn")


def build_algorithm(phase: Phase, level: str) -> Algorithm:
    """The phase's algorithm, if it may be used at this level."""
    if phase.method not in REGISTRY:
        raise ConfigError(f"method={phase.method!r} is not one of {', '.join(REGISTRY)}")
    try:
        method, options = resolve(phase.method, phase.options)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    entry = REGISTRY[method]
    if level not in entry.levels:
        raise ConfigError(f"{method} cannot run at level={level!r}; it can at {', '.join(entry.levels)}")
    try:
        return entry.build(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{phase.method}: {error}") from None


def as_sweep(tree: Any, points: int = 1) -> Any:
    """Leaves as float32 arrays with a leading sweep axis, for the engine."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf, jnp.float32), (points, *np.shape(leaf))), tree)


def releases_per_round(job: Job, phase: int) -> dict[str, int]:
    """Most releases one party can make in a round of a phase, as traced."""
    check = job.checks[phase]
    return check.client_releases if DATA_KINDS[job.plan.level] else check.server_releases
