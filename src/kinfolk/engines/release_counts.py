"""How often each party makes each kind of release: read off the engine's own program, before there is any noise."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.engines.resident import Clients, Plan, one_round, start
from kinfolk.privacy.levels import Terms
from kinfolk.privacy.mechanisms import Sampling
from kinfolk.privacy.release import Tape
from kinfolk.types import Algorithm, Rows, Tree


def count_uses(
    plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, rounds: range
) -> dict[str, np.ndarray]:
    """How often each party makes each kind of release in these rounds: read off the program, without any data.

    Shape (rounds, clients) for the data gates' kinds, (rounds, 1) for the inbox's. That the counters do not depend on
    data is part of the flow check.
    """
    empty = replace(clients, blocks=tuple(_without_rows(rows) for rows in clients.blocks))
    found = [_counters(plan, algorithm, terms, empty, jnp.int32(number)) for number in rounds]
    data = {kind: np.stack([np.asarray(c[0][kind]) for c in found]) for kind in plan.level.data_kinds}
    inbox = {kind: np.stack([np.asarray(c[1][kind])[None] for c in found]) for kind in plan.level.inbox_kinds}
    return {**data, **inbox}


@partial(jax.jit, static_argnums=0)
def _counters(plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, number: Array) -> tuple[Tree, Tree]:
    """The meters after one round in which everybody takes part and releases are only counted."""
    everyone: Tree = replace(terms.inbox, sampling=Sampling())
    state = start(plan, algorithm, jax.random.key(0))
    counting = Tape({}, "count")
    state = replace(state, meters=replace(state.meters, tape=counting), server=replace(state.server, tape=counting))
    state = one_round(plan, algorithm, replace(terms, inbox=everyone), clients, state, number)
    return state.meters.uses, state.server.uses


def _without_rows(rows: Rows) -> Rows:
    """A block of one masked row per client: what counting needs of a client's data."""
    return Rows(
        jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], 1, *leaf.shape[2:]), leaf.dtype), rows.x),
        jnp.zeros((rows.y.shape[0], 1), rows.y.dtype),
        jnp.zeros((rows.mask.shape[0], 1), bool),
    )
