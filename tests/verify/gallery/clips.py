"""What one unit may contribute, done wrong. Found by searching for a unit that moves the sum too far, or by attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local import Local
from kinfolk.privacy import clipping
from kinfolk.privacy.clipping import Sum, clip_one
from kinfolk.privacy.mechanisms import GaussianSum
from kinfolk.verify.attack_problems import Game, level_for, problem_of, set_up

from .checking import Bug, found_by_attack, found_by_sensitivity

SOUND = clipping.rows(lambda _, unit: unit)
SIZES = np.array([0.5, 2.3, 0.5, 0.7], np.float32)
"""Clients' weights; the target's is the second."""


@trees.register
@dataclass(frozen=True)
class OtherSum(GaussianSum):
    """A mechanism that sums something else than it was asked to."""

    changed: Callable[[Sum], Sum] = field(default=lambda what: what, metadata={"static": True})

    def __call__(self, kind: str, meter: Any, what: Sum, *rest: Any) -> Any:
        return super().__call__(kind, meter, self.changed(what), *rest)


def clip_forgotten(what: Sum) -> Sum:
    return replace(what, clipped=lambda public, units, weights, clip: what.exact(public, units, weights))


def clip_per_layer(what: Sum) -> Sum:
    def clipped(public: Any, units: Any, weights: Any, clip: Any) -> Any:
        each = jax.vmap(lambda unit, w: jax.tree.map(lambda leaf: clip_one(leaf, w, clip), unit))(units, weights)
        return jax.tree.map(lambda leaf: leaf.sum(axis=0), each)

    return replace(what, clipped=clipped)


def not_a_number_passes(what: Sum) -> Sum:
    """Clips by norm, and lets a contribution through whose norm is not a number or overflows."""

    def one(unit: Any, weight: Any, clip: Any) -> Any:
        norm = jnp.sqrt(trees.squared_norm(unit))
        return trees.scale(weight * jnp.where(norm > clip, clip / norm, 1), unit)

    def clipped(public: Any, units: Any, weights: Any, clip: Any) -> Any:
        each = jax.vmap(one, in_axes=(0, 0, None))(units, weights, clip)
        return jax.tree.map(lambda leaf: leaf.sum(axis=0), each)

    return replace(what, clipped=clipped)


def scaled_after_the_clip(what: Sum) -> Sum:
    return replace(what, clipped=lambda *args: trees.scale(2.0, what.clipped(*args)))


def weights_after_the_clip(what: Sum) -> Sum:
    """For an inbox, whose units are pairs of a message and its weight."""

    def clipped(public: Any, units: Any, weights: Any, clip: Any) -> Any:
        def one(unit: Any, present: Any) -> Any:
            return trees.scale(unit[1], clip_one(unit[0], present, clip))

        each = jax.vmap(one)(units, weights)
        return jax.tree.map(lambda leaf: leaf.sum(axis=0), each)

    return replace(what, clipped=clipped)


def _weighted_game() -> Game:
    game = set_up(FedAvg(), level_for("client", 2.0, sampled=False))
    return replace(game, clients=replace(game.clients, weights=jnp.asarray(SIZES)))


def _with_sum(game: Game, changed: Callable[[Sum], Sum]) -> Game:
    return replace(game, terms=replace(game.terms, inbox=OtherSum(**vars(game.terms.inbox), changed=changed)))


def _by_search(name: str, what: str, changed: Callable[[Sum], Sum]) -> Bug:
    broken = changed(SOUND)
    return Bug(name, what, "mechanism", lambda: found_by_sensitivity(broken), lambda: found_by_sensitivity(SOUND))


def _by_attack(name: str, what: str, changed: Callable[[Sum], Sum]) -> Bug:
    return Bug(
        name,
        what,
        "attack",
        lambda: found_by_attack(problem_of(_with_sum(_weighted_game(), changed), name)),
        lambda: found_by_attack(problem_of(_weighted_game(), name)),
    )


def _person_game() -> Game:
    return set_up(Local(), level_for("example", 2.0, sampled=False), people=True)


def clip_per_row(what: Sum) -> Sum:
    """For people: every row is clipped, and what is left of a person's rows is added up."""

    def clipped(public: Any, units: Any, weights: Any, clip: Any) -> Any:
        people, y = units
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (people.rows, y))
        there = jnp.where(people.shares > 0, weights[:, None], 0).reshape(-1)
        return what.clipped(public, flat, there, clip)

    return replace(what, clipped=clipped)


def _clip_per_row(name: str, what: str) -> Bug:
    def broken() -> list[str]:
        game = _person_game()
        other = OtherSum(**vars(game.terms.data), changed=clip_per_row)
        return found_by_attack(problem_of(replace(game, terms=replace(game.terms, data=other)), name))

    return Bug(name, what, "attack", broken, lambda: found_by_attack(problem_of(_person_game(), name)))


BUGS = (
    _by_search("clip forgotten", "contributions are summed as they are", clip_forgotten),
    _by_search("per-layer clip", "each layer is clipped to the norm that is charged for all of them", clip_per_layer),
    _by_search("NaN passes the clip", "a contribution whose norm is not a number is not clipped", not_a_number_passes),
    _clip_per_row("clip per row, then sum", "a person's rows are clipped one by one, and then added up"),
    _by_attack(
        "weights after the clip", "clients are weighted by size after they were clipped", weights_after_the_clip
    ),
    _by_attack(
        "scaling between clip and noise", "the clipped sum is doubled before noise is added", scaled_after_the_clip
    ),
)
