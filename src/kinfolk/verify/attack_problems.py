"""What is attacked: tiny fixed problems for every algorithm of the registry at every private level, and mechanisms.

A training problem has four clients, five weights and three rounds, or as many as a method has. The canary is an
example, or a client, whose gradient is far beyond the clip and always points the same way; without it, its contribution
is zero. Everything else is the real thing: the engine's rounds, the calibrated noise, the accounted claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import models, trees
from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.accounting.composition import Charge
from kinfolk.accounting.noise_for_budget import Case, times
from kinfolk.algorithms.registry import outcome_of
from kinfolk.algorithms.schedules import noise_factors
from kinfolk.data.client_data import ClientData
from kinfolk.data.federation import Federation
from kinfolk.engines import resident
from kinfolk.engines.layout import lay_out
from kinfolk.engines.release_counts import count_uses
from kinfolk.engines.resident import Clients, Plan, State
from kinfolk.privacy import clipping
from kinfolk.privacy.choice import NoisyMin
from kinfolk.privacy.gates import CHOICE, DataGate, Inbox
from kinfolk.privacy.levels import Level, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import Cost, GaussianSum
from kinfolk.privacy.release import new_meter
from kinfolk.types import Algorithm, Tree, Value
from kinfolk.verify import covariance_attack, evaluation_attack, statistics_attack
from kinfolk.verify.attack import Problem, Rule
from kinfolk.verify.canary_people import canary_people
from kinfolk.verify.covariance_mechanisms import SECOND_MOMENT, SymmetricGaussian, WishartAsPublished

CLIENTS, FEATURES, ROWS, ROUNDS = 4, 4, 4, 3
TARGET = 1
"""The client that is the canary, or has it."""
DELTA = 0.01
"""Large, so that the claim is about outcomes that a hundred thousand runs can see."""
EPSILON = 2.0
VIEWS = {
    "example": ("published", "one_client", "all_others", "released_model"),
    "person": ("published", "one_client", "all_others", "released_model"),
    "client": ("published", "one_client", "all_others"),
}
"""Who looks: anybody; with one colluding client's own state; with all other clients' states and who of them took part;
or (example level) with all that the target ever sends and its own model. The last one is the strongest."""
CANARY = np.array([1.0, -1.0, 0.5, 0.5], np.float32)
FAR = 1e4
"""The canary's label: so far off that its gradient never changes sign or falls below the clip."""


@trees.register
@dataclass(frozen=True)
class ZeroOut:
    """An algorithm in which one client's messages are replaced by nothing unless it is `present`."""

    inner: Algorithm
    present: Value

    def init(self, params: Tree, clients: int) -> Tree:
        return self.inner.init(params, clients)

    def init_client(self, shared: Tree, slot: Array) -> Tree:
        return self.inner.init_client(shared, slot), jnp.where(slot == TARGET, self.present, 1.0)

    def client(self, shared: Tree, personal: Tree, gate: DataGate) -> tuple[Tree, Tree, DataGate]:
        own, factor = personal
        message, own, gate = self.inner.client(shared, own, gate)
        return trees.scale(factor, message), (own, factor), gate

    def server(self, shared: Tree, inbox: Inbox) -> tuple[Tree, Inbox]:
        return self.inner.server(shared, inbox)

    def model(self, shared: Tree, personal: Tree) -> Tree:
        return self.inner.model(shared, personal[0])


@dataclass(frozen=True)
class Game:
    """A training problem made concrete: everything the engine needs, and what the target is charged."""

    plan: Plan
    algorithm: Algorithm
    terms: Terms
    clients: Clients
    charges: tuple[Charge, ...]
    rounds: int = ROUNDS
    start: Callable[[Plan, Algorithm, Array], State] = resident.start
    step: Callable[[Plan, Algorithm, Terms, Clients, State, Array], State] = resident.one_round

    @property
    def claim(self) -> float:
        """What the ledger would say about the target."""
        return composition.epsilon(self.charges, DELTA)


def canary_federation(level: str) -> Federation:
    """Rows of zeros, and the canary: the target's first row (example level) or all of its rows (client level)."""
    x, y = np.zeros((CLIENTS, ROWS, FEATURES), np.float32), np.zeros((CLIENTS, ROWS), np.float32)
    rows = slice(0, 1) if level == "example" else slice(None)
    x[TARGET, rows], y[TARGET, rows] = CANARY, FAR
    data = ClientData(x, y, np.full(CLIENTS, ROWS))
    return Federation("canary", tuple("abcd"), data, data, "number")


def set_up(algorithm: Algorithm, privacy: PrivacyLevel, *, batch_size: int | None = None, people: bool = False) -> Game:
    """Counts releases on the program, calibrates noise to them and states the cost, as a run does."""
    level = privacy.level
    data = canary_people(canary_federation(level)) if people else canary_federation(level)
    clients, _, widths, most_steps = lay_out([data], batch_size=batch_size, epochs=1, most_blocks=1)
    clients = trees.row(clients, 0)
    model = models.generalized_linear(FEATURES, outcome_of(algorithm))
    plan = Plan(model, level, widths, most_steps)
    rounds = range(getattr(algorithm, "rounds", ROUNDS))
    planned = noise_factors([algorithm], [rounds])
    who = Population(data.ids, data.train.sizes, batch_size, weights_count=FEATURES + 1, noise_factors=planned)
    nothing = {kind: np.zeros(CLIENTS, int) for kind in (*level.data_kinds, *level.inbox_kinds)}
    draft = terms_for(replace(privacy, epsilon=None, noise_multiplier=1.0), who, nothing)
    counted = count_uses(plan, ZeroOut(algorithm, jnp.float32(1)), draft, clients, rounds)
    terms = terms_for(privacy, who, {**nothing, **counted})
    charges = tuple(charge for kind, uses in counted.items() for charge in _charges(terms, level, kind, uses))
    terms = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), terms)
    return Game(plan, algorithm, terms, clients, tuple(charge for charge in charges if charge[1]), len(rounds))


def _charges(terms: Terms, level: str, kind: str, uses: np.ndarray) -> list[Charge]:
    """What the target pays for its releases of a kind (rounds x parties), at each round's own noise."""
    cost, column = _cost(terms, level, kind), uses[:, -1 if uses.shape[1] == 1 else TARGET]
    if kind == CHOICE:
        return [(cost, int(column.sum()))]
    factors = np.take(np.asarray(terms.noise_factors), np.arange(len(column)), mode="clip")
    return [
        (replace(cost, noise_multiplier=times(cost.noise_multiplier, factor)), int(column[factors == factor].sum()))
        for factor in dict.fromkeys(factors.tolist())
    ]


def _cost(terms: Terms, level: str, kind: str) -> Cost:
    """What one release of a kind costs the target."""
    mechanism = terms.inbox if level == "client" else terms.choice if kind == CHOICE else terms.data
    found = mechanism.costs()
    return found[0 if len(found) == 1 else TARGET]


def level_for(level: str, epsilon: float, sampled: bool) -> PrivacyLevel:
    return PrivacyLevel(Level(level), epsilon, DELTA, cohort=CLIENTS / 2 if sampled and level == "client" else None)


def training_problem(
    algorithm: Algorithm,
    level: str,
    *,
    name: str,
    view: str | None = None,
    epsilon: float = EPSILON,
    sampled: bool = False,
) -> Problem:
    """An algorithm at a level, as seen from a view (the strongest, unless told). `person`: example level, of people.

    `sampled`: at client level half of the clients take part in a round, at example level a batch is half of the rows.
    """
    if level not in VIEWS:
        raise ValueError(f"level={level!r} has nothing to attack: use one of {', '.join(VIEWS)}")
    people = level == "person"
    level = "example" if people else level
    batch_size = ROWS // 2 if sampled and level == "example" else None
    game = set_up(algorithm, level_for(level, epsilon, sampled), batch_size=batch_size, people=people)
    return replace(problem_of(game, f"{name}, people" if people else name, view), sampled=sampled)


def problem_of(game: Game, name: str, view: str | None = None) -> Problem:
    """A game as a problem, seen from a view of its level: the strongest, unless told."""
    level, views = game.plan.level, VIEWS[game.plan.level]
    view = view or views[-1]
    if view not in views:
        raise ValueError(f"view={view!r} is not one of {', '.join(views)} (level={level!r})")
    observe = partial(observe_run, game, view)
    return Problem(name, level, view, game.claim, DELTA, observe, has_noise=bool(game.charges))


def observe_run(game: Game, view: str, key: Array, present: Array, noise: Array) -> Array:
    """One training run, and everything that the view has seen by its end."""
    plan, level = game.plan, game.plan.level
    terms, clients = _with_noise(game.terms, noise), game.clients
    algorithm = ZeroOut(game.algorithm, jnp.where(level == "client", present, 1.0))
    if level == "example":
        (rows,) = clients.blocks
        mask = rows.mask.at[TARGET, 0].set(present > 0)
        clients = replace(clients, blocks=(replace(rows, mask=mask),))

    played = replace(game, algorithm=algorithm, terms=terms, clients=clients)

    def step(state: State, number: Array) -> tuple[State, Array]:
        new = game.step(plan, algorithm, terms, clients, state, number)
        return new, _seen(played, view, state, new, number)

    _, seen = jax.lax.scan(step, game.start(plan, algorithm, key), jnp.arange(game.rounds, dtype=jnp.int32))
    return seen.ravel()


def _with_noise(terms: Terms, factor: Array) -> Terms:
    """The same terms with all noise multiplied."""

    def changed(mechanism: Tree) -> Tree:
        if mechanism.open or not hasattr(mechanism, "noise_multiplier"):
            return mechanism
        return replace(mechanism, noise_multiplier=factor * mechanism.noise_multiplier)

    return replace(terms, **{part: changed(getattr(terms, part)) for part in ("data", "choice", "inbox")})


def _seen(game: Game, view: str, old: State, new: State, number: Array) -> Array:
    """What a view sees of one round, as a vector."""
    plan = game.plan
    parts = [_flat(new.shared)]
    others = np.array([k for k in range(plan.clients) if k != TARGET])
    if view == "one_client":
        parts.append(_flat(trees.row(new.personal[0], others[:1])))
    elif view == "all_others":
        parts.append(_flat(trees.row(new.personal[0], others)))
        cohort = resident.draw_cohort(game.terms.inbox.sampling, old.server.coins, number, plan.clients)
        if plan.level == "client" and cohort.index is None:
            count = cohort.present[others].sum()
            moved = _flat(new.shared) - _flat(old.shared)
            parts += [jnp.where(count == n, moved, 0) for n in range(plan.clients)]
            parts.append(cohort.present[others].astype(jnp.float32))
    elif view == "released_model":
        everyone = jnp.ones(plan.clients, bool)
        terms = game.terms.at(number)
        messages, _, _ = resident._all_clients(plan, game.algorithm, terms, game.clients, old, number, everyone)
        parts += [_flat(trees.row(messages, TARGET)), _flat(trees.row(new.personal[0], TARGET))]
    return jnp.concatenate(parts)


def _flat(tree: Tree) -> Array:
    """All leaves as one float vector; empty trees and whole numbers included."""
    leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate([jnp.zeros(0, jnp.float32), *leaves])


def gaussian_sum(epsilon: float = EPSILON, sampled: bool = False) -> Problem:
    """The Gaussian sum itself: four units, of which the first is the canary; used twice if units are sampled."""
    rate, uses = (0.5, 2) if sampled else (1.0, 1)
    (noise,) = noise_for_budget.noise_multipliers([Case(epsilon, DELTA, uses, rate)])
    cost = Cost("gaussian", noise, rate)
    canary = FAR * jnp.asarray([1.0, -1.0, 1.0], jnp.float32)

    def observe(key: Array, present: Array, noise: Array) -> Array:
        mechanism = GaussianSum(jnp.float32(1), noise * cost.noise_multiplier)
        mechanism = replace(mechanism, sampling=replace(mechanism.sampling, rate=rate))
        units = jnp.zeros((4, 3), jnp.float32).at[0].set(canary)
        mask = jnp.ones(4, bool).at[0].set(present > 0)
        meter, seen = new_meter(key, ("sum",)), []
        for _ in range(uses):
            total, meter = mechanism("sum", meter, clipping.rows(lambda _, unit: unit), (), units, mask)
            seen.append(total)
        return jnp.concatenate(seen)

    claim = composition.epsilon([(cost, uses)], DELTA)
    return Problem("gaussian_sum", "client", "published", claim, DELTA, observe, sampled=rate < 1)


def symmetric_gaussian(epsilon: float = EPSILON) -> Problem:
    """The sound covariance release."""
    (noise,) = noise_for_budget.noise_multipliers([Case(epsilon, DELTA, 1)])
    mechanism = SymmetricGaussian(jnp.float32(2), jnp.float32(noise))

    def observe(key: Array, present: Array, noise: Array) -> Array:
        changed = replace(mechanism, noise_multiplier=noise * mechanism.noise_multiplier)
        meter = new_meter(key, (SECOND_MOMENT,))
        seen, _ = changed(SECOND_MOMENT, meter, _models(), jnp.ones(4, bool).at[0].set(present > 0))
        return seen[np.triu_indices(3)]

    claim = composition.epsilon([(cost, 1) for cost in mechanism.costs()], DELTA)
    return Problem("symmetric_gaussian", "client", "published", claim, DELTA, observe)


def wishart_as_published(epsilon: float = 0.1, delta: float = 1e-5) -> Problem:
    """The published covariance release. What is seen is whether the output is impossible with the canary."""
    mechanism = WishartAsPublished(jnp.float32(1), epsilon)

    def observe(key: Array, present: Array, noise: Array) -> Array:
        units = _models()
        changed = replace(mechanism, epsilon=epsilon / jnp.square(noise))
        seen = changed(key, units, jnp.ones(4, bool).at[0].set(present > 0))
        known = WishartAsPublished(jnp.float32(1), jnp.inf)(key, units, jnp.ones(4, bool))
        return -jnp.linalg.eigvalsh(seen - known)[:1]

    # An eigenvalue below 0 cannot happen with the canary; 1e-4 leaves room for float32.
    rule = Rule(np.zeros(1), np.ones(1), 1e-4, likely_present=False)
    return Problem("wishart_as_published", "client", "published", epsilon, delta, observe, rule, private=False)


def private_choice(epsilon: float = 1.0, delta: float = 1e-6) -> Problem:
    """One private choice. Two units are for the first candidate, the canary is for the second."""
    mechanism = NoisyMin(jnp.float32(1), jnp.float32(1 / epsilon))

    def observe(key: Array, present: Array, noise: Array) -> Array:
        changed = replace(mechanism, noise_multiplier=noise * mechanism.noise_multiplier)
        scores = jnp.zeros((3, 2), jnp.float32).at[0, 0].set(FAR).at[1:, 1].set(FAR)
        mask = jnp.ones(3, bool).at[0].set(present > 0)
        best, _ = changed(CHOICE, new_meter(key, (CHOICE,)), lambda _, unit: unit, (), scores, mask)
        return best.astype(jnp.float32)[None]

    claim = composition.epsilon([(cost, 1) for cost in mechanism.costs()], delta)
    return Problem("private_choice", "example", "published", claim, delta, observe)


def _models() -> Array:
    """Four clients' models, all beyond the clip; the first is the canary."""
    return 10 * jnp.eye(4, 3, dtype=jnp.float32) + 10 * jnp.eye(4, 3, -3, dtype=jnp.float32)


MECHANISMS: dict[str, Callable[..., Problem]] = {
    "covariance_outputs": covariance_attack.covariance_outputs,
    "covariance_outputs_as_published": covariance_attack.covariance_outputs_as_published,
    "gaussian_sum": gaussian_sum,
    "laplace_squares": covariance_attack.laplace_squares,
    "private_choice": private_choice,
    "private_evaluation": evaluation_attack.private_evaluation,
    "row_statistics": statistics_attack.row_statistics,
    "symmetric_gaussian": symmetric_gaussian,
    "wishart_as_published": wishart_as_published,
}
