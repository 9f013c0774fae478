"""The four checks, each as a function that returns what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import models, trees
from kinfolk.engines import resident
from kinfolk.privacy import exact_noise
from kinfolk.privacy.clipping import Sum
from kinfolk.privacy.levels import Level
from kinfolk.verify.attack import Problem, attack
from kinfolk.verify.attack_problems import FEATURES, ROUNDS, TARGET, Game
from kinfolk.verify.registry_check import check_small
from kinfolk.verify.replay import Step, replay

Check = Callable[[], list[str]]
RUNS = 50_000
ERROR = 1e-4 / 50
"""Of one attack: far fewer than fifty attacks are made here."""


@dataclass(frozen=True)
class Bug:
    """A planted bug: what it is, and the check that must find it, run on the bug and on the sound version."""

    name: str
    what: str
    check: str
    broken: Check
    sound: Check


def found_by_flow(algorithm: Any, level: str, exact: bool = False) -> list[str]:
    """Violations in the traced round; with `exact` noise, in the round of a release."""
    return list(check_small(algorithm, Level(level), models.linear(3), 3, exact=exact).violations)


def found_by_attack(problem: Problem, runs: int = RUNS) -> list[str]:
    """A refuted claim, if it is refuted."""
    finding = attack(problem, runs=runs, confidence=1 - ERROR, with_power=False)
    if not finding.exceeded:
        return []
    return [f"epsilon is at least {finding.lower_bound:.3g}, and {finding.claim:.3g} is claimed"]


def found_by_replay(game: Game, step: Step = resident.one_round, *, release: bool = False) -> list[str]:
    """What changes with the target's data though every release is held at its recorded value.

    `release`: recorded with exact noise, as a release has it.
    """
    generator = np.random.default_rng(0)

    def exact(kind: str, shape: tuple[int, ...]) -> Any:
        pays: Any = game.terms.inbox if game.plan.level.server_pays else game.terms.data
        noise = np.asarray(pays.noise_multiplier, float)
        return jnp.asarray(exact_noise.integers(pays, noise.reshape(*noise.shape, 1, 1), shape))

    def filled(rows: Any) -> Any:
        shape = rows.x.shape
        x, y = generator.normal(size=shape), generator.normal(size=shape[:2])
        return jax.tree.map(jnp.asarray, type(rows)(x.astype(np.float32), y.astype(np.float32), rows.mask))

    (rows,) = game.clients.blocks
    rows = filled(rows)
    other = type(rows)(rows.x.at[TARGET, 0].set(3.0), rows.y.at[TARGET, 0].set(-2.0), rows.mask)
    clients, changed = (type(game.clients)((r,), *_public(game.clients)) for r in (rows, other))
    kinds = (*game.plan.level.data_kinds, *game.plan.level.inbox_kinds)
    uses, sizes = dict.fromkeys(kinds, 4 * ROUNDS), dict.fromkeys(kinds, FEATURES + 1)
    return replay(
        game.plan,
        game.algorithm,
        game.terms,
        clients,
        changed,
        TARGET,
        rounds=ROUNDS,
        sizes=sizes,
        uses=uses,
        key=jax.random.key(0),
        step=step,
        exact=exact if release else None,
    )


def _public(clients: Any) -> tuple[Any, ...]:
    return clients.sizes, clients.steps, clients.weights


NASTY = np.array(
    [
        *[[0.0, 0.0, 0.0], [1e-42, 0.0, 1e-42], [1e-3, 1e-3, 0.0], [1.0, -1.0, 1.0], [5.0, 5.0, -5.0]],
        *[[1e8, 1e8, 1.0], [1e18, -1e18, 0.0], [3e38, 3e38, 3e38], [np.nan, 1.0, 1.0], [np.inf, 5.0, 5.0]],
        *[[-np.inf, np.inf, np.nan], [5.0, 1e-30, -4.0]],
    ],
    np.float32,
)
"""Contributions that clipping has to survive: nothing, denormal, small, large, overflowing, not a number."""


def found_by_sensitivity(what: Sum, clip: float = 1.0) -> list[str]:
    """Units that move the clipped sum by more than the clip norm. A unit is a dictionary of two parts."""
    problems = []
    others = np.array([[0.3, 0.4, -0.2], [2.0, 1.0, 1.0]], np.float32)
    for nasty in NASTY:
        units = _parts(np.vstack([nasty[None], others]))
        with_it, without = (
            what.clipped((), units, jnp.asarray(weights, jnp.float32), jnp.float32(clip))
            for weights in ([1, 1, 1], [0, 1, 1])
        )
        moved = float(jnp.sqrt(trees.squared_norm(trees.subtract(with_it, without))))
        if not moved <= clip * (1 + 1e-5):
            problems.append(f"{nasty.tolist()} moves the sum by {moved:.3g}, and the clip norm is {clip}")
    return problems


def _parts(rows: np.ndarray) -> dict[str, jax.Array]:
    return {"weights": jnp.asarray(rows[:, :2]), "bias": jnp.asarray(rows[:, 2:])}
