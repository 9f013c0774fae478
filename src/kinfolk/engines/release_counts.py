"""How often each party makes each kind of release: read off the engine's own program, before there is any noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from kinfolk.engines.programs import program
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
    return by_round(lambda number: _counters(plan, algorithm, terms, empty, number), rounds, plan.level.kinds)


def by_round(
    counters: Callable[[Array], Mapping[str, ArrayLike]], rounds: range, kinds: Sequence[str]
) -> dict[str, np.ndarray]:
    """What a counting program says of each of these rounds: (rounds, parties) for every kind.

    `counters`: the meters after one round, by its number, in which releases are only counted. Every runtime counts so.
    """
    found = [counters(jnp.int32(number)) for number in rounds] if kinds else []
    return {kind: np.stack([np.atleast_1d(np.asarray(uses[kind])) for uses in found]) for kind in kinds}


@program()
def _counters(plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, number: Array) -> dict[str, Array]:
    """The meters after one round in which everybody takes part and releases are only counted."""
    everyone: Tree = replace(terms.inbox, sampling=Sampling())
    state = start(plan, algorithm, jax.random.key(0))
    counting = Tape({}, "count")
    state = replace(state, meters=replace(state.meters, tape=counting), server=replace(state.server, tape=counting))
    state = one_round(plan, algorithm, replace(terms, inbox=everyone), clients, state, number)
    return {**state.meters.uses, **state.server.uses}


def _without_rows(rows: Rows) -> Rows:
    """A block of one masked row per client: what counting needs of a client's data."""
    return jax.tree.map(lambda leaf: np.zeros((leaf.shape[0], 1, *leaf.shape[2:]), leaf.dtype), rows)
