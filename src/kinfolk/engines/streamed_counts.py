"""How often each party makes each kind of release, read off the streaming engine's own programs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import trees
from kinfolk.engines.release_counts import by_round
from kinfolk.engines.resident import Clients, Plan
from kinfolk.engines.streamed_round import Cohort, Fixed, Program, clients_part, server_part
from kinfolk.privacy.levels import Terms
from kinfolk.privacy.release import Tape, new_meter
from kinfolk.types import Algorithm, Rows, Tree

COUNTED_TOGETHER = 4096
"""Clients whose releases are counted side by side."""


def count_uses(
    plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, rounds: range
) -> dict[str, np.ndarray]:
    """How often each party makes each kind of release in these rounds, as the resident engine counts them.

    Shape (rounds, clients) for the data gates' kinds, (rounds, 1) for the inbox's: a release there is of all messages
    together, and the program of a single client's shows it.
    """
    if plan.level.clients_pay:
        return by_round(partial(_own_uses, plan, algorithm, terms, clients), rounds, plan.level.data_kinds)
    return by_round(partial(_inbox_uses, plan, algorithm, terms, clients), rounds, plan.level.inbox_kinds)


def _own_uses(plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, number: Array) -> dict[str, np.ndarray]:
    """The clients' counters after one round that everybody takes part in."""
    public, parts, first = replace(clients, blocks=()), [], 0
    for rows, width, most_steps in zip(clients.blocks, plan.widths, plan.most_steps, strict=True):
        program, count = Program(plan, 1, most_steps, None), min(width, COUNTED_TOGETHER)
        for begin in range(first, first + width, count):
            slots = np.arange(begin, begin + count, dtype=np.int32)
            here = np.minimum(slots, first + width - 1)
            found = _counted(program, algorithm, terms, public, _first_row(rows), here, number)
            parts.append(
                jax.tree.map(lambda leaf, slots=slots, end=first + width: np.asarray(leaf)[slots < end], found)
            )
        first += width
    return trees.concatenate(parts)


def _first_row(rows: Rows) -> Rows:
    """One row of one client: what counting needs of the data's shape."""
    return trees.row(jax.tree.map(lambda leaf: leaf[:, :1], rows), 0)


@partial(jax.jit, static_argnums=0)
def _counted(
    program: Program, algorithm: Algorithm, terms: Terms, clients: Clients, row: Rows, slots: Array, number: Array
) -> dict[str, Array]:
    """The counters of some clients after one round in which releases are counted and not made."""
    plan, key, count = program.plan, jax.random.key(0), slots.shape[0]
    shared = algorithm.init(plan.model.init(key), plan.clients)
    meter = replace(new_meter(key, plan.level.data_kinds), tape=Tape({}, "count"))
    blank: Tree = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), (row.x, row.y))
    personal, counters = jax.tree.map(
        lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype),
        jax.eval_shape(lambda: (algorithm.init_client(shared, jnp.int32(0)), (meter.uses, meter.draws, meter.tape))),
    )
    cohort = Cohort(slots, jnp.ones(count, bool), jnp.zeros(count, bool), blank)
    fixed = Fixed(algorithm, terms, clients, shared, key)
    return clients_part(program, fixed, shared, (personal, counters), cohort, number)[2][0]


@partial(jax.jit, static_argnums=0)
def _inbox_uses(plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, number: Array) -> dict[str, Array]:
    """The aggregator's counters after one round with a cohort of one client."""
    (rows,), key = clients.blocks, jax.random.key(0)
    program, public = Program(plan, rows.y.shape[1], plan.most_steps[0], None), replace(clients, blocks=())
    shared = algorithm.init(plan.model.init(key), plan.clients)
    personal = jax.tree.map(lambda leaf: leaf[None], algorithm.init_client(shared, jnp.int32(0)))
    server = replace(new_meter(key, plan.level.inbox_kinds), tape=Tape({}, "count"))
    alone = Cohort(
        jnp.zeros(1, jnp.int32), jnp.ones(1, bool), jnp.ones(1, bool), trees.row((rows.x, rows.y), slice(0, 1))
    )
    fixed = Fixed(algorithm, terms, public, shared, key)
    kept = (personal, ({}, jnp.zeros(1, jnp.int32), None))
    messages, *_ = clients_part(program, fixed, shared, kept, alone, number)
    return server_part(plan, fixed, shared, server, (messages, alone.index, alone.present), number)[1].uses
