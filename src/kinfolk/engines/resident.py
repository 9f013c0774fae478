"""The resident engine: a whole run as one compiled program.

Clients are vectorised in blocks of similar size, seeds and sweep points are vectorised around them (large models take
turns instead, see `batching.py`), and rounds are a loop inside the program, whose bounds are arguments: any number of
rounds runs without compiling again, and results do not depend on how the rounds are divided into chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import trees
from kinfolk.batching import loop, over, over_clients, over_cohort, rows_at, takes_turns
from kinfolk.devices import cut, filled_up, kept_at
from kinfolk.engines.cohorts import Cohort, draw_cohort
from kinfolk.engines.programs import program
from kinfolk.privacy.levels import Level, Terms
from kinfolk.privacy.release import Meter, new_meter
from kinfolk.rounds import Client, Mail, RoundSpec, client_round, server_round
from kinfolk.types import Algorithm, Model, Params, Personal, Rows, Shared, Tree


@trees.register
@dataclass(frozen=True)
class State:
    """Everything that changes during a run."""

    shared: Shared
    personal: Personal
    """One row per client."""
    meters: Meter
    """The clients' meters, one row per client."""
    server: Meter
    models: Params = ()
    """The models that clients predict with, one row per client, where these are not what the algorithm says: tail
    averages, or what clients made of theirs after training."""


@trees.register
@dataclass(frozen=True)
class Clients:
    """Everything about the clients that stays: blocks of rows, and public numbers with one entry per client."""

    blocks: tuple[Rows, ...]
    sizes: Array
    steps: Array
    weights: Array


@dataclass(frozen=True)
class Plan:
    """What is fixed when the program is compiled."""

    model: Model
    level: Level
    widths: tuple[int, ...]
    """Clients in each block."""
    most_steps: tuple[int, ...]
    """Most local steps of any client in each block."""
    tail_from: int | None = None
    """From this round on a client's model is the mean over its rounds so far; before it, the latest."""
    programs: frozenset[str] | None = None
    """Fingerprints of the rounds' programs that the flow check saw, in a release: nothing else is compiled."""
    devices: int = 1
    """Among how many devices clients are divided."""
    little_work: bool = False
    """Whether all rounds together take less time than optimising their programs (`programs.py`)."""
    streamed: bool = False
    """Whether clients' states are in a store, outside of the program."""

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return sum(self.widths)

    @property
    def homes(self) -> int:
        """Among how many devices clients are divided for good, with all that is theirs: where they take turns."""
        return self.devices if takes_turns(self.model) and not self.streamed else 1

    def in_blocks(self, tree: Tree) -> list[Tree]:
        """Every block's rows of what has one row per client."""
        ends = np.cumsum(self.widths).tolist()
        return [trees.row(tree, slice(end - width, end)) for end, width in zip(ends, self.widths, strict=True)]

    def spec(self, most_steps: int | None = None) -> RoundSpec:
        """A round's program, for clients of at most so many local steps."""
        most = most_steps or max(self.most_steps)
        return RoundSpec(self.model, self.level, most, self.clients, self.programs, self.homes)


def start(plan: Plan, algorithm: Algorithm, key: Array) -> State:
    """The state before the first round. Separate streams: initial weights, the clients' meters, the server's."""
    init_key, client_key, server_key = (jax.random.fold_in(key, stream) for stream in range(3))
    shared = algorithm.init(plan.model.init(init_key), plan.clients)
    personal = _first_personal(plan, algorithm, shared)
    keys = jax.vmap(partial(jax.random.fold_in, client_key))(jnp.arange(plan.clients, dtype=jnp.int32))
    meters = jax.vmap(lambda k: new_meter(k, plan.level.data_kinds))(keys)
    state = State(shared, personal, meters, new_meter(server_key, plan.level.inbox_kinds))
    return state if plan.tail_from is None else replace(state, models=latest_models(algorithm, state))


def latest_models(algorithm: Algorithm, state: State) -> Params:
    """The models that the algorithm says clients predict with."""
    clients = state.meters.draws.shape[0]
    return jax.vmap(partial(algorithm.model, state.shared), axis_size=clients)(state.personal)


def one_round(plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, state: State, number: Array) -> State:
    """All clients' parts of a round, then the aggregator's."""
    terms = terms.at(number)
    cohort = draw_cohort(terms.inbox.sampling, state.server.coins, number, plan.clients, plan.homes)
    if cohort.index is None:
        messages, *kept = _all_clients(plan, algorithm, terms, clients, state, number, cohort.present)
        personal, counted = trees.choose_rows(cohort.present, tuple(kept), (state.personal, counters_of(state.meters)))
        weights, slots = clients.weights, jnp.arange(plan.clients, dtype=jnp.int32)
    else:
        slots = cohort.index
        messages, personal, counted = _gathered(plan, algorithm, terms, clients, state, number, cohort)
        weights = rows_at(clients.weights, slots)
    meters = with_counters(state.meters, counted)
    expected = terms.inbox.sampling.rate * clients.weights[: plan.clients]
    mail = Mail(messages, weights, slots, cohort.present, state.server, terms.inbox, expected)
    shared, server = server_round(plan.spec(), algorithm, state.shared, mail, number)
    after = State(shared, personal, meters, server)
    if plan.tail_from is None:
        return after
    share = 1 / jnp.maximum(number - plan.tail_from + 1, 1).astype(jnp.float32)
    newest = latest_models(algorithm, after)
    return replace(after, models=jax.tree.map(lambda old, new: old + share * (new - old), state.models, newest))


def counters_of(meter: Meter) -> tuple[Tree, Array, Tree]:
    """What a client's round changes in its meter."""
    return meter.uses, meter.draws, meter.tape


def with_counters(meter: Meter, counted: tuple[Tree, Array, Tree]) -> Meter:
    """The meter after a client's round."""
    uses, draws, tape = counted
    return replace(meter, uses=uses, draws=draws, tape=tape)


Same = tuple[Algorithm, Shared, Array]
"""What is the same for all clients of a round: the method, the published state, and the round's number."""


def _same(algorithm: Algorithm, state: State, number: Array) -> Same:
    return jax.tree.map(jnp.asarray, (algorithm, state.shared, number))


def _client(spec: RoundSpec, same: Same, client: Client, rows: Rows) -> tuple[Tree, Personal, Tree]:
    """One client's message, personal state and counters, from its row of `without_examples` and its examples."""
    algorithm, shared, number = same
    message, personal, meter = client_round(spec, algorithm, shared, replace(client, rows=rows), number)
    return message, personal, counters_of(meter)


def without_examples(terms: Terms, clients: Clients, state: State) -> Client:
    """What the engine holds for clients besides their examples, which lie in blocks; one row each."""
    nothing = Rows((), (), ())
    return Client(state.personal, nothing, state.meters, terms.own, clients.sizes, clients.steps)


def _all_clients(
    plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, state: State, number: Array, present: Array
) -> tuple[Tree, Personal, Tree]:
    """Every client's round, block by block."""
    same, parts = _same(algorithm, state, number), []
    blocks = plan.in_blocks((present, without_examples(terms, clients, state)))
    for (here, own), rows, most_steps in zip(blocks, clients.blocks, plan.most_steps, strict=True):
        run = partial(_client, plan.spec(most_steps))
        parts.append(over_clients(plan.model, run, same, here, own, rows, devices=plan.devices))
    return trees.concatenate(parts)


def _gathered(
    plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, state: State, number: Array, cohort: Cohort
) -> tuple[Tree, Personal, Tree]:
    """The cohort's rounds. What is computed in an empty place is thrown away."""
    assert cohort.index is not None
    assert not plan.streamed  # or clients would sit elsewhere than at home
    (rows,) = clients.blocks
    kept = (state.personal, counters_of(state.meters))

    def of_client(most_steps: int, same: Same, kept: Tree, fixed: Client) -> tuple[Tree, Tree]:
        personal, counted = kept
        client = replace(fixed, personal=personal, meter=with_counters(fixed.meter, counted))
        message, *kept = _client(plan.spec(most_steps), same, client, fixed.rows)
        return message, tuple(kept)

    fixed = replace(without_examples(terms, clients, state), personal=(), rows=rows)
    steps, places = (clients.steps, plan.most_steps[0]), (cohort.present, cohort.index)
    everything = (_same(algorithm, state, number), kept, fixed)
    found = over_cohort(plan.model, of_client, steps, places, everything, plan.devices)
    messages, (personal, counted) = found
    return messages, personal, counted


@program(donate_argnums=4)
def run_rounds(
    plan: Plan, algorithms: Algorithm, terms: Terms, clients: Clients, states: State, begin: Array, end: Array
) -> State:
    """Rounds `begin` to `end` - 1 for every sweep point and seed.

    Leaves of `algorithms` and `terms` have a leading sweep axis, `clients` a leading seed axis, `states` both.
    """

    def of_run(algorithm: Algorithm, terms: Terms, clients: Clients, state: State) -> State:
        if terms.inbox.sampling.capacity is not None:  # else nothing is kept at home
            terms, clients, state = _filled_up(plan, terms, clients, state)
        step = lambda number, state: one_round(plan, algorithm, terms, clients, state, number)  # noqa: E731
        state = loop(plan.model, step, begin, end, state)
        return _of_clients(partial(cut, length=plan.clients), state)

    seeds = over(plan.model, of_run, (None, None, 0, 0))
    return _at_home(plan, over(plan.model, seeds, (0, 0, None, 0))(algorithms, terms, clients, states))


def _of_clients(function: Callable[[Tree], Tree], state: State) -> State:
    """The state after a function of what it has for every client."""
    personal, meters, models = function((state.personal, state.meters, state.models))
    return replace(state, personal=personal, meters=meters, models=models)


def _filled_up(plan: Plan, terms: Terms, clients: Clients, state: State) -> tuple[Terms, Clients, State]:
    """All of it for as many clients as homes can be divided by, once for all rounds: the last ones, who never take
    part, are copies."""
    more = partial(filled_up, length=plan.clients, devices=plan.homes)
    data, choice = more(terms.own)
    return replace(terms, data=data, choice=choice), more(clients), _of_clients(more, state)


def _at_home(plan: Plan, states: State) -> State:
    """States of every sweep point and seed, where the next program looks for them."""
    if plan.homes == 1:
        return states
    states = kept_at(plan.homes, states)
    return _of_clients(partial(kept_at, plan.homes, axis=2), states)


@program()
def start_all(plan: Plan, algorithms: Algorithm, keys: Array) -> State:
    """Starting states for every sweep point and seed; sweep points of a simulation share their seeds' streams."""
    seeds = jax.vmap(partial(start, plan), in_axes=(None, 0))
    return _at_home(plan, jax.vmap(seeds, in_axes=(0, None))(algorithms, keys))


@program()
def enter_phase(plan: Plan, algorithms: Algorithm, states: State) -> State:
    """The next phase's states: the shared state goes on where it has the same form, personal states start from it."""

    def one(algorithm: Algorithm, shared: Shared) -> tuple[Shared, Personal]:
        shared = algorithm.init(shared, plan.clients)
        return shared, _first_personal(plan, algorithm, shared)

    seeds = jax.vmap(one, in_axes=(None, 0))
    shared, personal = jax.vmap(seeds)(algorithms, states.shared)
    return _at_home(plan, replace(states, shared=shared, personal=personal))


def _first_personal(plan: Plan, algorithm: Algorithm, shared: Shared) -> Personal:
    """Every client's state before its first round."""
    slots = jnp.arange(plan.clients, dtype=jnp.int32)
    personal = jax.vmap(lambda slot: algorithm.init_client(shared, slot))(slots)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (plan.clients, *leaf.shape[1:])), personal)


def one_run(states: Tree) -> Tree:
    """The first sweep point and seed of what has these two axes in front: of a release, the only ones."""
    return trees.row(states, (0, 0))
