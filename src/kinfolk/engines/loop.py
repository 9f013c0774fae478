"""The rounds of one run as pure functions of its state: one seed, one setting, no leading axes.

What `resident.py` does for many seeds and settings at once, for those who write the loop themselves: states go in and
come out, and an old one can be used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import batching
from kinfolk.engines import resident
from kinfolk.engines.resident import Clients, Plan, State
from kinfolk.privacy.levels import Terms
from kinfolk.types import Algorithm, Params, Rows


@dataclass(frozen=True)
class Loop:
    """An algorithm on some clients under some terms."""

    plan: Plan
    algorithm: Algorithm
    terms: Terms
    clients: Clients

    def init(self, key: Array) -> State:
        """The state before the first round; `key`: draws weights, batches, cohorts and noise."""
        return resident.start(self.plan, self.algorithm, key)

    def rounds(self, state: State, begin: int | Array, end: int | Array) -> State:
        """The state after rounds `begin` to `end` - 1, in one compiled program for any number of them."""
        return _rounds(self.plan, self.algorithm, self.terms, self.clients, state, jnp.int32(begin), jnp.int32(end))

    def models(self, state: State) -> Params:
        """The models that clients predict with, one row per client."""
        return resident.final_models(self.algorithm, state)

    def errors(self, tests: tuple[Rows, ...], state: State) -> dict[str, Array]:
        """Every client's mean loss and mean error on its rows of `tests`, which are in blocks like the clients'."""
        algorithm, states = (jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], x) for x in (self.algorithm, state))
        states, blocks = (jax.tree.map(lambda leaf: leaf[None], x) for x in (states, tests))
        return resident.one_run(resident.errors(self.plan, algorithm, blocks, states))


@partial(jax.jit, static_argnums=0)
def _rounds(
    plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, state: State, begin: Array, end: Array
) -> State:
    def step(number: Array, state: State) -> State:
        return resident.one_round(plan, algorithm, terms, clients, state, number)

    return batching.loop(plan.model, step, begin, end, state)
