"""The streaming engine: only some clients are in the program at a time, all others are in a store outside it.

Where the aggregator pays, or nobody, that is a round's cohort. Where clients pay, all of them take part in every round,
some at a time (a *turn*), and what they send, which is clean there, is collected for the aggregator.

Who takes part, every client's coins and the noise are those of the resident engine, and so are the results. While some
clients are computed, a thread loads the rows and states of the next; whoever is in both is read again in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import DTypeLike

from kinfolk.data.client_data import ClientData, Data
from kinfolk.engines.client_store import Store
from kinfolk.engines.cohorts import draw_cohort
from kinfolk.engines.resident import Clients, Plan, counters_of, one_run, with_counters
from kinfolk.engines.streamed_round import Cohort, Fixed, Program, afterwards_part, clients_part, server_part
from kinfolk.privacy.correlated_noise import Turns
from kinfolk.privacy.levels import Level, Terms
from kinfolk.privacy.mechanisms import Sampling
from kinfolk.privacy.release import Meter, new_meter
from kinfolk.types import Afterwards, Algorithm, Message, Params, Personal, Shared, Tree

TURN_BYTES = 2**26
"""Rows and states of the clients that are computed together, where all of them take part."""
ALONE = 1024
"""Most clients that are computed together after training: their work may take more room than rows and states."""


@dataclass(frozen=True)
class Streamed:
    """Everything that changes during a run. Leaves of what is not per client have leading axes (1, 1), as elsewhere."""

    shared: Shared
    begun: Shared
    """The shared state from which clients start when they first take part."""
    meters: Meter
    """The clients' counters, (1, 1, clients). From its two keys every client's own are made, by the client's number."""
    server: Meter
    store: Store
    models: Store | None = None
    """What clients made of their models after training; None: they are what the algorithm says."""


@dataclass(frozen=True)
class Block:
    """Clients whose turns have one program."""

    first: int
    end: int
    places: int
    """How many have a turn together."""
    program: Program


@dataclass(frozen=True)
class Loaded:
    """Some clients, made ready for the program."""

    number: int
    """Of the round."""
    block: Block
    index: np.ndarray
    """Which client sits in each place, in ascending order; an empty place has the number of clients."""
    filled: int
    last: bool
    """Whether the round's last clients are among them."""
    personal: Personal
    known: np.ndarray
    examples: tuple[Tree, Tree] | None
    """Features and targets; None: the program makes them."""

    @property
    def clients(self) -> np.ndarray:
        return self.index[: self.filled]


def start(plan: Plan, algorithm: Algorithm, key: Array, store: Callable[[Tree], Store]) -> Streamed:
    """The state before the first round, with the resident engine's streams. `store` makes one for states like these."""
    init_key, client_key, server_key = (jax.random.fold_in(key, stream) for stream in range(3))
    one = new_meter(client_key, plan.level.data_kinds)
    nothing: Tree = jax.tree.map(lambda leaf: np.zeros((1, 1, plan.clients), leaf.dtype), (one.uses, one.draws))
    server = new_meter(server_key, plan.level.inbox_kinds)
    shared = algorithm.init(plan.model.init(init_key), plan.clients)
    keys = replace(one, noise=client_key, coins=client_key)
    lifted: Tree = jax.tree.map(lambda leaf: leaf[None, None], (shared, keys, server))
    shared, keys, server = lifted
    meters = with_counters(keys, (*nothing, None))
    return Streamed(shared, shared, meters, server, store(shapes_of(algorithm, shared)))


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
    """Some rounds, turn by turn. The store of `state` is changed in place."""
    store, counters = state.store, jax.tree.map(lambda leaf: np.array(leaf)[0, 0], counters_of(state.meters))
    (shared, server), fixed = one_run((state.shared, state.server)), _fixed(algorithm, terms, clients, state)
    turns = _turns(plan, terms, blocks_of(plan, terms, clients, data, store), one_run(state.server.coins), rounds)
    coming, mail, written = _loaded(plan, turns, data, store), None, np.zeros(0, np.int32)
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(next, coming, None)
        while (now := turn.result()) is not None:
            now, number = _read_again(now, written, store), jnp.int32(now.number)
            turn, written = pool.submit(next, coming, None), now.clients
            cohort = Cohort(now.index, now.index < plan.clients, now.known, now.examples)
            kept = (now.personal, _rows(counters, np.minimum(now.index, plan.clients - 1)))
            messages, personal, counted = clients_part(now.block.program, fixed, shared, kept, cohort, number)
            store.write(written, _rows(personal, slice(now.filled)))
            _put(counters, written, _rows(counted, slice(now.filled)))
            if plan.level.clients_pay:
                mail = _collected(plan, mail, written, messages)
            if now.last:
                arrived = mail or (messages, now.index, cohort.present)
                shared, server = server_part(plan, fixed, shared, server, arrived, number)
                mail = None
    lifted: Tree = jax.tree.map(lambda leaf: leaf[None, None], (shared, server, counters))
    shared, server, counters = lifted
    return replace(state, shared=shared, server=server, meters=with_counters(state.meters, counters))


def personalised(
    plan: Plan,
    afterwards: Afterwards,
    algorithm: Algorithm,
    terms: Terms,
    clients: Clients,
    data: Data,
    state: Streamed,
) -> Iterator[tuple[np.ndarray, Params]]:
    """Some clients at a time: who they are, and what they make of their models alone after the last round."""
    fixed, shared, store = _fixed(algorithm, terms, clients, state), one_run(state.shared), state.store
    counters = one_run(jax.device_get(counters_of(state.meters)))
    found = blocks_of(plan, terms, clients, data, store, everybody=True)
    blocks = [replace(block, places=min(block.places, ALONE)) for block in found]
    turns = ((0, block, part, False) for block, part in _parts(blocks, np.arange(plan.clients, dtype=np.int32)))
    for now in _loaded(plan, turns, data, store):
        cohort = Cohort(now.index, now.index < plan.clients, now.known, now.examples)
        kept = (now.personal, _rows(counters, np.minimum(now.index, plan.clients - 1)))
        models = afterwards_part(now.block.program, afterwards, fixed, shared, kept, cohort)
        yield now.clients, _rows(models, slice(now.filled))


def _fixed(algorithm: Algorithm, terms: Terms, clients: Clients, state: Streamed) -> Fixed:
    begun, keys = one_run((state.begun, state.meters.noise))
    return Fixed(algorithm, terms, replace(clients, blocks=()), begun, keys)


def blocks_of(
    plan: Plan, terms: Terms, clients: Clients, data: Data, store: Store, everybody: bool = False
) -> list[Block]:
    """The clients in runs of one program each, and how many of a run have a turn together.

    `everybody`: all of them have one, as they have in every round where clients pay.
    """
    ends = np.cumsum(plan.widths).tolist()
    found = []
    for rows, width, end, most_steps in zip(clients.blocks, plan.widths, ends, plan.most_steps, strict=True):
        places = places_for(plan.level, terms.inbox.sampling, width)
        if everybody or plan.level.clients_pay:
            places = max(1, min(width, TURN_BYTES // (_bytes((rows.x, rows.y)) + store.bytes_of_one)))
        found.append(Block(end - width, end, places, Program(plan, rows.y.shape[1], most_steps, data.traced)))
    return found


def _bytes(tree: Tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _turns(
    plan: Plan, terms: Terms, blocks: list[Block], coins: Array, rounds: range
) -> Iterator[tuple[int, Block, np.ndarray, bool]]:
    """Of every round: some clients who take part, and whether they are its last."""
    everybody = replace(terms.inbox.sampling, capacity=None)
    for number in rounds:
        present = np.flatnonzero(_present(plan, everybody, coins, jnp.int32(number))).astype(np.int32)
        if not plan.level.clients_pay:
            yield number, blocks[0], present[: blocks[0].places], True
            continue
        of_round = list(_parts(blocks, present))
        for place, (block, part) in enumerate(of_round):
            yield number, block, part, place == len(of_round) - 1


def _parts(blocks: list[Block], clients: np.ndarray) -> Iterator[tuple[Block, np.ndarray]]:
    """These clients, in parts that have a turn together."""
    for block in blocks:
        own = clients[(block.first <= clients) & (clients < block.end)]
        for part in np.split(own, range(block.places, len(own), block.places)):
            yield block, part


def _loaded(
    plan: Plan, turns: Iterator[tuple[int, Block, np.ndarray, bool]], data: Data, store: Store
) -> Iterator[Loaded]:
    """The clients of these turns; the arrays of every second one of a block are used again."""
    rooms: dict[tuple[int, int], tuple[Tree, Tree]] = {}
    for place, (number, block, present, last) in enumerate(turns):
        index = np.full(block.places, plan.clients, np.int32)
        index[: len(present)] = present
        slots, length = np.minimum(index, plan.clients - 1), block.program.length
        which = (block.first, place % 2)  # the other is in use
        if which not in rooms:
            rooms[which] = (store.room(block.places), _room_for(data, block.places, length))
        states, examples = rooms[which]
        found = None if data.traced else _examples(data, slots, length, examples)
        yield Loaded(number, block, index, len(present), last, *store.read(index, states), found)


def _read_again(loaded: Loaded, written: np.ndarray, store: Store) -> Loaded:
    """What was loaded, with the states of those who were written meanwhile."""
    again = np.flatnonzero(np.isin(loaded.index, written))
    if len(again):
        fresh, known = store.read(loaded.index[again])
        for old, new in zip(jax.tree.leaves(loaded.personal), jax.tree.leaves(fresh), strict=True):
            old[again] = new
        loaded.known[again] = known
    return loaded


def _collected(
    plan: Plan, mail: tuple[Message, np.ndarray, np.ndarray] | None, clients: np.ndarray, messages: Message
) -> tuple[Message, np.ndarray, np.ndarray]:
    """Everybody's messages so far (zeros of those who sent none), everybody's number, and who sent one."""
    if mail is None:
        nothing = jax.tree.map(lambda leaf: np.zeros((plan.clients, *leaf.shape[1:]), leaf.dtype), messages)
        mail = nothing, np.arange(plan.clients, dtype=np.int32), np.zeros(plan.clients, bool)
    everything, _, present = mail
    _put(everything, clients, _rows(messages, slice(len(clients))))
    present[clients] = True
    return mail


def _rows(tree: Tree, which: np.ndarray | slice) -> Tree:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[which], tree)


def _put(tree: Tree, clients: np.ndarray, rows: Tree) -> None:
    for leaf, new in zip(jax.tree.leaves(tree), jax.tree.leaves(rows), strict=True):
        leaf[clients] = new


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
