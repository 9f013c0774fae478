"""What a silo runs: its own rows, its own mechanisms, and the `client_round` that simulation runs too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.accounting.account import Account
from kinfolk.accounting.budgets import check_deltas
from kinfolk.accounting.calibrate import Population, Uses, calibrated
from kinfolk.accounting.members import ALONE, Source
from kinfolk.algorithms.schedules import noise_factors
from kinfolk.data.identity import Identity
from kinfolk.deploy.evaluation import SiloTests, tests_of
from kinfolk.deploy.policy import Policy, pins_of, require_compatible
from kinfolk.deploy.round_account import NOTHING_TO_CHECK, as_compiled, checked_phase, round_meter
from kinfolk.deploy.silo_rows import divided
from kinfolk.deploy.study import Study
from kinfolk.deploy.sums import Sums, sums_of
from kinfolk.engines.layout import local_steps
from kinfolk.engines.release_counts import by_round
from kinfolk.privacy.choice import Chooser
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.levels import Level, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import ExactSum, Mechanism, Sampling
from kinfolk.privacy.noise_tape import fresh_keys
from kinfolk.privacy.release import Meter, Tape, new_meter
from kinfolk.rounds import Client, RoundSpec, client_round, data_gate
from kinfolk.secure.agreement import Pins
from kinfolk.toml import ConfigError
from kinfolk.training.build import as_array
from kinfolk.training.evaluation_account import ONCE
from kinfolk.types import Algorithm, Rows, Tree
from kinfolk.verify.round_check import RoundCheck

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@partial(jax.jit, static_argnums=0)
def run_client(
    spec: RoundSpec, algorithm: Algorithm, shared: Tree, client: Client, terms: Terms, number: jax.Array
) -> tuple[Tree, Tree, Meter]:
    """A silo's part of a round, under the terms of that round."""
    return client_round(spec, algorithm, shared, replace(client, terms=terms.at(number).own), number)


class Compiled(NamedTuple):
    """What the rounds of the first phase need, made beforehand. Each program that JAX keeps takes a megabyte and more,
    be it as small as an addition: a silo that has this needs hardly any other."""

    call: Callable[..., tuple[Tree, Tree, Meter]]
    types: Tree
    """Of the arguments that it was compiled for."""
    start: Tree
    """The silo's state before its first round."""
    meter: Meter
    """Before all rounds, with keys that no release uses."""


@dataclass(frozen=True)
class SiloTerms:
    """What a silo brings to secure sums."""

    shared: Sums
    """What all silos compute alike."""
    account: Account
    """The silo's own: the silo as a whole is the unit."""
    pins: Pins
    key: Ed25519PrivateKey
    """With which it signs."""

    def pins_for(self, number: int, tests: SiloTests | None) -> Pins:
        """What the silo insists on in one sum: in an evaluation, on the noise that its own budget for one needs.

        `tests`: what it brings to the evaluation, if anything.
        """
        if not self.shared.is_evaluation(number) or tests is None or tests.account is None:
            return self.pins
        ((noise,),) = tests.account.scales(EVALUATION, ONCE, 1)
        return replace(self.pins, least_deviation=float(noise) * GRID_STEPS)


@dataclass(frozen=True)
class Program:
    """One silo, ready to compute. Nothing in it came from a message."""

    study: Study
    policy: Policy
    rows: Rows
    account: Account
    """The silo's own: empty where it pays for nothing, at client level."""
    checks: tuple[RoundCheck, ...]
    """The flow check of every phase."""
    sums: SiloTerms | None = None
    """The silo's terms of secure sums, where there are any."""
    tests: SiloTests | None = None
    """What it brings to the study's evaluation, where its policy has leave for one."""
    compiled: Compiled | None = None
    """The first phase's rounds, where they were compiled beforehand; all else is compiled when it is needed."""

    @property
    def terms(self) -> Terms:
        """What stands at the silo's data gate, round by round."""
        return self.account.terms

    @property
    def pays(self) -> Account:
        """The account that the silo's own ledger keeps: of its rows at example level, of itself in secure sums."""
        return self.account if self.sums is None else self.sums.account

    def kept_shape(self, number: int) -> Tree:
        """The shape of what is stored of a round to be sent again."""
        if self.sums is None:
            return self.study.message_shapes[self.study.phase(number)]
        sizes = {"view": 32, "vector": 4 * self.sums.shared.length(number), "signature": 64}
        parts = {name: jax.ShapeDtypeStruct((size,), np.uint8) for name, size in sizes.items()}
        return {**parts, "attempt": jax.ShapeDtypeStruct((), np.int64)}

    @property
    def slot(self) -> int:
        return self.study.roster.clients.index(self.policy.client)

    @property
    def size(self) -> int:
        return int(self.rows.mask.shape[0])

    @cached_property
    def steps(self) -> int:
        return _steps(self.policy, self.size)

    @property
    def rounds(self) -> int:
        """Rounds of a run that the silo serves."""
        return min(self.policy.rounds, self.study.experiment.rounds)

    @property
    def fingerprints(self) -> list[str]:
        """Of the programs that the flow check saw: where sums are secure, of what is summed."""
        return [check.program for check in (self.checks if self.sums is None else self.sums.shared.checks)]

    def personal_shape(self, phase: int) -> Tree:
        return self.study.personal_shapes[phase]

    def start(self) -> Tree:
        """The silo's state before its first round of a run."""
        return self.begin(0, self.study.first()) if self.compiled is None else self.compiled.start

    def begin(self, phase: int, entry: Tree) -> Tree:
        """The silo's state before its first round of a phase that began with the shared state `entry`."""
        return self.study.algorithms[phase].init_client(jax.tree.map(jnp.asarray, entry), jnp.int32(self.slot))

    def meter(self, number: int, uses: dict[str, int], draws: int) -> Meter:
        """Fresh keys and noise for a round; in a test, the stream of simulation, gone on from these counts."""
        blank = self._blank_meter() if self.compiled is None else self.compiled.meter
        if self.account.released:
            return round_meter(self.account, blank, self.checks[self.study.phase(number)].sizes, number)
        counts = {kind: np.int32(uses[kind]) for kind in self.study.level.data_kinds}
        return replace(blank, uses=counts, draws=np.int32(draws))

    def _blank_meter(self) -> Meter:
        """With keys of its own, which every round of a release replaces; in a test, those of simulation."""
        if self.account.released:
            return new_meter(fresh_keys(), self.study.level.data_kinds)
        stream = jax.random.fold_in(jax.random.fold_in(self.study.key, 1), self.slot)
        return new_meter(stream, self.study.level.data_kinds)

    def compute(self, number: int, shared: Tree, personal: Tree, meter: Meter) -> tuple[Tree, Tree, Meter]:
        """The silo's part of a round: message, personal state, meter."""
        spec, *rest = self._arguments(number, shared, personal, meter)
        ready = self.compiled
        if ready is not None and self.study.phase(number) == 0 and ready.types == jax.tree.map(jax.typeof, rest):
            return ready.call(*rest)
        return run_client(spec, *rest)

    def _arguments(self, number: int, shared: Tree, personal: Tree, meter: Meter) -> tuple[Any, ...]:
        """What `run_client` is called with."""
        phase = self.study.phase(number)
        spec = as_compiled(self.spec, self.account, self.checks[phase])
        client = self._client(personal, meter)
        return spec, self.study.algorithms[phase], _on_host(shared), client, self.terms, np.int32(number)

    def compile(self) -> Program:
        """The same with the first phase compiled; all that JAX had kept in this process is forgotten."""
        first, blank = self.study.first(), self._blank_meter()
        start = _on_host(self.begin(0, first))
        arguments = self._arguments(0, first, start, self.meter(0, dict.fromkeys(self.account.uses, 0), 0))
        types = jax.tree.map(jax.typeof, list(arguments[1:]))
        ready = Compiled(run_client.lower(*arguments).compile(), types, start, blank)
        jax.clear_caches()
        return replace(self, compiled=ready)

    @property
    def spec(self) -> RoundSpec:
        return RoundSpec(self.study.model, self.study.level, self.steps, self.study.clients)

    def _client(self, personal: Tree, meter: Meter) -> Client:
        numbers = (np.float32(self.size), np.int32(self.steps))
        personal, rows, size, steps = _on_host((personal, self.rows, *numbers))
        return Client(personal, rows, meter, self.terms.own, size, steps)

    def model(self, phase: int, shared: Tree, personal: Tree) -> Tree:
        """The model that the algorithm gives the silo."""
        return self.study.algorithms[phase].model(*jax.tree.map(jnp.asarray, (shared, personal)))

    def personalised(self, phase: int, shared: Tree, model: Tree) -> Tree:
        """What the silo makes of its model alone, at the end; nobody sees it."""
        step = self.study.afterwards
        if step is None:
            return model
        shared = jax.tree.map(jnp.asarray, shared)
        common = self.model(phase, shared, self.study.algorithms[phase].init_client(shared, jnp.int32(0)))
        meter = new_meter(self.study.key, ())  # nothing is drawn
        return step(common, model, data_gate(self.spec, self._client((), meter), jnp.int32(0)))


def _on_host(tree: Tree) -> Tree:
    """Leaves as they are given to a compiled program, without a program for each."""
    return jax.tree.map(np.asarray, tree)


def _steps(policy: Policy, size: int) -> int:
    return int(local_steps(np.array([size]), policy.training.batch_size, policy.training.epochs)[0])


def prepare_silo(
    study: Study,
    policy: Policy,
    rows: Rows,
    identity: Identity | None = None,
    key: Ed25519PrivateKey | None = None,
) -> Program:
    """Checks the policy, counts releases on the program, calibrates the noise to them and checks the flow.

    `key`: with which the silo signs in secure sums.
    """
    require_compatible(policy, study)
    own_rows = divided(study, policy, rows, identity)
    size, own = own_rows.size, policy.training
    privacy = policy.privacy if policy.privacy.level.clients_pay else PrivacyLevel(Level.NONE)
    check_deltas(privacy, (policy.client,), np.array([size]))
    weights = trees.size(jax.eval_shape(study.model.init, study.key))
    who = Population(
        (policy.client,),
        np.array([size]),
        own.batch_size,
        weights,
        own.batches == "shuffled",
        noise_factors(study.algorithms, study.experiment.spans),
    )
    rounds = min(policy.rounds, study.experiment.rounds)
    terms, uses = calibrated(privacy, who, lambda draft: _count(study, policy, _one(draft).own, rounds, size))
    own_table = policy.data
    source = Source(
        own_table.name,
        ALONE,
        (ALONE,),
        (own_rows.units,),
        own_rows.identity,
        own_table.disjoint_because,
        own_rows.people,
    )
    who_pays, released = ((policy.client,), (size,)), not policy.test_keys
    account = Account(privacy, own_table.name, *who_pays, _one(terms), uses, released=released, source=source)
    secure = _secure(study, policy, source, key)
    if secure is None:
        account, tests = tests_of(study, policy, own_rows, account, rounds)
    else:
        pays, tests = tests_of(study, policy, own_rows, secure.account, rounds)
        secure = replace(secure, account=pays)
        if tests is not None:
            last = study.experiment.rounds
            secure.pins_for(last, tests).require(secure.shared.agreement(last))
    program = Program(study, policy, own_rows.train, account, (), secure, tests)
    return replace(program, checks=tuple(_check(program, phase) for phase in range(len(study.algorithms))))


def _secure(study: Study, policy: Policy, source: Source, key: Ed25519PrivateKey | None) -> SiloTerms | None:
    """The silo's terms of secure sums: what the study says, as far as the policy's own pins and budget allow it."""
    if not study.sums_are_secure:
        return None
    shared, pins = sums_of(study), pins_of(policy)
    for number in range(min(policy.rounds, study.experiment.rounds)):
        pins.require(shared.agreement(number))
    if key is None or key.public_key().public_bytes_raw() != pins.keys[policy.client]:
        raise ConfigError(f"the key in {policy.signing!r} is not the one that silos.{policy.client} of the policy says")
    theirs = shared.account.privacy
    own = replace(policy.privacy, survivors=theirs.survivors, colluding=theirs.colluding)
    account = replace(
        shared.account,
        privacy=own,
        data=policy.data.name,
        parties=(policy.client,),
        terms=_on_host(shared.account.terms),  # which every payment reads
        source=replace(source, people=0),
    )
    return SiloTerms(shared, account, pins, key)


def _one(terms: Terms) -> Terms:
    """The terms of the only client there is, with everybody's inbox open."""
    data, choice = as_array(jax.tree.map(lambda leaf: leaf[0], terms.own))
    everybody = ExactSum(Sampling(jnp.float32(1)), sampled_here=False)
    return Terms(data, choice, everybody, *as_array((terms.noise_factors, terms.clip_factors)))


def _count(study: Study, policy: Policy, own: tuple[Mechanism, Chooser], rounds: int, size: int) -> Uses:
    """Releases of every kind in every round: read off the program, without any data."""
    kinds, steps = study.level.data_kinds, _steps(policy, size)
    slot = jnp.int32(study.roster.clients.index(policy.client))

    def zeros(shapes: Tree) -> Tree:
        return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    @partial(jax.jit, static_argnums=0)
    def count(phase: int, algorithm: Algorithm, own: Tree, number: jax.Array) -> dict[str, jax.Array]:
        shared = zeros(study.shapes[phase])
        meter = replace(new_meter(jax.random.key(0), kinds), tape=Tape({}, "count"))
        personal, rows = algorithm.init_client(shared, slot), zeros(study.row_shapes(1))
        client = Client(personal, rows, meter, own, jnp.float32(1), jnp.int32(steps))
        spec = RoundSpec(study.model, study.level, steps, study.clients)
        return client_round(spec, algorithm, shared, client, number)[2].uses

    def counters(number: jax.Array) -> dict[str, jax.Array]:
        phase = study.phase(int(number))
        return count(phase, study.algorithms[phase], own, number)

    return by_round(counters, range(rounds), kinds)


def _check(program: Program, phase: int) -> RoundCheck:
    """The flow check of the very program that this silo runs."""
    study = program.study
    if not study.level.clients_pay:  # messages go to a trusted aggregator, which checks its own part
        return NOTHING_TO_CHECK
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), program.rows)
    arguments = (program.spec, study.algorithms[phase], program.terms, rows)
    return checked_phase(arguments, program.account, study.experiment.spans[phase])
