"""The streaming engine: only a round's cohort is in the program, all other clients are in a store outside it.

Who takes part, every client's coins and the noise are those of the resident engine, and so are the results. While one
cohort computes, a thread draws the next and loads its rows and states; whoever is in both is read again in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import DTypeLike

from kinfolk import trees
from kinfolk.batching import over_clients
from kinfolk.data.federation import ClientData, Data
from kinfolk.engines.client_store import Store
from kinfolk.engines.cohorts import draw_cohort
from kinfolk.engines.release_counts import by_round
from kinfolk.engines.resident import Clients, Plan, one_run
from kinfolk.privacy.correlated_noise import Turns
from kinfolk.privacy.levels import Level, Terms
from kinfolk.privacy.mechanisms import Sampling
from kinfolk.privacy.release import Meter, Tape, new_meter
from kinfolk.rounds import Client, Mail, client_round, server_round
from kinfolk.types import Algorithm, Personal, Rows, Shared, Tree

LEVELS = (Level.CLIENT, Level.NONE)
"""At example level every client is in every round: there is nothing to stream."""


@dataclass(frozen=True)
class Streamed:
    """Everything that changes during a run. Leaves of what is not per client have leading axes (1, 1), as elsewhere."""

    shared: Shared
    begun: Shared
    """The shared state from which clients start when they first take part."""
    meters: Meter
    """From its keys every client's own are made, by the client's number."""
    server: Meter
    store: Store
    draws: np.ndarray
    """How many batches each client has drawn."""


@dataclass(frozen=True)
class Program:
    """What is compiled into a round's program."""

    plan: Plan
    length: int
    """Rows of the longest client."""
    traced: Callable[..., tuple[Tree, Tree]] | None
    """Makes examples inside of the program, where it can."""


@trees.register
@dataclass(frozen=True)
class Fixed:
    """What a round's program is given in every round alike."""

    algorithm: Algorithm
    terms: Terms
    clients: Clients
    begun: Shared
    keys: Array


@trees.register
@dataclass(frozen=True)
class Changing:
    """What a round changes: everybody's, then the cohort's."""

    shared: Shared
    server: Meter
    personal: Personal
    draws: Tree


@trees.register
@dataclass(frozen=True)
class Cohort:
    """Who takes part in a round, in which place."""

    index: Tree
    present: Tree
    known: Tree
    """Whether the store has a client's state."""
    examples: Tree


@dataclass(frozen=True)
class Loaded:
    """A cohort, made ready for the program."""

    index: np.ndarray
    """Which client sits in each place, in ascending order; an empty place has the number of clients."""
    filled: int
    personal: Personal
    known: np.ndarray
    draws: np.ndarray
    examples: tuple[Tree, Tree] | None
    """Features and targets; None: the program makes them."""


def start(plan: Plan, algorithm: Algorithm, key: Array, store: Callable[[Tree], Store]) -> Streamed:
    """The state before the first round, with the resident engine's streams. `store` makes one for states like these."""
    init_key, client_key, server_key = (jax.random.fold_in(key, stream) for stream in range(3))
    meters = replace(new_meter(client_key, plan.level.data_kinds), noise=client_key, coins=client_key)
    server = new_meter(server_key, plan.level.inbox_kinds)
    shared = algorithm.init(plan.model.init(init_key), plan.clients)
    lifted: Tree = jax.tree.map(lambda leaf: leaf[None, None], (shared, meters, server))
    shared, meters, server = lifted
    draws = np.zeros(plan.clients, np.int32)
    return Streamed(shared, shared, meters, server, store(shapes_of(algorithm, shared)), draws)


def enter_phase(plan: Plan, algorithm: Algorithm, state: Streamed, store: Callable[[Tree], Store]) -> Streamed:
    """The next phase's state: clients start from the shared state again."""
    shared = algorithm.init(one_run(state.shared), plan.clients)
    shared = jax.tree.map(lambda leaf: leaf[None, None], shared)
    return replace(state, shared=shared, begun=shared, store=store(shapes_of(algorithm, shared)))


def shapes_of(algorithm: Algorithm, shared: Shared) -> Tree:
    """Of one client's state; `shared` has leading axes (1, 1)."""
    return jax.eval_shape(lambda s: algorithm.init_client(one_run(s), jnp.int32(0)), shared)


def run_rounds(
    plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, data: Data, state: Streamed, rounds: range
) -> Streamed:
    """Some rounds, cohort by cohort. The store of `state` is changed in place."""
    store, draws, coins = state.store, state.draws.copy(), one_run(state.server.coins)
    places, length = places_for(plan.level, terms.inbox.sampling, plan.clients), max(1, int(data.sizes.max()))
    everybody = replace(terms.inbox.sampling, capacity=None)
    rooms = [(store.room(places), _room_for(data, places, length)) for _ in range(2)]

    def load(number: int) -> Loaded:
        present = np.flatnonzero(_present(plan, everybody, coins, jnp.int32(number)))[:places]
        index = np.full(places, plan.clients, np.int32)
        index[: len(present)] = present
        slots = np.minimum(index, plan.clients - 1)
        states, examples = rooms[number % 2]  # the other is in use
        found = None if data.traced else _examples(data, slots, length, examples)
        return Loaded(index, len(present), *store.read(index, states), draws[slots], found)

    program = Program(plan, length, data.traced)
    begun, keys, shared, server = one_run((state.begun, state.meters.noise, state.shared, state.server))
    fixed = Fixed(algorithm, terms, replace(clients, blocks=()), begun, keys)
    last = np.zeros(0, np.int32)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(load, rounds[0]) if rounds else None
        for number in rounds:
            assert coming is not None
            now = _read_again(coming.result(), last, store, draws)
            coming = pool.submit(load, number + 1) if number + 1 in rounds else None
            before = Changing(shared, server, now.personal, now.draws)
            cohort = Cohort(now.index, now.index < plan.clients, now.known, now.examples)
            after = _round(program, fixed, before, cohort, jnp.int32(number))
            shared, server = after.shared, after.server
            last = now.index[: now.filled]
            draws[last] = np.asarray(after.draws)[: now.filled]
            store.write(last, jax.tree.map(lambda leaf, n=now.filled: np.asarray(leaf)[:n], after.personal))
    lifted: Tree = jax.tree.map(lambda leaf: leaf[None, None], (shared, server))
    return replace(state, shared=lifted[0], server=lifted[1], draws=draws)


def _read_again(loaded: Loaded, written: np.ndarray, store: Store, draws: np.ndarray) -> Loaded:
    """What was loaded, with the states of those who were written meanwhile."""
    again = np.flatnonzero(np.isin(loaded.index, written))
    if not len(again):
        return loaded
    clients = loaded.index[again]
    fresh, known = store.read(clients)
    for old, new in zip(jax.tree.leaves(loaded.personal), jax.tree.leaves(fresh), strict=True):
        old[again] = new
    loaded.known[again], loaded.draws[again] = known, draws[clients]
    return loaded


def _room_for(data: Data, places: int, length: int) -> Tree:
    """Arrays for a cohort's examples, where they come from arrays that need no cutting."""
    if not isinstance(data, ClientData) or data.y.shape[1] != length:
        return None
    return jax.tree.map(lambda leaf: _aligned((places, *leaf.shape[1:]), leaf.dtype), (data.x, data.y))


def _aligned(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array that a program on a CPU can use as it is; others are copied first."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _examples(data: Data, slots: np.ndarray, length: int, room: Tree) -> tuple[Tree, Tree]:
    """The features and targets of some clients, on the device."""
    if room is None:
        rows = data.rows(slots, length)
        return jax.device_put((rows.x, rows.y))
    for leaf, out in zip(jax.tree.leaves((data.x, data.y)), jax.tree.leaves(room), strict=True):
        np.take(leaf, slots, axis=0, out=out, mode="clip")
    return jax.device_put(room, may_alias=True)


def places_for(level: Level, sampling: Sampling | Turns, clients: int) -> int:
    """Places of a cohort: what the account allows, or without one more than coins ever fill (8 deviations).

    An account without a capacity has no room for a cohort that overflows, so there everybody has a place.
    """
    if sampling.capacity is not None:
        return min(sampling.capacity, clients)
    if level.server_pays and isinstance(sampling, Sampling):
        return clients
    expected = float(np.asarray(sampling.rate)) * clients
    return min(clients, math.ceil(expected + 8 * math.sqrt(expected) + 8))


@partial(jax.jit, static_argnums=0)
def _present(plan: Plan, sampling: Sampling | Turns, coins: Array, number: Array) -> Array:
    return draw_cohort(sampling, coins, number, plan.clients).present


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _round(program: Program, fixed: Fixed, before: Changing, cohort: Cohort, number: Array) -> Changing:
    """The cohort's parts of a round, then the aggregator's. What was before is given up: its memory is used again."""
    plan, algorithm, clients, length = program.plan, fixed.algorithm, fixed.clients, program.length
    terms, shared = fixed.terms.at(number), before.shared
    slots = jnp.minimum(cohort.index, plan.clients - 1)
    take: Callable[[Tree], Tree] = lambda tree: jax.tree.map(lambda leaf: leaf.at[slots].get(), tree)  # noqa: E731
    personal = states_of(algorithm, fixed.begun, slots, cohort.known, before.personal)
    examples = cohort.examples if program.traced is None else program.traced(slots)
    x, y = jax.tree.map(lambda leaf: leaf[:, :length], examples)
    sizes = take(clients.sizes)
    rows = Rows(x, y, jnp.arange(length, dtype=jnp.float32)[None, :] < sizes[:, None])
    meters = jax.vmap(lambda slot: new_meter(jax.random.fold_in(fixed.keys, slot), plan.level.data_kinds))(slots)

    def of_client(client: Client) -> tuple[Tree, Personal, Array]:
        message, personal, meter = client_round(plan.spec(), algorithm, shared, client, number)
        return message, personal, meter.draws

    meters = replace(meters, draws=before.draws)
    everybody = Client(personal, rows, meters, take(terms.own), sizes, take(clients.steps))
    messages, personal, draws = over_clients(plan.model, of_client, cohort.present, everybody, devices=plan.devices)
    expected = terms.inbox.sampling.rate * clients.weights
    mail = Mail(messages, take(clients.weights), cohort.index, cohort.present, before.server, terms.inbox, expected)
    shared, server = server_round(plan.spec(), algorithm, shared, mail, number)
    return Changing(shared, server, personal, draws)


def states_of(algorithm: Algorithm, begun: Shared, slots: Array, known: Array, stored: Personal) -> Personal:
    """Clients' states: those in the store, and the first ones of clients that were never there."""
    first = jax.vmap(lambda slot: algorithm.init_client(begun, slot))(slots)
    return trees.choose_rows(known, stored, first)


def count_uses(
    plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, rounds: range
) -> dict[str, np.ndarray]:
    """How often the aggregator makes each kind of release in these rounds, as the resident engine counts them.

    The program of a cohort of one client says it: a release is of all messages together. Shape (rounds, 1).
    """
    (rows,) = clients.blocks
    key = jax.random.key(0)
    shared = algorithm.init(plan.model.init(key), plan.clients)
    personal = jax.tree.map(lambda leaf: leaf[None], algorithm.init_client(shared, jnp.int32(0)))
    server = replace(new_meter(key, plan.level.inbox_kinds), tape=Tape({}, "count"))
    examples = trees.row((rows.x, rows.y), slice(0, 1))
    alone = Cohort(jnp.zeros(1, jnp.int32), jnp.ones(1, bool), jnp.ones(1, bool), examples)

    @jax.jit
    def counters(terms: Terms, public: Clients, number: Array) -> Tree:
        fixed = Fixed(algorithm, terms, public, shared, key)
        before = Changing(shared, server, personal, jnp.zeros(1, jnp.int32))
        return _round(Program(plan, rows.y.shape[1], None), fixed, before, alone, number).server.uses

    public = replace(clients, blocks=())
    return by_round(lambda number: counters(terms, public, number), rounds, plan.level.inbox_kinds)
