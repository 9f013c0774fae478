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

from kinfolk import limits, trees
from kinfolk.accounting.account import Account
from kinfolk.accounting.calibrate import Population, Uses, calibrated
from kinfolk.accounting.members import Source, people_of
from kinfolk.algorithms.registry import REGISTRY, resolve
from kinfolk.algorithms.schedules import noise_factors
from kinfolk.batching import loop_lengths
from kinfolk.data.federation import Federation
from kinfolk.devices import usable
from kinfolk.engines import streamed_counts
from kinfolk.engines.cohorts import places_of
from kinfolk.engines.layout import lay_out, lay_out_streamed, local_steps
from kinfolk.engines.programs import LITTLE, work
from kinfolk.engines.release_counts import count_uses
from kinfolk.engines.resident import Clients, Plan
from kinfolk.personalize.self_select import BesideAlone, SelfSelect
from kinfolk.privacy.levels import Terms
from kinfolk.privacy.mechanisms import ExactSum, GaussianSum, NoisySum
from kinfolk.privacy.release import Tape
from kinfolk.toml import ConfigError
from kinfolk.training.build import as_array, build_afterwards, build_algorithm, fitting, require_used
from kinfolk.training.experiment import Experiment
from kinfolk.training.inputs import GivenData, federations_of, model_for
from kinfolk.types import Afterwards, Algorithm, Model
from kinfolk.verify.round_check import RoundCheck, check_round


@dataclass(frozen=True)
class Job:
    """Everything an engine needs, and everything the ledger will be charged."""

    experiment: Experiment
    federations: Sequence[Federation]
    plan: Plan
    algorithms: tuple[Algorithm, ...]
    """One per phase."""
    account: Account
    clients: Clients
    tests: tuple[Any, ...]
    checks: tuple[RoundCheck, ...]
    """Per phase."""
    afterwards: Afterwards | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients' names."""
        return self.federations[0].ids

    @property
    def terms(self) -> Terms:
        """What stands at the gates."""
        return self.account.terms

    @property
    def mechanism(self) -> NoisySum | None:
        """The mechanism that adds noise to sums."""
        found = self.terms.inbox if self.plan.level.server_pays else self.terms.data
        return None if isinstance(found, ExactSum) else found

    def with_terms(self, terms: Terms) -> Job:
        """The same job with other terms at its gates."""
        return dataclasses.replace(self, account=dataclasses.replace(self.account, terms=terms))

    def disjoint(self, because: str | None) -> Job:
        """The same job, whose owner says why nobody in its data is in any other."""
        return dataclasses.replace(self, account=self.account.disjoint(because))

    def require_checked(self) -> None:
        """Refuses a program that leaks, or makes more releases than were counted on it."""
        for check, span in zip(self.checks, self.experiment.spans, strict=True):
            uses = self.account.uses.items()
            check.require({kind: counts[span.start : span.stop] for kind, counts in uses})


def prepare(
    experiment: Experiment,
    given: GivenData | None = None,
    own_model: Model | None = None,
    own_algorithms: tuple[Algorithm, ...] | None = None,
    before: Callable[[Account], None] | None = None,
) -> Job:
    """Loads data, counts releases on the program itself, calibrates the noise to them and checks the flow.

    `given`, `own_model` and `own_algorithms` (one per phase): data, model and methods, where they are objects and not
    only named by the experiment. `before` is asked before anything is counted, with an account that is a draft.
    """
    level, devices = experiment.privacy, _devices(experiment)
    federations = federations_of(experiment, given)
    data = federations[0]
    if own_model is None:
        experiment = dataclasses.replace(experiment, model=fitting(experiment.model, data))
    model = model_for(experiment, data, own_model)
    algorithms = own_algorithms or tuple(build_algorithm(p, level.level, data.ids) for p in experiment.phases)
    require_used(experiment)
    afterwards = build_afterwards(experiment)
    sizes, training = data.train.sizes, experiment.training
    if level.cohort is not None and level.cohort > len(sizes):
        raise ConfigError(f"cohort={level.cohort:g} is more than the {len(sizes)} clients there are")
    streamed = experiment.engine.store != "device"
    if streamed:
        _check_streamed(experiment)
    one_block = not level.level.clients_pay and level.cohort is not None
    local: Any = {
        "batch_size": training.batch_size,
        "epochs": training.epochs,
        "by_size": training.weights == "size",
    }
    clients, tests, widths, most_steps = (
        lay_out_streamed(data, **local, most_blocks=4 if level.level.clients_pay else 1)
        if streamed
        else lay_out(federations, **local, most_blocks=1 if one_block else 4)
    )
    limits.require_feasible(experiment.rounds, max(most_steps))
    _check_phases(model, experiment, algorithms)
    weights = trees.size(jax.eval_shape(model.init, jax.random.key(0)))
    steps, runs = local_steps(sizes, training.batch_size, training.epochs), experiment.rounds * experiment.seeds
    little = work(sizes, steps, weights, runs) <= LITTLE
    plan = Plan(
        model,
        level.level,
        widths,
        most_steps,
        experiment.tail_from,
        devices=devices,
        little_work=little and not streamed,
        streamed=streamed,
    )
    who = Population(
        data.ids,
        sizes,
        training.batch_size,
        weights,
        training.batches == "shuffled",
        noise_factors(algorithms, experiment.spans),
    )

    parties, units = level.level.parties(data.ids), tuple(level.level.units(sizes))
    released, source = experiment.seed is None, source_of(data)
    settled = level.settled(len(sizes))

    def account_of(terms: Terms, uses: Uses) -> Account:
        return Account(settled, data.name, parties, units, terms, uses, released=released, source=source)

    def count(draft: Terms) -> Uses:
        if before is not None:
            before(account_of(draft, {}))
        counted = streamed_counts.count_uses if streamed else count_uses
        one_seed = trees.row(clients, 0)
        phases = zip(algorithms, experiment.spans, strict=True)
        parts = [counted(plan, algorithm, draft, one_seed, span) for algorithm, span in phases]
        return {kind: np.concatenate([part[kind] for part in parts]) for kind in level.level.kinds}

    terms, uses = calibrated(level, who, count)
    if training.weights == "precision":
        clients = dataclasses.replace(
            clients, weights=jnp.tile(precision_weights(terms, sizes, clients), (len(federations), 1))
        )
    account = account_of(terms, uses)
    checks = tuple(check_job(plan, algorithm, terms, clients) for algorithm in algorithms)
    return Job(
        experiment=experiment,
        federations=federations,
        plan=plan,
        algorithms=algorithms,
        account=account,
        clients=clients,
        tests=tests,
        checks=checks,
        afterwards=afterwards,
    )


def source_of(data: Federation) -> Source:
    """Whose rows a federation holds, for its account."""
    if data.identity is not None and data.has_people:
        whole = people_of(data.identity)
        return Source(data.name, data.grouping, data.ids, whole.sizes, whole, people=whole.rows_per_person)
    sizes = np.asarray(data.train.sizes)
    if data.test is not data.train:
        sizes = sizes + np.asarray(data.test.sizes)
    return Source(data.name, data.grouping, data.ids, tuple(map(int, sizes)), data.identity)


def beside_alone(job: Job) -> tuple[Afterwards | None, bool]:
    """What clients do after training; where they choose (the second says so), beside the best they could do alone."""
    own = job.afterwards
    return (BesideAlone(own), True) if isinstance(own, SelfSelect) else (own, False)


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


def _devices(experiment: Experiment) -> int:
    """Among how many devices clients are divided; a release stays with one process, which draws its noise once."""
    if experiment.seed is None and jax.process_count() > 1:
        raise ConfigError(
            f"seed=None in a job of {jax.process_count()} processes: each would draw noise of its own; make a release "
            "in one process (on all of its devices), or give a seed, for a simulation"
        )
    return usable(experiment.engine.devices)


def _check_streamed(experiment: Experiment) -> None:
    """Refuses what the streaming engine cannot do."""
    if experiment.seeds > 1:
        raise ConfigError(
            f"seeds={experiment.seeds}: a store holds the clients of one run: start one for each seed, or use "
            "store='device'"
        )
    if experiment.training.tail > 0:
        raise ConfigError(
            f"training.tail={experiment.training.tail:g}: every round would have to read and write the models of all "
            "clients, present or not: leave it out, or use store='device'"
        )
    for phase in experiment.phases if not experiment.privacy.level.clients_pay else ():
        if "client" not in REGISTRY[resolve(phase.method, phase.options)[0]].levels:
            raise ConfigError(f"{phase.method} reads every client's message at once: use store='device'")


def precision_weights(terms: Terms, sizes: np.ndarray, clients: Clients) -> np.ndarray:
    """Weights inversely proportional to the noise variance of a client's mean gradient over a round; public, mean 1."""
    if not isinstance(terms.data, GaussianSum):
        raise ConfigError("weights='precision' needs noise at the clients (level='example'): use 'uniform' or 'size'")
    expected = np.asarray(terms.data.sampling.rate) * sizes
    precision = np.asarray(clients.steps)[0] * (expected / np.asarray(terms.data.noise_multiplier)) ** 2
    return (precision / precision.mean()).astype(np.float32)


def check_job(
    plan: Plan,
    algorithm: Algorithm,
    terms: Terms,
    clients: Clients,
    tapes: tuple[Tape | None, Tape | None] = (None, None),
) -> RoundCheck:
    """The flow check on the very programs of a job: every block's, for one client, with arrays as the engine has them.

    A gathered cohort in a release may have loops of several lengths, and each is a program.
    """
    data, choice = trees.row(terms.own, 0)
    algorithm, own = as_array(algorithm), as_array(Terms(data, choice, terms.inbox))
    capacity, exact = terms.inbox.sampling.capacity, tapes != (None, None)
    places = None if capacity is None else places_of(capacity, plan.clients, plan.homes)
    found = [
        check_round(plan.spec(steps), algorithm, own, trees.row(rows, (0, 0)), places, tapes)
        for rows, most_steps in zip(clients.blocks, plan.most_steps, strict=True)
        for steps in (loop_lengths(most_steps) if exact and places else [most_steps])
    ]
    violations = tuple(dict.fromkeys(text for check in found for text in check.violations))
    program = hashlib.sha256("".join(check.program for check in found).encode()).hexdigest()
    programs = frozenset().union(*(check.programs for check in found))
    certain = {kind: min(check.certain.get(kind, 0) for check in found) for kind in found[-1].certain}
    verdict = dataclasses.replace(found[-1], violations=violations, certain=certain)
    return dataclasses.replace(verdict, program=program, programs=programs)
