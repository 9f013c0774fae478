"""The rounds of a run, or of a whole sweep, for those who write the loop themselves: states go in and come out.

A `Loop` is one seed and one setting, pure functions without leading axes. A `Sweep` is all seeds and settings of a
figure in one compiled program, with an axis of points and one of seeds in front of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import batching
from kinfolk.engines import resident, results
from kinfolk.engines.resident import Clients, Plan, State
from kinfolk.privacy.levels import Terms
from kinfolk.types import Afterwards, Algorithm, Params, Rows, Tree


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
        return results.final_models(self.algorithm, state)

    def errors(self, tests: tuple[Rows, ...], state: State) -> dict[str, Array]:
        """Every client's mean loss and mean error on its rows of `tests`, which are in blocks like the clients'."""
        algorithm, states = (jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], x) for x in (self.algorithm, state))
        states, blocks = (jax.tree.map(lambda leaf: leaf[None], x) for x in (states, tests))
        return resident.one_run(results.errors(self.plan, algorithm, blocks, states))


@partial(jax.jit, static_argnums=0)
def _rounds(
    plan: Plan, algorithm: Algorithm, terms: Terms, clients: Clients, state: State, begin: Array, end: Array
) -> State:
    def step(number: Array, state: State) -> State:
        return resident.one_round(plan, algorithm, terms, clients, state, number)

    return batching.loop(plan.model, step, begin, end, state)


@dataclass(frozen=True)
class Sweep:
    """An algorithm with several settings, on the clients of several seeds, as one program.

    Leaves of `algorithms` and `terms` have a leading axis of points, those of `clients` and `tests` one of seeds.
    """

    plan: Plan
    """What is fixed when the program is compiled."""
    algorithms: Algorithm
    """The points: an algorithm's numbers."""
    terms: Terms
    """What stands at the gates of every point."""
    clients: Clients
    """Rows and public numbers of every seed's clients."""
    tests: tuple[Rows, ...]
    """Test rows, in blocks like the clients'."""

    def init(self, seeds: Sequence[int]) -> State:
        """The states before the first round; `seeds`: numbers that decide weights, batches, cohorts and noise."""
        numbers = jnp.asarray(seeds, jnp.uint32)
        keys = jax.vmap(lambda number: jax.random.key(number, impl="threefry2x32"))(numbers)
        return resident.start_all(self.plan, self.algorithms, keys)

    def compile(self, seeds: Sequence[int]) -> None:
        """Compiles the program of the rounds, for states as of these `seeds`, and runs none of it.

        Programs may be compiled side by side, by threads; a next call of `rounds` finds them.
        """
        bounds = jnp.int32(0), jnp.int32(0)
        resident.run_rounds.compile(self.plan, self.algorithms, self.terms, self.clients, self.init(seeds), *bounds)

    def rounds(self, states: State, begin: int, end: int) -> State:
        """The states after rounds `begin` to `end` - 1; `states` are used up. No rounds at all only compile."""
        bounds = jnp.int32(begin), jnp.int32(end)
        return resident.run_rounds(self.plan, self.algorithms, self.terms, self.clients, states, *bounds)

    def errors(self, states: State) -> dict[str, Array]:
        """Mean test loss and error of every point, seed and client of `states`."""
        return results.errors(self.plan, self.algorithms, self.tests, states)

    def pooled(self, errors: Array) -> Array:
        """The `errors` of clients as one for all of a seed's test rows together, for every point and seed."""
        rows = jnp.concatenate([block.mask.sum(axis=-1) for block in self.tests], axis=1).astype(jnp.float32)
        return (errors * rows[None]).sum(axis=-1) / rows.sum(axis=-1)[None]

    def models(self, states: State) -> Params:
        """The models that clients of `states` predict with, one row per point, seed and client."""
        return results.all_models(self.algorithms, states)

    def personalised(self, states: State, afterwards: Afterwards) -> State:
        """The `states` after clients worked on their models alone, as `afterwards` says; free at client level only."""
        return results.personalise(self.plan, afterwards, self.algorithms, self.terms, self.clients, states)


def points(values: Sequence[Tree]) -> Tree:
    """Trees of numbers as one with a leading axis of points.

    >>> points([{"strength": 1}, {"strength": 3.0}])["strength"]
    Array([1., 3.], dtype=float32)
    """
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, jnp.float32) for leaf in leaves]), *values)
