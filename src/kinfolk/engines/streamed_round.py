"""One round of the streaming engine, as two programs: some clients' parts, and the aggregator's. A third is for what
clients do alone after the last round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.batching import over_clients
from kinfolk.engines.resident import Clients, Plan, counters_of, with_counters
from kinfolk.engines.results import personalised
from kinfolk.privacy.levels import Terms
from kinfolk.privacy.release import Meter, new_meter
from kinfolk.rounds import Client, Mail, client_round, server_round
from kinfolk.types import Afterwards, Algorithm, Message, Params, Personal, Rows, Shared, Tree


@dataclass(frozen=True)
class Program:
    """What is compiled into the clients' program."""

    plan: Plan
    length: int
    """Rows of the longest of these clients."""
    most_steps: int
    """Most local steps of any of them."""
    traced: Callable[..., tuple[Tree, Tree]] | None
    """Makes examples inside of the program, where it can."""


@trees.register
@dataclass(frozen=True)
class Fixed:
    """What the programs are given in every round alike."""

    algorithm: Algorithm
    terms: Terms
    clients: Clients
    begun: Shared
    """The shared state from which clients start when they first take part."""
    keys: Array
    """From it every client's own keys are made, by the client's number."""


@trees.register
@dataclass(frozen=True)
class Cohort:
    """Who sits in which place."""

    index: Tree
    """Which client; the number of clients in an empty place."""
    present: Tree
    known: Tree
    """Whether the store has a client's state."""
    examples: Tree
    """Features and targets; None: the program makes them."""


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def clients_part(
    program: Program, fixed: Fixed, shared: Shared, kept: tuple[Personal, Tree], cohort: Cohort, number: Array
) -> tuple[Message, Personal, Tree]:
    """Messages, states and counters of the clients in some places. The memory of what was `kept` is used again."""
    plan = program.plan

    def of_client(same: Tree, client: Client) -> tuple[Message, Personal, Tree]:
        algorithm, shared, number = same
        message, personal, meter = client_round(plan.spec(program.most_steps), algorithm, shared, client, number)
        return message, personal, counters_of(meter)

    everybody, same = _clients_at(program, fixed, kept, cohort, number), (fixed.algorithm, shared, number)
    return over_clients(plan.model, of_client, same, cohort.present, everybody, devices=plan.devices)


@partial(jax.jit, static_argnums=0)
def afterwards_part(
    program: Program,
    afterwards: Afterwards,
    fixed: Fixed,
    shared: Shared,
    kept: tuple[Personal, Tree],
    cohort: Cohort,
) -> Params:
    """What the clients in some places make of their models alone, after the last round."""
    plan = program.plan
    everybody = _clients_at(program, fixed, kept, cohort, jnp.int32(0))

    def work(same: tuple[Afterwards, Algorithm, Shared], client: Client) -> Params:
        return personalised(plan, *same, client)

    same = (afterwards, fixed.algorithm, shared)
    return over_clients(plan.model, work, same, cohort.present, everybody, devices=plan.devices)


def _clients_at(program: Program, fixed: Fixed, kept: tuple[Personal, Tree], cohort: Cohort, number: Array) -> Client:
    """The clients in some places, one row each, with their examples, states and meters."""
    plan, clients, length = program.plan, fixed.clients, program.length
    slots = jnp.minimum(cohort.index, plan.clients - 1)
    take: Callable[[Tree], Tree] = lambda tree: jax.tree.map(lambda leaf: leaf.at[slots].get(), tree)  # noqa: E731
    stored, counts = kept
    personal = states_of(fixed.algorithm, fixed.begun, slots, cohort.known, stored)
    examples = cohort.examples if program.traced is None else program.traced(slots)
    x, y = jax.tree.map(lambda leaf: leaf[:, :length], examples)
    sizes = take(clients.sizes)
    rows = Rows(x, y, jnp.arange(length, dtype=jnp.float32)[None, :] < sizes[:, None])
    meters = jax.vmap(lambda slot: new_meter(jax.random.fold_in(fixed.keys, slot), plan.level.data_kinds))(slots)
    own = take(fixed.terms.at(number).own)
    return Client(personal, rows, with_counters(meters, counts), own, sizes, take(clients.steps))


@partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def server_part(
    plan: Plan, fixed: Fixed, shared: Shared, server: Meter, arrived: tuple[Message, Tree, Tree], number: Array
) -> tuple[Shared, Meter]:
    """The aggregator's part. `arrived`: messages, which client each is from, and who took part."""
    terms, weights = fixed.terms.at(number), fixed.clients.weights
    messages, index, present = arrived
    own = weights.at[jnp.minimum(index, plan.clients - 1)].get()
    mail = Mail(messages, own, index, present, server, terms.inbox, terms.inbox.sampling.rate * weights)
    return server_round(plan.spec(), fixed.algorithm, shared, mail, number)


def states_of(algorithm: Algorithm, begun: Shared, slots: Array, known: Array, stored: Personal) -> Personal:
    """Clients' states: those in the store, and the first ones of clients that were never there."""
    first = jax.vmap(lambda slot: algorithm.init_client(begun, slot))(slots)
    return trees.choose_rows(known, stored, first)
