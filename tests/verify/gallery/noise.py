"""Noise that is too small, or not as fresh as it looks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.accounting import composition, noise_for_budget
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.engines import resident
from kinfolk.privacy import clipping
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.privacy.mechanisms import Cost, GaussianSum
from kinfolk.privacy.release import Meter, new_meter
from kinfolk.verify.attack import Problem
from kinfolk.verify.attack_problems import (
    CLIENTS,
    DELTA,
    Game,
    level_for,
    observe_run,
    problem_of,
    set_up,
    symmetric_gaussian,
    wishart_as_published,
)
from kinfolk.verify.covariance_mechanisms import SECOND_MOMENT, SymmetricGaussian

from .checking import Bug, found_by_attack, found_by_replay
from .leaks import Changed


def _game(clip: float = 1.0, epsilon: float = 2.0) -> Game:
    return set_up(FedAvg(), PrivacyLevel(Level.CLIENT, epsilon, DELTA, clip=clip))


def _less_noise(game: Game, factor: float) -> Game:
    inbox: Any = game.terms.inbox
    return replace(
        game, terms=replace(game.terms, inbox=replace(inbox, noise_multiplier=inbox.noise_multiplier / factor))
    )


@trees.register
@dataclass(frozen=True)
class OtherMeter(GaussianSum):
    """A mechanism that draws its noise from a key of its own choosing. The count is kept."""

    seeded: Any = 0.0
    """Above 0: one fixed generator for everything. Else: the meter's key, without the count."""

    def __call__(self, kind: str, meter: Meter, *rest: Any) -> tuple[Any, Meter]:
        key = jax.lax.select(self.seeded > 0, jax.random.key(0), meter.noise)
        other = replace(meter, noise=key, uses=trees.zeros_like(meter.uses))
        released, other = super().__call__(kind, other, *rest)
        return released, replace(meter, uses=trees.add(meter.uses, other.uses))


def _seeded_game() -> Game:
    game = _game()
    return replace(game, terms=replace(game.terms, inbox=OtherMeter(**vars(game.terms.inbox), seeded=jnp.float32(1))))


def _two_uses(mechanism: Any) -> list[str]:
    """Whether two uses of a mechanism on the same units have the same noise."""
    meter, seen = new_meter(jax.random.key(3), ("sum",)), []
    for _ in range(2):
        value, meter = mechanism(
            "sum", meter, clipping.rows(lambda _, unit: unit), (), jnp.ones((2, 3), jnp.float32), jnp.ones(2, bool)
        )
        seen.append(np.asarray(value))
    return ["two uses have the same noise"] if np.array_equal(*seen) else []


def _one_key(plan: Any, algorithm: Any, key: Any) -> Any:
    """A start in which every client has the same noise key."""
    state = resident.start(plan, algorithm, key)
    same = jnp.broadcast_to(state.meters.noise[0], state.meters.noise.shape)
    return replace(state, meters=replace(state.meters, noise=same))


def _silos() -> Game:
    return set_up(MeanRegularized(), level_for("example", 2.0, sampled=False))


def _sweep(shared_key: bool) -> Problem:
    """Two cells of a sweep over epsilon, both published, charged together."""
    cells = [_game(epsilon=epsilon) for epsilon in (0.8, 1.2)]

    def observe(key: Any, present: Any, noise: Any) -> Any:
        keys = [key if shared_key else jax.random.fold_in(key, cell) for cell in range(2)]
        pairs = zip(cells, keys, strict=True)
        return jnp.concatenate([observe_run(game, "published", own, present, noise) for game, own in pairs])

    charges = [charge for game in cells for charge in game.charges]
    return Problem("sweep", "client", "published", composition.epsilon(charges, DELTA), DELTA, observe)


def _moments(charges: int) -> Problem:
    """A mean and a second moment of one model, each with noise calibrated to all of a budget of 2."""
    (z,) = noise_for_budget.noise_multipliers([noise_for_budget.Case(2.0, DELTA, 1)])
    cost = Cost("gaussian", z)
    models = jnp.zeros((2, 2), jnp.float32).at[0].set(jnp.asarray([3.0, 4.0]))

    def observe(key: Any, present: Any, noise: Any) -> Any:
        mask = jnp.ones(2, bool).at[0].set(present > 0)
        meter = new_meter(key, ("sum", SECOND_MOMENT))
        plain = GaussianSum(jnp.float32(1), noise * z)
        mean, meter = plain("sum", meter, clipping.rows(lambda _, unit: unit), (), models, mask)
        second, _ = SymmetricGaussian(jnp.float32(1), noise * z)(SECOND_MOMENT, meter, models, mask)
        return jnp.concatenate([mean, second[np.triu_indices(2)]])

    claim = composition.epsilon([(cost, charges)], DELTA)
    return Problem("moments", "client", "published", claim, DELTA, observe)


def two_from_one_gate(keep: bool) -> Game:
    """An algorithm that asks the gate twice; unless `keep`, the second question goes to the gate of the first."""

    def client(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
        first, after = gate.gradient(shared)
        second, gate = (after if keep else gate).gradient(trees.add(shared, first))
        return trees.scale(-self.step_size, trees.subtract(second, first)), personal, gate

    return set_up(Changed(FedAvg(), new_client=client), level_for("example", 2.0, sampled=False))


BUGS = (
    Bug(
        "Wishart noise",
        "noise on positive semi-definite matrices only, as published",
        "attack",
        lambda: found_by_attack(wishart_as_published(0.1), runs=5000),
        lambda: found_by_attack(symmetric_gaussian()),
    ),
    Bug(
        "noise divided twice",
        "the noise of a sum is divided by the number of clients, and the mean divides again",
        "attack",
        lambda: found_by_attack(problem_of(_less_noise(_game(), CLIENTS), "noise divided twice")),
        lambda: found_by_attack(problem_of(_game(), "sound")),
    ),
    Bug(
        "standard deviation read as a multiplier",
        "with clip norm 4 the noise is not multiplied by the clip norm",
        "attack",
        lambda: found_by_attack(problem_of(_less_noise(_game(clip=4.0), 4.0), "multiplier")),
        lambda: found_by_attack(problem_of(_game(clip=4.0), "sound")),
    ),
    Bug(
        "noise from a seeded generator",
        "noise comes from one generator with a fixed seed, which everybody has",
        "attack",
        lambda: found_by_attack(problem_of(_seeded_game(), "seeded")),
        lambda: found_by_attack(problem_of(_game(), "sound")),
    ),
    Bug(
        "noise key reused",
        "the count of uses does not enter the key, so every round has the same noise",
        "mechanism",
        lambda: _two_uses(OtherMeter(jnp.float32(1), jnp.float32(1), seeded=jnp.float32(0))),
        lambda: _two_uses(GaussianSum(jnp.float32(1), jnp.float32(1))),
    ),
    Bug(
        "a gate used twice",
        "the gate that comes back is dropped: two gradients share noise and count as one",
        "replay",
        lambda: found_by_replay(two_from_one_gate(keep=False)),
        lambda: found_by_replay(two_from_one_gate(keep=True)),
    ),
    Bug(
        "a gate used twice, in a release",
        "the same with exact noise: the second gradient takes the first one's place on the tape",
        "replay",
        lambda: found_by_replay(two_from_one_gate(keep=False), release=True),
        lambda: found_by_replay(two_from_one_gate(keep=True), release=True),
    ),
    Bug(
        "noise key shared by two clients",
        "all clients draw the same noise, and one of them subtracts it from the others' messages",
        "attack",
        lambda: found_by_attack(problem_of(replace(_silos(), start=_one_key), "one key", "all_others")),
        lambda: found_by_attack(problem_of(_silos(), "sound", "all_others")),
    ),
    Bug(
        "noise key shared by two sweep cells",
        "two noise levels of a sweep are published with the same noise",
        "attack",
        lambda: found_by_attack(_sweep(shared_key=True)),
        lambda: found_by_attack(_sweep(shared_key=False)),
    ),
    Bug(
        "mean and second moment on one charge",
        "two releases, each with noise for the whole budget, are charged as one",
        "attack",
        lambda: found_by_attack(_moments(charges=1)),
        lambda: found_by_attack(_moments(charges=2)),
    ),
)
