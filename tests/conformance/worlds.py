"""A tiny federation for tests over the registry: a few clients of unequal size, a linear model, real terms."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models, trees
from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.relations import laplacian
from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.people import by_person
from kinfolk.engines.layout import lay_out
from kinfolk.engines.loop import Loop
from kinfolk.engines.release_counts import count_uses
from kinfolk.engines.resident import Clients, Plan, State
from kinfolk.privacy import exact_noise
from kinfolk.privacy.levels import Level, PrivacyLevel, Terms
from kinfolk.training.prepare import check_job
from kinfolk.types import Algorithm
from kinfolk.verify.replay import replay

PAIRS = [(name, level) for name, entry in REGISTRY.items() for level in entry.levels]
OTHER_PULL, GRAPH = "mean_regularized, the other pull", "relation_regularized, a graph"
VARIANTS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    OTHER_PULL: ("mean_regularized", lambda clients: {"pull": "step", "rule": "increment"}),
    GRAPH: ("relation_regularized", lambda clients: {"pull": "step", "omega": laplacian(chain(clients))}),
}
"""Options under which a method's states or messages are others: by a name of their own, the method and, for a number of
clients, the options."""
CLOSELY = [*PAIRS, *((name, level) for name, (method, _) in VARIANTS.items() for level in REGISTRY[method].levels)]
PRIVATE = [pair for pair in CLOSELY if pair[1] != "none"]
CORE = ("mean_regularized", "example")
"""The pair that is looked at closely before every commit; the others in the full run."""

ROUNDS = 3
BATCH = 4
SIZES = (5, 6, 9, 14, 20)


def chain(clients: int) -> np.ndarray:
    """Everybody is joined to the next, as its opposite, and with another weight than the one before."""
    weights = np.diag(-np.arange(1.0, clients), 1)
    return (weights + weights.T).astype(np.float32)


def variant(name: str, clients: int) -> tuple[str, dict[str, Any]]:
    """The method and the options that a name stands for."""
    if name not in VARIANTS:
        return name, {}
    method, options = VARIANTS[name]
    return method, options(clients)


def quick_level(name: str) -> str:
    """The level at which an algorithm is run before every commit: the one with the smallest private program."""
    return next(level for level in ("client", "example", "none") if level in REGISTRY[name].levels)


HEAVY = ("few_releases", "few_releases_binary")
"""Methods whose round takes long to compile; they are left to the full run."""
QUICK = [
    CORE,
    *((name, quick_level(name)) for name in REGISTRY if name not in HEAVY),
    (OTHER_PULL, "client"),
    (GRAPH, "client"),
]
"""One pair of each algorithm, and the core: tests that share one compiled round look at these in the fast run."""


def pairs(which: Collection[tuple[str, str]], fast: Collection[tuple[str, str]]) -> Any:
    """Parametrises a test with all these pairs; those that are not in `fast` are left to the full run."""
    marked = [pytest.param(*pair, marks=() if pair in fast else pytest.mark.slow) for pair in which]
    return pytest.mark.parametrize(("name", "level"), marked)


@dataclass(frozen=True)
class World:
    """What an engine test needs."""

    plan: Plan
    algorithm: Algorithm
    terms: Terms
    clients: Clients

    def run(self, state: State | None = None, begin: int = 0, end: int = ROUNDS, seed: int = 0) -> State:
        """Some rounds, compiled, as a researcher's own loop has them."""
        own = Loop(self.plan, self.algorithm, self.terms, self.clients)
        return own.rounds(own.init(jax.random.key(seed)) if state is None else state, begin, end)

    def exact_noise(self, kind: str, shape: tuple[int, ...]) -> jax.Array:
        """What a release would draw for this kind: (..., uses, integers)."""
        client, choice = self.terms.own
        mechanism: Any = self.terms.inbox if self.plan.level.server_pays else choice if kind == "choice" else client
        noise = np.asarray(mechanism.noise_multiplier, float)
        return jnp.asarray(exact_noise.integers(mechanism, noise.reshape(*noise.shape, 1, 1), shape))


def tiny_federation(seed: int = 3) -> Federation:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(sum(SIZES), 3)).astype(np.float32)
    y = generator.normal(size=sum(SIZES)).astype(np.float32)
    return from_rows(x, y, np.repeat([f"c{k}" for k in range(len(SIZES))], SIZES), test_fraction=0.2)


def tiny_level(level: str, cohort: float | None = None) -> PrivacyLevel:
    noise = None if level == "none" else 1.5
    return PrivacyLevel(Level(level), noise_multiplier=noise, delta=1e-3 if noise else None, cohort=cohort)


def tiny_people(seed: int = 3) -> Federation:
    """The same with people, who have one to five rows each, of which three count."""
    generator = np.random.default_rng(seed)
    rows = generator.integers(1, 6, sum(SIZES))
    people, clients = (np.repeat(names, rows) for names in (np.arange(sum(SIZES)), np.repeat(range(len(SIZES)), SIZES)))
    x, y = (generator.normal(size=(len(people), *shape)).astype(np.float32) for shape in ((3,), ()))
    return by_person(from_rows(x, y, clients, person_ids=people, rows_per_person=3, test_fraction=0.2))


@lru_cache
def world(name: str, level: str, *, blocks: int = 2, cohort: float | None = None, people: bool = False) -> World:
    federation = tiny_people() if people else tiny_federation()
    clients, _, widths, most = lay_out([federation], batch_size=BATCH, epochs=1, most_blocks=blocks)
    sizes = federation.train.sizes
    most_uses = {"gradient": ROUNDS * max(most), "choice": ROUNDS, "update": ROUNDS, "mixture": 0}
    most_uses |= {"second_moment": 0, "squares": 0, "statistic": ROUNDS}
    uses = {kind: np.full(len(sizes), count) for kind, count in most_uses.items()}
    terms = terms_for(tiny_level(level, cohort), Population(federation.ids, sizes, BATCH), uses)
    terms = jax.tree.map(jnp.asarray, terms)
    method, options = variant(name, len(sizes))
    algorithm = jax.tree.map(jnp.float32, REGISTRY[method].build(**options))
    model = models.generalized_linear(3, REGISTRY[method].outcome)
    return World(Plan(model, Level(level), widths, most), algorithm, terms, trees.row(clients, 0))


def with_changed_row(clients: Clients, block: int, client: int, row: int) -> Clients:
    """The same clients with one example replaced."""
    rows = clients.blocks[block]
    other = replace(rows, x=rows.x.at[client, row].set(7.0), y=rows.y.at[client, row].set(-5.0))
    return replace(clients, blocks=(*clients.blocks[:block], other, *clients.blocks[block + 1 :]))


def with_changed_person(clients: Clients, block: int, client: int, person: int) -> Clients:
    """The same clients with one person replaced: other values, and another number of rows."""
    rows = clients.blocks[block]
    shares = rows.x.shares.at[client, person].set(jnp.array([1.0, 0.0, 0.0]))
    x = replace(rows.x, rows=rows.x.rows.at[client, person].set(7.0), shares=shares)
    other = replace(rows, x=x, y=rows.y.at[client, person].set(-5.0))
    return replace(clients, blocks=(*clients.blocks[:block], other, *clients.blocks[block + 1 :]))


def replay_problems(w: World, changed: Clients, exact: bool = False) -> list[str]:
    """What the replay check finds where the first client of the second block has other rows."""
    counted = count_uses(w.plan, w.algorithm, w.terms, w.clients, range(ROUNDS))
    check = check_job(w.plan, w.algorithm, w.terms, jax.tree.map(lambda leaf: leaf[None], w.clients))
    return replay(
        w.plan,
        w.algorithm,
        w.terms,
        w.clients,
        changed,
        target=w.plan.widths[0],
        rounds=ROUNDS,
        sizes=check.sizes,
        uses={kind: int(part.sum(axis=0).max()) for kind, part in counted.items()},
        key=jax.random.key(5),
        exact=w.exact_noise if exact else None,
    )


def with_changed_client(clients: Clients, block: int, client: int) -> Clients:
    """The same clients with all rows of one replaced."""
    rows = clients.blocks[block]
    other = replace(rows, x=rows.x.at[client].set(3.0), y=rows.y.at[client].multiply(-2.0))
    return replace(clients, blocks=(*clients.blocks[:block], other, *clients.blocks[block + 1 :]))
